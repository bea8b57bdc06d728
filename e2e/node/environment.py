"""A container's environment and command, as the kubelet computes them. Pure.

``valueFrom`` of Secrets, ConfigMaps, the pod's fields and the container's resources; ``envFrom``;
``$(VAR)`` in values, command and args.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Object = dict[str, Any]
_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
_MAP_FIELD: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_SUFFIXES: Final = {
    **{"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
}


class ConfigError(Exception):
    """The container cannot be created as its pod says (CreateContainerConfigError)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What an environment is made of."""

    pod: Object  # with the status that it will have: podIP, hostIP
    config_map: Callable[[str], Object | None]  # of the pod's namespace, by name
    secret: Callable[[str], Object | None]


def decoded(secret: Object) -> dict[str, bytes]:
    """A Secret's data."""
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def entries(config_map: Object) -> dict[str, bytes]:
    """A ConfigMap's data, text and binary."""
    text = {key: value.encode() for key, value in (config_map.get("data") or {}).items()}
    binary = {k: base64.b64decode(v) for k, v in (config_map.get("binaryData") or {}).items()}
    return text | binary


def environment(container: Object, sources: Sources, base: Mapping[str, str]) -> dict[str, str]:
    """Everything that the container's process sees."""
    found = dict(base)
    for source in container.get("envFrom", []):
        found |= _all_of(source, sources)
    for one in container.get("env", []):
        value = one.get("value", "")
        if "valueFrom" in one:
            given = _value_from(one["valueFrom"], container, sources)
            if given is None:
                continue
            value = given
        else:
            value = expand(value, found)
        found[one["name"]] = value
    return found


def expand(text: str, env: Mapping[str, str]) -> str:
    """``$(VAR)`` replaced, ``$$`` a dollar; an unknown name stays as it is written."""

    def put(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(put, text)


def command(
    container: Object, entrypoint: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """The pod's command and args before the image's, by Docker's rules."""
    if own := container.get("command"):
        words = [*own, *container.get("args", [])]
    else:
        words = [*entrypoint, *container.get("args", arguments)]
    if not words:
        raise ConfigError("no command specified")
    return [expand(word, env) for word in words]


def field_of(pod: Object, path: str) -> str:
    """A downward API field."""
    if match := _MAP_FIELD.fullmatch(path):
        return pod["metadata"].get(match[1], {}).get(match[2], "")
    plural = {"metadata.labels": "labels", "metadata.annotations": "annotations"}
    if path in plural:
        items = sorted(pod["metadata"].get(plural[path], {}).items())
        return "\n".join(f'{key}="{value}"' for key, value in items)
    if path == "status.podIPs":
        return ",".join(one["ip"] for one in pod["status"].get("podIPs", []))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    if match is None or match[2] not in _SUFFIXES:
        raise ConfigError(f"{text!r} is no quantity")
    return float(match[1]) * _SUFFIXES[match[2]]


def _all_of(source: Object, sources: Sources) -> dict[str, str]:
    """envFrom: every key, with a prefix."""
    kind = "configMapRef" if "configMapRef" in source else "secretRef"
    reference = source[kind]
    is_map = kind == "configMapRef"
    found = (sources.config_map if is_map else sources.secret)(reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind.removesuffix("Ref").lower()} "{reference["name"]}" not found')
    data = entries(found) if is_map else decoded(found)
    return {source.get("prefix", "") + key: value.decode() for key, value in data.items()}


def _value_from(source: Object, container: Object, sources: Sources) -> str | None:
    if "fieldRef" in source:
        return field_of(sources.pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(source["resourceFieldRef"], container)
    if "secretKeyRef" in source:
        reference = source["secretKeyRef"]
        return _key(reference, "secret", sources.secret(reference["name"]), decoded)
    reference = source["configMapKeyRef"]
    return _key(reference, "configmap", sources.config_map(reference["name"]), entries)


def _key(
    reference: Object,
    kind: str,
    found: Object | None,
    read: Callable[[Object], dict[str, bytes]],
) -> str | None:
    name, key = reference["name"], reference["key"]
    data = {} if found is None else read(found)
    if key in data:
        return data[key].decode()
    if reference.get("optional"):
        return None
    if found is None:
        raise ConfigError(f'{kind} "{name}" not found')
    raise ConfigError(f'couldn\'t find key {key} in {kind} "{name}"')


def _resource(reference: Object, container: Object) -> str:
    kind, _, name = reference["resource"].partition(".")
    resources = container.get("resources", {})
    amount = resources.get(kind, {}).get(name) or resources.get("limits", {}).get(name, "0")
    divisor = quantity(reference.get("divisor", "0")) or 1.0  # the API server writes 0 for none
    return str(math.ceil(quantity(amount) / divisor))

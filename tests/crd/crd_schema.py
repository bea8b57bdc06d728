"""Reads the CRD's own schema, and builds objects that hold one value at one of its paths.

A path is dotted; ``[]`` after a name stands for the items of an array.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.api import Api

FILE: Final = Path(__file__).resolve().parents[2] / "crds" / "servingscopes.yaml"
GROUP: Final = "/apis/serving.retire.dev/v1alpha1"
# Measured by no rule: what a value is called, and what the server fills in.
NOT_RULES: Final = {"type", "description", "default", "properties", "items"}
# What must stand beside a value for the rest of the object to be right.
SIBLINGS: Final[dict[str, dict[str, Any]]] = {
    "spec.parentRef": {"name": "parent"},
    "spec.context.inline.messages[]": {"role": "user", "content": "go"},
    "spec.context.configMapRef": {"name": "plan"},
    "spec.context.secretRef": {"name": "plan"},
    "status.participants[]": {"node": "node-0"},
    "status.receipts[]": {"kind": "supersede", "toVersion": "1.2"},
    "status.conditions[]": {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
        "reason": "AtEpoch",
    },
}
# What makes a context complete when the path leads elsewhere into it.
COMPLETE: Final = {"spec.context.model": {"inline": {"prompt": "go"}}}


def schema() -> dict[str, Any]:
    """The schema of v1alpha1."""
    crd = yaml.safe_load(FILE.read_text())
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every path below spec and status, with its part of the schema; the root's path is empty."""
    root = schema()
    yield "", root
    for name in ("spec", "status"):
        yield from _below(name, root["properties"][name])


def _below(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    if node["type"] == "array":
        yield from _below(f"{path}[]", node["items"])
    for name, part in node.get("properties", {}).items():
        yield from _below(f"{path}.{name}", part)


def rules_of(node: dict[str, Any]) -> Iterator[str]:
    """The keywords of one node that can refuse something; CEL rules apart."""
    for keyword, value in node.items():
        if keyword == "required":
            yield from (f"required:{name}" for name in value)
        elif keyword == "x-kubernetes-list-map-keys":
            yield "unique"
        elif keyword == "format":
            yield f"format:{value}"
        elif keyword not in NOT_RULES and not keyword.startswith("x-kubernetes-"):
            yield keyword


def place(path: str, value: Any) -> dict[str, Any]:
    """``{"spec": ...}`` or ``{"status": ...}`` that holds ``value`` at ``path``."""
    extra = COMPLETE.get(path, {})
    parts = path.split(".")
    while parts:
        name = parts.pop()
        parent = ".".join(parts)
        wrapped = [value] if name.endswith("[]") and not isinstance(value, list) else value
        value = {**SIBLINGS.get(parent, {}), **extra, name.removesuffix("[]"): wrapped}
        extra = {}
    return value


class Scopes:
    """ServingScopes of one namespace, by plain REST."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.path = f"{GROUP}/namespaces/{namespace}/servingscopes"

    def create(self, spec: dict[str, Any] | None, name: str = "plan", **params: Any) -> Any:
        """POST; a spec of None leaves it out."""
        return self.api.create(self.path, self.body(spec, name), **params)

    def try_create(self, spec: dict[str, Any] | None, name: str = "plan") -> Any:
        """POST that changes nothing, strict as kubectl's."""
        return self.create(spec, name, dryRun="All", fieldValidation="Strict")

    def update(self, spec: dict[str, Any], name: str = "plan", **params: Any) -> Any:
        """PUT of the whole spec."""
        current = self.api.get(f"{self.path}/{name}")
        return self.api.replace(f"{self.path}/{name}", {**current, "spec": spec}, **params)

    def set_status(self, status: dict[str, Any], name: str = "plan", **params: Any) -> Any:
        """PUT of the status subresource, strict as well."""
        current = self.api.get(f"{self.path}/{name}")
        params = {"fieldValidation": "Strict", **params}
        return self.api.replace(
            f"{self.path}/{name}/status", {**current, "status": status}, **params
        )

    @staticmethod
    def body(spec: dict[str, Any] | None, name: str) -> dict[str, Any]:
        """The object."""
        head = {"apiVersion": "serving.retire.dev/v1alpha1", "kind": "ServingScope"}
        return {**head, "metadata": {"name": name}} | ({} if spec is None else {"spec": spec})

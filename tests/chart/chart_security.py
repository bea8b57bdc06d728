"""The restricted Pod Security Standard as a pure function over a pod, and a little more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Volume types that the restricted profile allows.
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
PROFILES = ("RuntimeDefault", "Localhost")


def violations(pod: dict[str, Any]) -> list[str]:
    """What the restricted profile refuses; also writable root file systems and root groups."""
    spec = pod["spec"]
    whole = spec.get("securityContext", {})
    found = [f"spec.{field}" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    found += [f"volume {one['name']}" for one in spec.get("volumes", ()) if not _allowed(one)]
    found += [f"sysctl {one['name']}" for one in whole.get("sysctls", ())]
    for one in (*spec.get("initContainers", ()), *spec["containers"]):
        found += [f"{one['name']}: {what}" for what in _of_container(one, whole)]
    return found


def _allowed(volume: dict[str, Any]) -> bool:
    return {*volume} - {"name"} <= VOLUMES


def _of_container(one: dict[str, Any], whole: dict[str, Any]) -> Iterator[str]:
    own = one.get("securityContext", {})
    both = {**whole, **own}
    capabilities = own.get("capabilities", {})
    checks = {
        "privileged": not own.get("privileged", False),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "capabilities.drop": "ALL" in capabilities.get("drop", ()),
        "capabilities.add": not set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"},
        "runAsNonRoot": both.get("runAsNonRoot") is True,
        "runAsUser": both.get("runAsUser") not in (0, None),
        "runAsGroup": both.get("runAsGroup") not in (0, None),
        "seccompProfile": both.get("seccompProfile", {}).get("type") in PROFILES,
        "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        "hostPort": not any(port.get("hostPort") for port in one.get("ports", ())),
    }
    return (name for name, holds in checks.items() if not holds)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector with matchLabels only takes these labels."""
    assert not {*selector} - {"matchLabels"}, "this check knows matchLabels only"
    return selector.get("matchLabels", {}).items() <= labels.items()

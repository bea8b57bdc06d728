"""Which node a pending pod gets. Pure.

Node selector, extended resources (GPUs) and required anti-affinity by host; then the emptiest node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from e2e.node.environment import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

Object = dict[str, Any]
HOSTNAME: Final = "kubernetes.io/hostname"


class Unschedulable(Exception):
    """No node fits now; the message says why not, node by node."""


def choose(pod: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> str:
    """The name of a node; ``pods`` are those that are bound."""
    reasons = {node["metadata"]["name"]: _obstacle(pod, node, pods) for node in nodes}
    fitting = [name for name, reason in reasons.items() if not reason]
    if not fitting:
        words = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        raise Unschedulable(f"0/{len(nodes)} nodes are available: {words}")
    return min(fitting, key=lambda name: (len(_on(name, pods)), name))


def _on(node: str, pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]


def _obstacle(pod: Object, node: Object, pods: Sequence[Object]) -> str:
    """Why the pod cannot go there; empty when it can."""
    labels = node["metadata"].get("labels", {})
    selector = pod["spec"].get("nodeSelector", {})
    if missing := [key for key, value in selector.items() if labels.get(key) != value]:
        return f"no label {', '.join(missing)} as the node selector wants it"
    there = _on(node["metadata"]["name"], pods)
    for name, asked in _extended(pod).items():
        free = quantity(node["status"]["allocatable"].get(name, "0"))
        free -= sum(_extended(other).get(name, 0) for other in there)
        if asked > free:
            return f"insufficient {name}"
    if any(_repels(pod, other) for other in there):
        return "pod anti-affinity"
    return ""


def _extended(pod: Object) -> dict[str, float]:
    """Requests of resources with a vendor's domain, summed over the containers."""
    found: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("limits", {}).items():
            if "/" in name:
                found[name] = found.get(name, 0) + quantity(amount)
    return found


def _repels(pod: Object, other: Object) -> bool:
    affinity = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    if pod["metadata"]["namespace"] != other["metadata"]["namespace"]:
        return False
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", []):
        wanted = term.get("labelSelector", {}).get("matchLabels", {})
        labels = other["metadata"].get("labels", {})
        if term["topologyKey"] == HOSTNAME and wanted.items() <= labels.items():
            return True
    return False

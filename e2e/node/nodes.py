"""The Node objects that pods are bound to. Pure."""

from __future__ import annotations

from typing import Any, Final

from e2e.node.schedule import HOSTNAME

Object = dict[str, Any]
_CAPACITY: Final = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
GPU: Final = "nvidia.com/gpu"


def node(name: str, *, gpus: int = 1) -> Object:
    """A node with its labels; its status is written apart (``node_status``)."""
    labels = {
        HOSTNAME: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "retire.dev/harness": "true",
    }
    if gpus:
        labels["nvidia.com/gpu.present"] = "true"
    return {"metadata": {"name": name, "labels": labels}}


def node_status(name: str, address: str, now: str, *, gpus: int = 1) -> Object:
    """Ready, with room for everything and a few GPUs."""
    capacity = {**_CAPACITY, GPU: str(gpus)} if gpus else dict(_CAPACITY)
    ready = {"type": "Ready", "status": "True", "reason": "HarnessReady", "message": ""}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [ready | times],
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ],
    }

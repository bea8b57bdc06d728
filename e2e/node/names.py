"""Names of services and pods, as cluster DNS answers them, for a pod's /etc/hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Object = dict[str, Any]
Key = tuple[str, str]  # namespace, name
DOMAIN: Final = "cluster.local"
KUBERNETES: Final[Key] = ("default", "kubernetes")


@dataclass(frozen=True, slots=True)
class Backend:
    """A pod that a service may lead to."""

    name: str
    address: str
    ports: Mapping[str, int]  # container ports by name
    ready: bool


def key_of(item: Object) -> Key:
    """Namespace (empty for what has none) and name."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def is_ready(pod: Object) -> bool:
    """Its Ready condition, unless it is being deleted."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def selects(service: Object, pod: Object) -> bool:
    """Whether the service's selector holds for a pod of its namespace."""
    selector = service["spec"].get("selector")
    labels = pod["metadata"].get("labels", {})
    same = service["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and bool(selector) and all(labels.get(k) == v for k, v in selector.items())


def backends(service: Object, pods: Iterable[Object]) -> list[Backend]:
    """Pods that the service leads to now: ready ones, or all that have an address if it says so."""
    found = []
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        if not address or not selects(service, pod):
            continue
        ready = is_ready(pod)
        if ready or service["spec"].get("publishNotReadyAddresses"):
            found.append(Backend(pod["metadata"]["name"], address, container_ports(pod), ready))
    return sorted(found, key=lambda one: one.name)


def container_ports(pod: Object) -> dict[str, int]:
    """Named ports of all containers, native sidecars too."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    ports = (port for container in containers for port in container.get("ports", []))
    return {port["name"]: port["containerPort"] for port in ports if "name" in port}


def target_port(port: Object, backend: Backend) -> int | None:
    """Where a service port leads in one pod; None when the pod has no port of that name."""
    target = port.get("targetPort", port["port"])
    return target if isinstance(target, int) else backend.ports.get(target)


def spellings(name: str, namespace: str, home: str) -> list[str]:
    """Every way to write a service's name from a pod in namespace ``home``."""
    full = f"{name}.{namespace}.svc"
    found = [f"{full}.{DOMAIN}", full, f"{name}.{namespace}"]
    return [*found, name] if namespace == home else found


def hosts(
    pod: Object,
    services: Iterable[Object],
    addresses: Mapping[Key, str],
    pods: Iterable[Object],
) -> str:
    """/etc/hosts of a pod. ``addresses``: where each service answers for it."""
    home, name = key_of(pod)
    lines = ["127.0.0.1 localhost"]
    subdomain = pod["spec"].get("subdomain")
    full = f"{name}.{subdomain}.{home}.svc.{DOMAIN} " if subdomain else ""
    lines.append(f"{pod['status']['podIP']} {full}{pod['spec'].get('hostname', name)}")
    everyone = list(pods)
    for service in sorted(services, key=key_of):
        lines += _service_lines(service, home, addresses, everyone)
    return "\n".join(lines) + "\n"


def _service_lines(
    service: Object, home: str, addresses: Mapping[Key, str], pods: list[Object]
) -> Iterator[str]:
    key = key_of(service)
    names = " ".join(spellings(key[1], key[0], home))
    if service["spec"].get("clusterIP") != "None":
        if key in addresses:
            yield f"{addresses[key]} {names}"
        return
    for backend in backends(service, pods):
        yield f"{backend.address} {names}"
        own = " ".join(f"{backend.name}.{spelling}" for spelling in names.split())
        yield f"{backend.address} {own}"

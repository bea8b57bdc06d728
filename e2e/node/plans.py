"""From a pod's container to what is to be run: user, environment, command, mounts. Pure.

The folders of volumes are asked for, never made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from e2e.node.box import BoxSpec, Mount
from e2e.node.environment import ConfigError, Sources, command, environment, expand
from e2e.node.images import find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from e2e.node.images import Image

Object = dict[str, Any]
_LIVE: Final = ("configMap", "secret", "projected", "downwardAPI")


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What all containers of a pod have in common."""

    pod: Object  # with the addresses in its status
    sources: Sources
    images: Sequence[Image]
    services: Sequence[Object]  # of its namespace, for service links
    folder: Callable[[str], Path]  # of a volume, by name
    network: str
    files: Mapping[str, Path]  # of the pod's own, by their place in every container
    layers: Path
    logs: Path


def box_spec(plan: PodPlan, container: Object, run: int) -> BoxSpec:
    """ConfigError or UnknownImage when it cannot be run as it says; ``run`` counts the runs."""
    image = find(plan.images, container["image"])
    pod = plan.pod
    context = {**pod["spec"].get("securityContext", {}), **container.get("securityContext", {})}
    uid, gid, groups = user(context, image)
    env = environment(container, plan.sources, base_environment(plan, image))
    name = pod["metadata"]["name"]
    file = f"{pod['metadata']['namespace']}_{name}_{container['name']}.log"
    return BoxSpec(
        argv=command(container, image.entrypoint, image.command, env),
        env=env,
        hostname=pod["spec"].get("hostname", name)[:63],
        log=str(plan.logs / file),
        layer=str(plan.layers / f"{container['name']}-{run}"),
        network=plan.network,
        mounts=[
            *(Mount(str(host), inside, False) for inside, host in plan.files.items()),
            *(Mount(host, inside, False) for host, inside in image.binds.items()),
            *mounts(plan, container, env),
        ],
        software=image.folders,
        uid=uid,
        gid=gid,
        groups=groups,
        workdir=container.get("workingDir", image.workdir),
        read_only_root=context.get("readOnlyRootFilesystem", False),
        no_new_privileges=context.get("allowPrivilegeEscalation") is False,
        labels={"pod": name, "container": container["name"]},
    )


def user(context: Object, image: Image) -> tuple[int, int, list[int]]:
    """User, group and further groups."""
    uid = context.get("runAsUser", image.user)
    if context.get("runAsNonRoot") and uid == 0:
        raise ConfigError("container has runAsNonRoot and image will run as root")
    gid = context.get("runAsGroup", image.user if uid == image.user else 0)
    groups = [*context.get("supplementalGroups", [])]
    if "fsGroup" in context:
        groups.append(context["fsGroup"])
    return uid, gid, groups


def base_environment(plan: PodPlan, image: Image) -> dict[str, str]:
    """What a container sees that says nothing about its environment."""
    found = {
        "PATH": image.search_path,
        "HOME": "/",
        "HOSTNAME": plan.pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": "kubernetes.default.svc",
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    }
    links = plan.pod["spec"].get("enableServiceLinks", True)
    return found | (service_links(plan.services) if links else {}) | dict(image.env)


def service_links(services: Iterable[Object]) -> dict[str, str]:
    """Docker-style variables of every service, which a program may mistake for its own."""
    found: dict[str, str] = {}
    for service in services:
        host = service["spec"].get("clusterIP", "None")
        ports = service["spec"].get("ports", [])
        if host in ("None", "") or not ports:
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        first = ports[0]["port"]
        found |= {f"{name}_SERVICE_HOST": host, f"{name}_SERVICE_PORT": str(first)}
        found[f"{name}_PORT"] = f"tcp://{host}:{first}"
        for port in ports:
            prefix = f"{name}_PORT_{port['port']}_TCP"
            found |= {
                prefix: f"tcp://{host}:{port['port']}",
                f"{prefix}_PROTO": "tcp",
                f"{prefix}_PORT": str(port["port"]),
                f"{prefix}_ADDR": host,
            }
            if word := port.get("name"):
                variable = f"{name}_SERVICE_PORT_{word.upper().replace('-', '_')}"
                found[variable] = str(port["port"])
    return found


def mounts(plan: PodPlan, container: Object, env: dict[str, str]) -> list[Mount]:
    """Shallow paths first, so that one mount may lie in another."""
    volumes = {one["name"]: one for one in plan.pod["spec"].get("volumes", [])}
    found: list[Mount] = []
    for one in container.get("volumeMounts", []):
        source = plan.folder(one["name"])
        below = one.get("subPath") or expand(one.get("subPathExpr", ""), env)
        if below:
            source = source / below
            if not source.exists():
                source.mkdir(parents=True)
        live = any(kind in volumes[one["name"]] for kind in _LIVE)
        path = os.path.realpath(source)
        found.append(Mount(path, one["mountPath"], live or one.get("readOnly", False)))
    return sorted(found, key=lambda mount: mount.target.count("/"))

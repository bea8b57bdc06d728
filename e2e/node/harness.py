"""Nodes for a cluster that has none: pods run as local processes, and faults can be made.

A stand-in for scheduler, kubelet and kube-proxy on one machine, in a thread of its own. Each pod
has a network namespace and an address (``network.py``), so whoever runs on the machine reaches it.
Needs Linux, root (namespaces, veth), overlayfs, ``ip`` and ``nsenter``; ``requirements()`` says
what is missing. A pod is named ``namespace/name``; a service as a pod would, ``name`` or
``name.namespace``.

Not here: network policies, resource limits, images' own files, ``kubectl logs`` and ``exec`` (use
``log`` and ``exec``), hostPath volumes, UDP.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from e2e.node.box import Box, BoxSpec, StartFailed
from e2e.node.containers import Container, Delays
from e2e.node.kubelet import Kubelet
from e2e.node.network import Network, NetworkFailed
from e2e.node.world import World

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from e2e.cluster import ExistingCluster
    from e2e.node.images import Image
    from e2e.node.names import Key
    from e2e.node.pods import Pod

NODES: Final = ("node-a", "node-b")
_CALL_S: Final = 120.0
T = TypeVar("T")


class HarnessBroken(Exception):
    """The harness itself went wrong; what it caught is in the text."""


class Harness:
    """``start()`` and ``stop()``, or ``with``."""

    def __init__(
        self,
        cluster: ExistingCluster,
        images: Sequence[Image],
        *,
        nodes: Sequence[str] = NODES,
        gpus: int = 1,
        delays: Delays | None = None,
    ) -> None:
        self._cluster, self._images = cluster, images
        self._names, self._gpus, self._delays = nodes, gpus, delays or Delays()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="harness", daemon=True)
        self._world: World | None = None
        self._kubelet: Kubelet | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Returns when the nodes are ready."""
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Every process is gone afterwards; HarnessBroken when something went wrong meanwhile."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._kubelet is not None and self._kubelet.problems:
            raise HarnessBroken("\n".join(self._kubelet.problems))

    # --- what runs ------------------------------------------------------------------------------

    @property
    def logs(self) -> Path:
        """One file a container, of all its runs: ``namespace_pod_container.log``."""
        assert self._world is not None
        return self._world.logs

    def log(self, pod: str, container: str) -> str:
        """What a container has written, over all its runs."""
        namespace, name = _key(pod)
        path = self.logs / f"{namespace}_{name}_{container}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def address(self, pod: str) -> str:
        """Of a pod that runs here."""
        return self._find(pod).address

    def address_of(self, pod: str, service: str) -> str:
        """Where a pod finds a service: what its name resolves to inside."""
        return self._find(pod).links.address(_service(service, pod))

    def pid(self, pod: str, container: str) -> int:
        """Host pid of the container's first process."""
        return self._box(pod, container).pid

    def processes(self, pod: str, container: str) -> dict[int, str]:
        """Host pid -> command line of everything in a container."""
        return self._box(pod, container).processes()

    def exec(self, pod: str, container: str, *argv: str, limit_s: float = 60.0) -> tuple[int, str]:
        """Run a command in a container; its exit status and its output."""
        return self._call(self._box(pod, container).execute(argv, limit_s), limit_s + 10)

    # --- faults ---------------------------------------------------------------------------------

    def kill(
        self, pod: str, container: str, number: int = signal.SIGKILL, *, match: str = ""
    ) -> list[int]:
        """A signal to the container's first process, or to all whose command line has ``match``.

        The kernel hides from the first process what it has no handler for, SIGKILL and SIGSTOP
        excepted, as in any container. Returns the pids; LookupError when there is none.
        """
        box = self._box(pod, container)
        pids = [box.pid]
        if match:
            pids = [pid for pid, line in box.processes().items() if match in line]
        if not pids:
            raise LookupError(f"no process of {pod} {container} has {match!r} in its command line")
        for pid in pids:
            os.kill(pid, number)
        return pids

    def freeze(self, pod: str, container: str) -> None:
        """Stop every process of a container where it stands, as a machine that hangs."""
        for pid in self.processes(pod, container):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self, pod: str, container: str) -> None:
        """Let them go on."""
        for pid in self.processes(pod, container):
            os.kill(pid, signal.SIGCONT)

    def partition(self, pod: str, service: str) -> None:
        """Silence between a pod and a service, connections that stand included, until ``heal``."""
        self._call(self._set_link(pod, service, cut=True))

    def heal(self, pod: str, service: str) -> None:
        """The end of a partition."""
        self._call(self._set_link(pod, service, cut=False))

    def isolate(self, pod: str) -> None:
        """Unplug a pod from everything, probes included, until ``rejoin``: a node that is cut off.

        Services answer at the host, so it loses them as well.
        """
        self._find(pod).network.isolate()

    def rejoin(self, pod: str) -> None:
        """Plug it in again."""
        self._find(pod).network.rejoin()

    def separate(self, pod: str, other: str) -> None:
        """Two pods do not hear each other any more, until ``reunite``; services still work."""
        one, two = self._find(pod).network, self._find(other).network
        one.lose(two.address)
        two.lose(one.address)

    def reunite(self, pod: str, other: str) -> None:
        """The end of a separation."""
        one, two = self._find(pod).network, self._find(other).network
        one.find(two.address)
        two.find(one.address)

    # --- inside ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T], limit_s: float = _CALL_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    async def _start(self) -> None:
        self._world = World(self._cluster.kubeconfig, self._images, self._delays)
        self._kubelet = Kubelet(self._world, self._names, self._gpus)
        await self._kubelet.start()

    async def _stop(self) -> None:
        if self._kubelet is not None:
            await self._kubelet.stop()
        if self._world is not None:
            await self._world.close()

    def _find(self, pod: str) -> Pod:
        assert self._kubelet is not None
        return self._kubelet.find(_key(pod))

    def _container(self, pod: str, name: str) -> Container:
        containers = {one.name: one for one in self._find(pod).containers}
        if name not in containers:
            raise KeyError(f"pod {pod} has no container {name}; it has {', '.join(containers)}")
        return containers[name]

    def _box(self, pod: str, container: str) -> Box:
        box = self._container(pod, container).box
        if box is None:
            raise LookupError(f"container {container} of pod {pod} does not run now")
        return box

    async def _set_link(self, pod: str, service: str, *, cut: bool) -> None:
        links, key = self._find(pod).links, _service(service, pod)
        if cut:
            links.cut(key)
        else:
            links.heal(key)


def requirements() -> str:
    """What this machine lacks to run containers as processes; empty when it lacks nothing."""
    if sys.platform != "linux":
        return "Linux is needed"
    if os.geteuid() != 0:
        return "root is needed: containers have mount and PID namespaces and users of their own"
    for tool, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed: install {package}"
    try:
        Network().close()
        asyncio.run(_try_box())
    except NetworkFailed as error:
        return f"pods can have no network here (CAP_NET_ADMIN, veth, bridge): {error}"
    except StartFailed as error:
        return f"a container cannot be made here (CAP_SYS_ADMIN, overlayfs, a tmpfs): {error}"
    return ""


async def _try_box() -> None:
    """The smallest container."""
    with tempfile.TemporaryDirectory(prefix="retire-try-", dir="/dev/shm") as folder:
        spec = BoxSpec(["true"], {}, "try", f"{folder}/log", f"{folder}/layer")
        await (await Box.start(spec)).wait()


def _key(pod: str) -> Key:
    namespace, slash, name = pod.partition("/")
    if not slash:
        raise ValueError(f"{pod!r}: say namespace/name")
    return namespace, name


def _service(service: str, pod: str) -> Key:
    name, dot, namespace = service.partition(".")
    return (namespace if dot else _key(pod)[0]), name

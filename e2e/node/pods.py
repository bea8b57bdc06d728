"""The life of one pod, as a kubelet leads it. asyncio.

Owns its containers, volumes, service links and its status on the API server. Must never decide
where a pod runs, nor create one.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import httpx

from e2e.api import ApiError
from e2e.node.containers import Container
from e2e.node.environment import ConfigError, Sources
from e2e.node.names import Key, key_of
from e2e.node.plans import PodPlan, box_spec
from e2e.node.service_links import ServiceLinks
from e2e.node.states import Kind, pod_status, stamp
from e2e.node.supply import PodSupply
from e2e.node.volumes import Volumes

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.node.box import BoxSpec
    from e2e.node.network import PodNetwork
    from e2e.node.world import World

Object = dict[str, Any]
_RETRY_S: Final = 0.3
_TOKEN_CHECK_S: Final = 20.0
_GONE: Final = (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT)


class Pod:
    """``run`` is its whole life; ``update`` and ``vanish`` tell it what the API server says."""

    def __init__(self, pod: Object, world: World, host: str, network: PodNetwork) -> None:
        self.key: Key = key_of(pod)
        self.uid: str = pod["metadata"]["uid"]
        self.delays = world.delays
        self.grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._world = world
        self.network = network
        self.address = network.address
        ips = {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        hosts = {"hostIP": host, "hostIPs": [{"ip": host}], "startTime": self.now()}
        self._fixed: Object = ips | hosts
        self._pod: Object = {**pod, "status": {**pod.get("status", {}), **self._fixed}}
        self._folder = world.disk / "pods" / self.uid
        self._memory = world.memory / self.uid
        for folder in (self._folder, self._memory / "layers"):
            folder.mkdir(parents=True)
        self._supply = PodSupply(world, pod)
        self._volumes = Volumes(
            pod, self._folder / "volumes", self._memory / "volumes", self._supply
        )
        hosts_file = self._folder / "hosts"
        self._files = {"/etc/hosts": hosts_file, "/etc/resolv.conf": _resolver(self._folder)}
        self.links = ServiceLinks(world, self._pod, network.number, hosts_file)
        self.containers = self._containers(pod["spec"])
        self._runs = 0
        self._deleting, self._vanished = asyncio.Event(), asyncio.Event()
        self._dirty, self._ended = asyncio.Event(), asyncio.Event()
        self._published: Object = {}

    def _containers(self, spec: Object) -> list[Container]:
        policy = spec.get("restartPolicy", "Always")
        once = "OnFailure" if policy == "Always" else policy  # an init container has an end
        found: list[Container] = []
        for one in spec.get("initContainers", []):
            sidecar = one.get("restartPolicy") == "Always"
            kind = Kind.SIDECAR if sidecar else Kind.INIT
            found.append(Container(one, kind, "Always" if sidecar else once, self))
        return found + [Container(one, Kind.MAIN, policy, self) for one in spec["containers"]]

    # --- what its containers ask ----------------------------------------------------------------

    def plan(self, container: Object) -> BoxSpec:
        """What to run for a container now."""
        self._runs += 1
        self._volumes.sync()
        services = [
            one
            for one in self._world.all("services")
            if one["metadata"]["namespace"] == self.key[0]
        ]
        plan = PodPlan(
            pod=self._pod,
            sources=Sources(self._pod, self._supply.config_map, self._supply.secret),
            images=self._world.images,
            services=services,
            folder=self._volumes.folder,
            network=self.network.namespace,
            files=self._files,
            layers=self._memory / "layers",
            logs=self._world.logs,
        )
        return box_spec(plan, container, self._runs)

    def changed(self) -> None:
        """Publish the status soon."""
        self._dirty.set()

    def now(self) -> str:
        """As the API writes it."""
        return stamp(dt.datetime.now(dt.UTC))

    # --- what the API server says ---------------------------------------------------------------

    def update(self, pod: Object) -> None:
        """Another version of the object: its metadata may be new, its end may be wanted."""
        metadata = pod["metadata"]
        self._pod["metadata"] = metadata
        if "deletionTimestamp" in metadata:
            self.grace_s = float(metadata.get("deletionGracePeriodSeconds", self.grace_s))
            self._deleting.set()

    def vanish(self) -> None:
        """The object is gone (a forced deletion): end everything at once."""
        self.grace_s = 0.0
        self._vanished.set()
        self._deleting.set()

    async def refresh(self) -> None:
        """Live volumes and links follow what they show."""
        with contextlib.suppress(ConfigError):  # a source that vanished leaves its last files
            self._volumes.sync()
        await self.links.sync()

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the pod is deleted; then nothing of it is left."""
        loop = asyncio.get_running_loop()
        publisher = loop.create_task(self._publish_for_ever())
        tokens = loop.create_task(self._renew_tokens())
        life = loop.create_task(self._live())
        self.changed()
        try:
            await self._deleting.wait()
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        finally:
            await self._end_containers()
            # Told, not cancelled: a call that is cut short leaves its connection open.
            self._ended.set()
            self._dirty.set()
            results = await asyncio.gather(publisher, tokens, return_exceptions=True)
            await self.links.stop()
        for result in results:
            if isinstance(result, Exception):
                raise result
        if not self._vanished.is_set():
            await self._report_end()
        self._volumes.remove()
        await self._world.network.leave(self.network)

    async def _live(self) -> None:
        """Init containers in their order, then the others side by side, to their end if any."""
        await self._prepare()
        for container in self.containers:
            container.start()
            if container.kind is Kind.MAIN:
                continue
            if container.kind is Kind.SIDECAR:
                await container.started.wait()
            elif await self._finished(container):
                return  # it failed for good, and so does the pod
        main = [one for one in self.containers if one.kind is Kind.MAIN]
        await asyncio.gather(*(self._finished(one) for one in main))
        for sidecar in reversed(self.containers):
            if sidecar.kind is Kind.SIDECAR:
                await sidecar.stop(self.grace_s)

    async def _finished(self, container: Container) -> int:
        assert container.task is not None
        return await asyncio.shield(container.task)

    async def _prepare(self) -> None:
        """Tokens, volumes and links; waits for what is missing and says so."""
        while True:
            try:
                await asyncio.shield(self._supply.renew())
                self._volumes.sync()
                await asyncio.shield(self.links.sync())
                return
            except (ConfigError, ApiError, httpx.TransportError, OSError) as error:
                for container in self.containers:
                    container.waits("ContainerCreating", str(error))
            await asyncio.sleep(_RETRY_S)

    async def _end_containers(self) -> None:
        """Main containers together, then native sidecars, last one first."""
        main = [one for one in self.containers if one.kind is not Kind.SIDECAR]
        await asyncio.gather(*(one.stop(self.grace_s) for one in main))
        for sidecar in reversed(self.containers):
            if sidecar.kind is Kind.SIDECAR:
                await sidecar.stop(self.grace_s)

    async def _renew_tokens(self) -> None:
        while not await self._ends_within(_TOKEN_CHECK_S):
            with contextlib.suppress(ApiError, httpx.TransportError):  # tried again
                await self._supply.renew()
                await self.refresh()

    async def _ends_within(self, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        return self._ended.is_set()

    # --- status ---------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.key[0]}/pods/{self.key[1]}"

    async def _publish_for_ever(self) -> None:
        while not self._ended.is_set():
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._publish()
            except ApiError as error:
                if not gone(error):
                    raise
            except httpx.TransportError:
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def _publish(self) -> None:
        current = self._world.get("pods", *self.key) or self._pod
        views = [container.view for container in self.containers]
        policy = self._pod["spec"].get("restartPolicy", "Always")
        status = pod_status(views, current.get("status", {}), policy=policy, now=self.now())
        status |= self._fixed
        if status != self._published:
            body = {"metadata": {"uid": self.uid}, "status": status}
            await self._world.api.merge(f"{self._path}/status", body)
            self._published = status

    async def _report_end(self) -> None:
        """The last status, then the deletion that only a kubelet may confirm."""
        while not self._vanished.is_set():
            try:
                await self._publish()
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
                await self._world.api.call("DELETE", self._path, options)
                return
            except ApiError as error:
                if gone(error):
                    return
                raise
            except httpx.TransportError:
                await asyncio.sleep(_RETRY_S)


def gone(error: ApiError) -> bool:
    """The pod is no more, or another one has its name by now."""
    fields = [cause.get("field") for cause in error.causes]
    return error.code in _GONE or "metadata.uid" in fields


def _resolver(folder: Path) -> Path:
    """resolv.conf of a pod: no name server; a name that is not in its hosts is unknown at once."""
    path = folder / "resolv.conf"
    path.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    return path

"""Scheduler and kubelets of the harness in one loop: binds pods, runs them, provides volumes.

asyncio; ``Harness`` (``harness.py``) owns the thread it runs in. Must never contain what a test
asks for: faults are methods of ``Harness``.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import traceback
from typing import TYPE_CHECKING, Any, Final

import httpx

from e2e.api import ApiError
from e2e.node.claims import Claims
from e2e.node.names import Key, key_of
from e2e.node.nodes import node, node_status
from e2e.node.pods import Pod
from e2e.node.schedule import Unschedulable, choose
from e2e.node.states import stamp

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from e2e.node.world import World

Object = dict[str, Any]
_NODES: Final = "/api/v1/nodes"
_SETTLE_S: Final = 0.02  # changes come in bursts
_RESYNC_S: Final = 2.0
_PENDING: Final = ("", "Pending", "Running")


class Kubelet:
    """``run`` for ever; ``stop`` ends every pod's processes and removes the nodes."""

    def __init__(self, world: World, nodes: Sequence[str], gpus: int) -> None:
        self._world = world
        self._gpus = gpus
        self.hosts = {name: f"127.0.0.{10 + n}" for n, name in enumerate(nodes)}
        self._nodes: list[Object] = []
        self.pods: dict[str, Pod] = {}  # by uid
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._claims = Claims(world)
        self._tasks: list[asyncio.Task[None]] = []
        self.problems: list[str] = []  # what should never happen; the harness's end tells

    async def start(self) -> None:
        """Returns when the nodes are registered and everything is watched."""
        self._world.network.open()
        for name, address in self.hosts.items():
            self._nodes.append(await self._register(name, address))
        await self._claims.install()
        loop = asyncio.get_running_loop()
        runs = [informer.run() for informer in self._world.informers.values()]
        self._tasks = [loop.create_task(one) for one in [*runs, self._claims.run(), self._follow()]]
        for informer in self._world.informers.values():
            await informer.synced.wait()

    async def stop(self) -> None:
        """Kill what runs; the pods' objects stay, as on a cluster whose nodes were switched off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pod in self.pods.values():
            pod.vanish()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        with contextlib.suppress(ApiError, httpx.TransportError):
            await self._claims.uninstall()
            for name in self.hosts:
                await self._world.api.call("DELETE", f"{_NODES}/{name}")

    def find(self, key: Key) -> Pod:
        """A pod that runs here; KeyError names those that do."""
        for pod in self.pods.values():
            if pod.key == key:
                return pod
        known = ", ".join(f"{pod.key[0]}/{pod.key[1]}" for pod in self.pods.values())
        raise KeyError(f"pod {key[0]}/{key[1]} does not run here; these do: {known or 'none'}")

    # --- the loop -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Level-triggered: look at everything whenever something changed, and now and then."""
        changed = self._world.changed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC_S):
                    await changed.wait()
            await asyncio.sleep(_SETTLE_S)
            changed.clear()
            objects = self._world.all("pods")
            present = {one["metadata"]["uid"] for one in objects}
            for uid, pod in self.pods.items():
                if uid not in present:
                    pod.vanish()
            for one in objects:
                await self._tried(self._look_at(one))
            for pod in [*self.pods.values()]:
                await self._tried(pod.refresh())

    async def _tried(self, work: Coroutine[Any, Any, None]) -> None:
        """One pod's trouble is not another's."""
        try:
            await work
        except (ApiError, httpx.TransportError):
            return  # the API server restarts, or somebody was faster: looked at again
        except Exception:
            self.problems.append(traceback.format_exc())

    async def _look_at(self, one: Object) -> None:
        """Bind it, begin it, or tell its runner."""
        host = one["spec"].get("nodeName")
        uid = one["metadata"]["uid"]
        if uid in self.pods:
            self.pods[uid].update(one)
        elif host is None:
            await self._bind(one)
        elif host in self.hosts and one.get("status", {}).get("phase", "") in _PENDING:
            await self._begin(one, self.hosts[host])

    async def _begin(self, one: Object, host: str) -> None:
        uid = one["metadata"]["uid"]
        network = await self._world.network.join()
        pod = Pod(one, self._world, host, network)
        self.pods[uid] = pod
        pod.update(one)
        self._lives[uid] = asyncio.get_running_loop().create_task(self._live(pod))

    async def _live(self, pod: Pod) -> None:
        try:
            await pod.run()
        except Exception:
            self.problems.append(f"pod {pod.key}:\n{traceback.format_exc()}")
        finally:
            self.pods.pop(pod.uid, None)
            self._lives.pop(pod.uid, None)

    async def _bind(self, one: Object) -> None:
        """As a scheduler: a binding, or a condition that says why not."""
        namespace, name = key_of(one)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        bound = [pod for pod in self._world.all("pods") if pod["spec"].get("nodeName")]
        try:
            node_name = choose(one, self._nodes, bound)
        except Unschedulable as error:
            await self._say_unschedulable(one, path, str(error))
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": node_name}
        metadata = {"name": name, "uid": one["metadata"]["uid"]}
        await self._world.api.call(
            "POST", f"{path}/binding", {"metadata": metadata, "target": target}
        )
        one["spec"]["nodeName"] = node_name  # before the watch tells, for the next choice

    async def _say_unschedulable(self, one: Object, path: str, message: str) -> None:
        conditions = one.get("status", {}).get("conditions", [])
        if any(condition.get("message") == message for condition in conditions):
            return
        words = {"reason": "Unschedulable", "message": message, "lastTransitionTime": _now()}
        condition = {"type": "PodScheduled", "status": "False"} | words
        await self._world.api.merge(f"{path}/status", {"status": {"conditions": [condition]}})

    async def _register(self, name: str, address: str) -> Object:
        """A Node that is ready; one of an earlier harness is replaced."""
        with contextlib.suppress(ApiError):
            await self._world.api.call("DELETE", f"{_NODES}/{name}")
        await self._world.api.call("POST", _NODES, node(name, gpus=self._gpus))
        # The API server taints a new node; the controller that would remove the taint is off.
        await self._world.api.merge(f"{_NODES}/{name}", {"spec": {"taints": None}})
        status = node_status(name, address, _now(), gpus=self._gpus)
        return await self._world.api.merge(f"{_NODES}/{name}/status", {"status": status})


def _now() -> str:
    return stamp(dt.datetime.now(dt.UTC))

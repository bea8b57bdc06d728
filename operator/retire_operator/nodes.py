"""The sidecars of the node pods: one mutual-TLS channel each, calls with deadlines, their streams.

Owns channels and what nodes said of themselves; the pods come from pods.py. A node that is not
ready is still talked to: a lost registry is what makes it unready. Must never decide about a scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from retire.protocol.errors import RetireError, Unavailable
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from retire.sidecar.pb import node_pb2 as pb
    from retire_operator.pods import Pod
    from retire_operator.ports import Node

T = TypeVar("T")

_log = logging.getLogger("retire.operator")
_RECONNECT_S: Final = (0.1, 0.3, 1.0, 2.0)
_LINGER_S: Final = 30.0  # a replaced channel lets its running calls end
_FROM_THE_START: Final = 1  # a sequence number before every record that a node still has


class NoNode(Unavailable):
    """No node of the pool is ready."""

    code = "no_node"


@dataclass(slots=True)
class NodeHandle:
    """A node: its pod now, its channel, and what it said last."""

    pod: Pod
    client: Node
    boot_id: str = ""
    position: int = _FROM_THE_START  # in its stream of transitions
    following: asyncio.Task[None] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Of the pod, and of the node."""
        return self.pod.name


class SidecarPool:
    """Every node that runs. ``on_record`` hears each transition a node tells, ``on_change`` each
    pool whose nodes came, went, or must be listed again."""

    def __init__(
        self,
        connect: Callable[[str], Node],
        *,
        on_record: Callable[[pb.TransitionRecord], None],
        on_change: Callable[[str], None],
        call_timeout_s: float = 10.0,
    ) -> None:
        self._connect = connect  # host:port -> a client
        self._on_record = on_record
        self._on_change = on_change
        self._timeout_s = call_timeout_s
        self._handles: dict[str, NodeHandle] = {}
        self._lingering: dict[asyncio.Task[None], Node] = {}  # replaced, not closed yet

    def __iter__(self) -> Iterator[NodeHandle]:
        """Every running node, ready or not."""
        self._renew()
        return iter(tuple(self._handles.values()))

    def ready(self, pool: str) -> tuple[NodeHandle, ...]:
        """The ready nodes of a pool, by name."""
        found = (h for h in self if h.pod.ready and h.pod.pool == pool)
        return tuple(sorted(found, key=lambda handle: handle.name))

    def exists(self, pool: str) -> bool:
        """Whether any running pod carries the pool's label."""
        return any(handle.pod.pool == pool for handle in self._handles.values())

    def observe(self, pods: Iterable[Pod]) -> None:
        """The pods as they are now. A pod made anew, or at another address, is another node."""
        now = {pod.name: pod for pod in pods}
        changed: set[str] = set()
        for name, handle in tuple(self._handles.items()):
            pod = now.get(name)
            if pod is None or (pod.uid, pod.address) != (handle.pod.uid, handle.pod.address):
                self._drop(self._handles.pop(name))
                changed.add(handle.pod.pool)
        for pod in now.values():
            handle = self._handles.get(pod.name)
            if handle is None:
                self._handles[pod.name] = self._open(pod)
            if handle is None or handle.pod != pod:
                changed |= {pod.pool} | ({handle.pod.pool} if handle else set())
            if handle is not None:
                handle.pod = pod
        for pool in sorted(changed):
            self._on_change(pool)

    async def call(
        self,
        pool: str,
        work: Callable[[Node], Awaitable[T]],
        *,
        prefer: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> tuple[str, T]:
        """Do ``work`` on a ready node, the preferred ones first; on the next one when a node does
        not answer. The same idempotency key makes that safe. Returns the node's name too."""
        order = {name: at for at, name in enumerate(prefer)}
        nodes = sorted(self.ready(pool), key=lambda h: (order.get(h.name, len(order)), h.name))
        last: RetireError = NoNode(f"no node of pool {pool!r} is ready")
        for handle in nodes:
            try:
                return handle.name, await self.on(handle, work, timeout_s=timeout_s)
            except Unavailable as error:
                last = error
                _log.info("try another node", extra=fields(node=handle.name, why=error))
        raise last

    async def on(
        self,
        handle: NodeHandle,
        work: Callable[[Node], Awaitable[T]],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """The same on this node only; Unavailable when it does not answer in time."""
        limit_s = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await work(handle.client)
        except TimeoutError:
            raise Unavailable(f"node {handle.name} did not answer in {limit_s:g} s") from None

    def named(self, name: str) -> NodeHandle | None:
        """The running node of that name."""
        self._renew()
        return self._handles.get(name)

    async def close(self) -> None:
        """Close every channel."""
        for handle in self._handles.values():
            if handle.following is not None:
                handle.following.cancel()
        tasks = [h.following for h in self._handles.values() if h.following is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        lingering = dict(self._lingering)
        for task in lingering:
            task.cancel()
        await asyncio.gather(*lingering, return_exceptions=True)
        for client in (*lingering.values(), *(h.client for h in self._handles.values())):
            await client.close()
        self._handles.clear()

    def _open(self, pod: Pod) -> NodeHandle:
        handle = NodeHandle(pod, self._connect(pod.address))
        handle.following = asyncio.create_task(self._follow(handle), name=f"follow {pod.name}")
        return handle

    def _drop(self, handle: NodeHandle) -> None:
        if handle.following is not None:
            handle.following.cancel()
        self._close_later(handle.client)

    def _renew(self) -> None:
        """Certificates were rotated: new calls go over new channels."""
        for handle in self._handles.values():
            if handle.client.outdated:
                old, handle.client = handle.client, self._connect(handle.pod.address)
                self._close_later(old)

    def _close_later(self, client: Node) -> None:
        async def close() -> None:
            await asyncio.sleep(_LINGER_S)
            await client.close()

        task = asyncio.create_task(close(), name="close a channel")
        self._lingering[task] = client
        task.add_done_callback(lambda done: self._lingering.pop(done, None))

    async def _follow(self, handle: NodeHandle) -> None:
        """The node's transitions, from where the last stream ended; every loss lists again."""
        attempt = 0
        while True:
            began = handle.position
            with contextlib.suppress(RetireError):
                await self._read_status(handle)
                self._on_change(handle.pod.pool)
                async for record in _stream(handle):
                    handle.position = max(handle.position, record.sequence)
                    self._on_record(record)
            attempt = 0 if handle.position > began else attempt + 1
            await asyncio.sleep(_RECONNECT_S[min(attempt, len(_RECONNECT_S) - 1)])

    async def _read_status(self, handle: NodeHandle) -> None:
        reply = await self.on(handle, lambda node: node.status())
        if handle.boot_id and handle.boot_id != reply.boot_id:
            _log.info("node restarted", extra=fields(node=handle.name, boot_id=reply.boot_id))
        handle.boot_id = reply.boot_id


def _stream(handle: NodeHandle) -> AsyncIterator[pb.TransitionRecord]:
    return handle.client.watch("", after=handle.position)

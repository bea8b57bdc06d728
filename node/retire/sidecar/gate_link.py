"""The gate's side of its link: runs the sidecar's commands in an API process and answers them.

Must never import the server side or redis; decides nothing about versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from retire.protocol.errors import RetireError
from retire.sidecar import status
from retire.sidecar.lane import GateEnd
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = logging.getLogger(names.LOGGER_SIDECAR)
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - missing from the type stubs


class GateHandler(Protocol):
    """What an API process does when the sidecar commands it. Handlers may raise; the text is
    sent.
    """

    async def switch(self, command: pb.Switch) -> dict[str, int]:
        """End every stream of an older stamp; pass a barrier through the event loop; then return
        request id -> index of the last delivered output token (absent: none was)."""
        ...

    async def fence(self, command: pb.Fence) -> pb.Fenced:
        """Stop the engine's old work of the scope and return its receipts."""
        ...

    async def inspect(self, command: pb.Inspect) -> pb.InspectReply:
        """Live requests and pins of the scope in this engine."""
        ...

    async def warm(self, command: pb.Warm) -> pb.WarmDone:
        """Compute the KV of a context under the scope's current version, and say what it came to.
        An error of the tree that is raised here reaches the caller of Warm in its class."""
        ...

    def quota(self, command: pb.Quota) -> None:
        """The node's pin quota of a tenant changed."""
        ...


class GateLink:
    """One Attach stream, and the lane beside it when the sidecar offers one."""

    def __init__(
        self, call: Any, handler: GateHandler, on_welcome: Callable[[pb.Welcome], None]
    ) -> None:
        self._call = call
        self._handler = handler
        self._on_welcome = on_welcome
        self._writing = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._lane: GateEnd | None = None

    async def serve(self, gate: str) -> None:
        """Answer commands until the stream ends."""
        try:
            while (command := await self._call.read()) is not _EOF:
                match command.WhichOneof("body"):
                    case "welcome":
                        self._on_welcome(command.welcome)
                        if command.welcome.lane:
                            self._spawn(self._connect(gate, command.welcome.lane))
                    case "quota":
                        self._handler.quota(command.quota)
                    case _:
                        self._spawn(self._answer(command))
        finally:
            if self._lane is not None:
                self._lane.close()
            for task in tuple(self._running):
                task.cancel()
            self._call.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _connect(self, gate: str, path: str) -> None:
        """Take the lane; without it every command comes over the stream."""
        loop = asyncio.get_running_loop()
        try:
            _, self._lane = await loop.create_unix_connection(
                lambda: GateEnd(gate, self._answer_on_lane), path
            )
        except OSError as error:
            _log.info("no lane to the sidecar", extra=fields(path=path, why=error))

    def _answer_on_lane(
        self, command: pb.GateCommand, send: Callable[[pb.GateReport], None]
    ) -> None:
        async def answer() -> None:
            report = await self._handled(command)
            if report is not None:
                send(report)

        self._spawn(answer())

    async def _answer(self, command: pb.GateCommand) -> None:
        report = await self._handled(command)
        if report is None:
            return
        # One message at a time on a gRPC stream; a broken one is the reader's to notice.
        async with self._writing:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.write(report)

    async def _handled(self, command: pb.GateCommand) -> pb.GateReport | None:
        """Run one command. A failed Switch is not acked: the sidecar waits out the lease."""
        number = command.command
        kind = command.WhichOneof("body")
        try:
            match kind:
                case "switch":
                    last = await self._handler.switch(command.switch)
                    return pb.GateReport(
                        switch_ack=pb.SwitchAck(command=number, last_published_index=last)
                    )
                case "fence":
                    fenced = await self._handler.fence(command.fence)
                    return pb.GateReport(fence=pb.FenceReply(command=number, fenced=fenced))
                case "inspect":
                    reply = await self._handler.inspect(command.inspect)
                    reply.command = number
                    return pb.GateReport(inspect=reply)
                case "warm":
                    done = await self._handler.warm(command.warm)
                    done.command = number
                    return pb.GateReport(warm=done)
        except RetireError as error:
            _log.warning("command refused", extra=fields(command=kind, why=error))
            text = f"{type(error).__name__}: {error}"
            text = status.encode(error).decode() if kind == "warm" else text
            return _failed(kind, number, text)
        except Exception as error:
            _log.exception("command failed", extra=fields(command=kind))
            return _failed(kind, number, f"{type(error).__name__}: {error}")
        return None


def _failed(kind: str | None, number: int, text: str) -> pb.GateReport | None:
    if kind == "fence":
        return pb.GateReport(fence=pb.FenceReply(command=number, error=text))
    if kind == "inspect":
        return pb.GateReport(inspect=pb.InspectReply(command=number, error=text))
    if kind == "warm":
        return pb.GateReport(warm=pb.WarmDone(command=number, error=text))
    return None

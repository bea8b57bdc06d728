"""Services as one pod sees them: a TCP forwarder for each, at an address of the pod's own.

So one pod can be cut off from one service, and nobody else. A cut is silent, as a network partition
is: connections stay, nothing arrives. Owns its listeners and their connections; must never know
what passes through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

Address = tuple[str, int]
_CHUNK: Final = 65536
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST, as a refused connection looks


class Forwarder:
    """One service port. ``target`` names a backend for each new connection, None: there is none."""

    def __init__(self, listen: Address, target: Callable[[], Address | None]) -> None:
        self._listen, self._target = listen, target
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; OSError when the address is taken."""
        self._server = await asyncio.start_server(self._serve, *self._listen)

    def cut(self) -> None:
        """Nothing passes from now on; what was sent waits."""
        self._open.clear()

    def heal(self) -> None:
        """Everything passes again."""
        self._open.set()

    async def stop(self) -> None:
        """Ends every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._open.wait()
            if (address := self._target()) is None:
                _reset(writer)
                return
            try:
                behind, to_backend = await asyncio.open_connection(*address)
            except OSError:
                _reset(writer)
                return
            try:
                await self._relay(reader, to_backend, behind, writer)
            finally:
                to_backend.close()
        finally:
            writer.close()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        to_backend: asyncio.StreamWriter,
        behind: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Both directions until both have ended, or one broke."""
        ways = [
            asyncio.ensure_future(self._pump(reader, to_backend)),
            asyncio.ensure_future(self._pump(behind, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            await self._open.wait()
            sink.write(data)
            await sink.drain()
        await self._open.wait()
        with contextlib.suppress(OSError):  # the other side has gone as well
            sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()

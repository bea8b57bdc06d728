"""The short way between sidecar and gate: commands and their answers over a plain Unix socket.

One gRPC message costs each side a tenth of a millisecond of Python; this costs a hundredth, and a
Switch to 64 processes is one encoded frame, written 64 times. Same messages as on the Attach
stream,
which stays the link: a gate without a lane gets its commands there, and what a broken lane left
unanswered is asked there again. Both ends live here. Must never decide anything.
"""

from __future__ import annotations

import asyncio
import os
import struct
from typing import TYPE_CHECKING, Final, cast

from retire.sidecar.pb import node_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

    from retire.sidecar.links import Link, Links

_LENGTH: Final = struct.Struct(">I")
FRAME_MAX: Final = 4 * 2**20  # bytes; an ack names every live request of a scope


def frame(message: Message) -> bytes:
    """The wire form: length, then the message."""
    body = message.SerializeToString()
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a byte stream into message bodies."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies completed by ``data``; ValueError for a frame that no peer of ours sends."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > FRAME_MAX:
                raise ValueError(f"frame of {size} bytes")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body


class _End(asyncio.Protocol):
    """What both ends share: the transport and the frames."""

    def __init__(self) -> None:
        self._frames = Frames()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take whole frames; anything else ends the lane, never the link."""
        try:
            for body in self._frames.feed(data):
                self.take(body)
        except ValueError:  # DecodeError is one
            self.close()

    def take(self, body: bytes) -> None:
        """One message."""
        raise NotImplementedError

    def close(self) -> None:
        """End the lane."""
        if self.transport is not None:
            self.transport.close()


class SidecarEnd(_End):
    """The sidecar's end of one gate's lane."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self._links = links
        self._link: Link | None = None

    def write(self, encoded: bytes) -> None:
        """Send one frame."""
        if self.transport is not None:
            self.transport.write(encoded)

    def take(self, body: bytes) -> None:
        """First the gate's name, then answers."""
        report = pb.GateReport.FromString(body)
        if self._link is not None:
            self._links.receive(self._link, report)
            return
        self._link = self._links.find(report.hello.gate)
        if self._link is None:
            self.close()
        else:
            self._link.lane = self

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever was asked here and not answered is asked again on the stream."""
        del exc
        if self._link is not None and self._link.lane is self:
            self._link.lane = None
            self._links.ask_again(self._link)


class GateEnd(_End):
    """An API process's end: ``answer(command, send)`` runs each command."""

    def __init__(
        self, gate: str, answer: Callable[[pb.GateCommand, Callable[[pb.GateReport], None]], None]
    ) -> None:
        super().__init__()
        self._gate = gate
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who it is."""
        super().connection_made(transport)
        self._send(pb.GateReport(hello=pb.Hello(gate=self._gate)))

    def take(self, body: bytes) -> None:
        """One command."""
        self._answer(pb.GateCommand.FromString(body), self._send)

    def _send(self, report: pb.GateReport) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame(report))


async def listen(links: Links, path: Path) -> asyncio.Server:
    """Serve lanes at ``path``, for this user only."""
    path.unlink(missing_ok=True)
    previous = os.umask(0o177)
    try:
        return await asyncio.get_running_loop().create_unix_server(
            lambda: SidecarEnd(links), str(path)
        )
    finally:
        os.umask(previous)

"""A real uvicorn server around our guard, a real mailbox, a client that may stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from retire.engine.asgi import PublicationGuard
from retire.engine.publication import CURRENT, Ended, Publication, Publications
from retire.engine.tag import Tag
from retire.mailbox import MailboxView, MailboxWriter
from retire.protocol.versions import Authority, ScopeKey, Version

KEY = ScopeKey("default", "plan")
V1 = Version(1, 4)
V2 = Version(1, 5)


@dataclass
class Node:
    """One API process's gates over one mailbox; the test plays the sidecar."""

    writer: MailboxWriter
    view: MailboxView
    publications: Publications
    aborted: list[list[str]] = field(default_factory=list)

    def tag(self, version: Version = V1, key: ScopeKey = KEY) -> Tag:
        """A tag as the sidecar would hand it out."""
        return Tag(Authority(key, version, 1), self.writer.open(key, version))

    def advance(self, version: Version = V2) -> None:
        """The store that closes every gate of a lower version."""
        slot = self.writer.find(KEY)
        assert slot is not None
        self.writer.advance(slot.index, version)

    def switch(self, why: Ended = Ended.SUPERSEDED) -> dict[str, int]:
        """What the link does on a Switch; its return is the ack."""
        return self.publications.switch(KEY, V2, why)

    def lease(self, held: bool) -> None:
        """Give or take the publish lease."""
        self.writer.renew(2**62 if held else 0)


@contextlib.contextmanager
def node_at(folder: Path, *, hold_s: float = 30.0) -> Iterator[Node]:
    """A node with a held lease."""
    writer = MailboxWriter.create(folder / "mailbox", capacity=64)
    view = MailboxView.attach(folder / "mailbox")
    aborted: list[list[str]] = []

    async def abort(ids: list[str]) -> None:
        aborted.append(ids)

    made = Node(writer, view, Publications(hold_s=hold_s, abort=abort), aborted)
    made.lease(held=True)
    yield made
    view.detach()
    writer.detach()


class StreamingApp:
    """Streams numbered events, as an OpenAI stream does; ``handed`` counts those ``send`` took."""

    def __init__(self, node: Node, frames: int, *, size: int = 0, pause_s: float = 0.0) -> None:
        self.node = node
        self.frames = frames
        self.pad = "x" * size
        self.pause_s = pause_s
        self.handed = 0
        self.finished = asyncio.Event()
        self.publication: Publication | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One response."""
        self.publication = CURRENT.get()
        if self.publication is not None:
            self.publication.bind(self.node.tag(), self.node.view)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(self.frames):
            event = {"n": number, "pad": self.pad, "choices": [{"index": 0}]}
            body = b"data: " + json.dumps(event).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self.handed += 1
            await asyncio.sleep(self.pause_s)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        self.finished.set()


@contextlib.asynccontextmanager
async def serving(node: Node, app: Any, http: str = "httptools") -> AsyncIterator[int]:
    """Serve ``app`` behind the guard on a free port."""
    names = frozenset((b"x-retire-scope",))
    guarded = PublicationGuard(app, lambda: node.publications, names)
    async with listening(guarded, http) as port:
        yield port


@contextlib.asynccontextmanager
async def listening(app: Any, http: str = "httptools") -> AsyncIterator[int]:
    """Serve any application on a free port."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=http, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


class SlowReader:
    """A client with a tiny receive buffer that reads only when told."""

    def __init__(self, port: int) -> None:
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sock.connect(("127.0.0.1", port))
        self._sock.setblocking(False)

    async def request(self, headers: str = "x-retire-scope: plan\r\n") -> None:
        """Send one POST."""
        text = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: 0\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(self._sock, text.encode())

    async def read_to_end(self, quiet_s: float = 0.5) -> bytes:
        """Everything until the server closes or says nothing for ``quiet_s``."""
        received = bytearray()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while chunk := await asyncio.wait_for(loop.sock_recv(self._sock, 1 << 20), quiet_s):
                received += chunk
        return bytes(received)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def events(raw: bytes) -> list[dict[str, Any]]:
    """The JSON events of a chunked HTTP/1.1 event stream, in order."""
    _, _, body = raw.partition(b"\r\n\r\n")
    text = bytearray()
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        text += rest[:length]
        body = rest[length + 2 :]
    found = [line[6:] for line in bytes(text).split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in found if line != b"[DONE]"]


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition of the test's own state."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def stalled(app: StreamingApp, quiet_s: float = 0.3) -> int:
    """Wait until the socket takes no more frames; returns how many it took."""
    seen = -1
    while seen != app.handed or not seen:
        seen = app.handed
        await asyncio.sleep(quiet_s)
    return seen

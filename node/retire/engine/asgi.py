"""G6, the last gate: every frame of a scope is checked at the moment it is handed to the transport.

Owns the outermost ASGI wrapper and the guard around the server's own ``send``. Must never import
vLLM or decide a version: it asks the publication.

Why here, and why we wait for the drain ourselves: uvicorn's ``RequestResponseCycle.send`` first
awaits ``flow.drain()`` while the socket is paused by a slow reader and only *then* writes
(uvicorn/protocols/http/httptools_impl.py and h11_impl.py). A frame that was checked before that
await could reach the transport long after the SUPERSEDE was acknowledged. So the guard waits for
the drain, then checks the mailbox, then calls the server's ``send``, which does not suspend on a
writable socket: there is no await between the check and ``transport.write``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from retire.engine import unfenceable
from retire.engine.headers import ROUTES
from retire.engine.publication import CURRENT, End, Ended, Publication
from retire.engine.replies import NO_RETRY, NO_SIDECAR, send_error
from retire.mailbox import GateState
from retire.protocol.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from retire.engine.publication import Publications

    Message = MutableMapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]
    Receive = Callable[[], Awaitable[Message]]
    Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_log = logging.getLogger("retire.engine")

POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1
VERSION_HEADER: Final = b"x-retire-version"
_EVENT_STREAM: Final = b"text/event-stream"
_FRAME_HEAD: Final = b"data: {"
_FRAME_TAIL: Final = b"}\n\n"
_NO_RETRY: Final = next((name.encode(), value.encode()) for name, value in NO_RETRY.items())


class PublicationGuard:
    """The outermost ASGI application: a guarded ``send`` for calls that may carry scoped tokens."""

    def __init__(
        self, app: Asgi, publications: Callable[[], Publications | None], names: frozenset[bytes]
    ) -> None:
        self._app = app
        self._publications = publications
        self._names = names  # headers that make a call a scope's

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass an untagged call through untouched (one scan of its headers)."""
        if scope["type"] == "http" and self._concerns(scope):
            await self._guarded(scope, receive, send)
        elif scope["type"] == "websocket" and self._concerns(scope):
            await refuse_websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _concerns(self, scope: MutableMapping[str, Any]) -> bool:
        names = self._names
        for header in scope["headers"]:  # a loop: any() over a generator costs three times as much
            if header[0] in names:
                return True
        return ROUTES in scope["path"]

    async def _guarded(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        publications = self._publications()
        if publications is None:  # never serve a scope as if it were plain: nothing would be gated
            await send_error(send, Unavailable(NO_SIDECAR))
            return
        publication = publications.open()
        guard = GuardedSend(publication, send)
        token = CURRENT.set(publication)
        try:
            await self._app(scope, receive, guard)
        except Exception:
            if publication.ended is None:
                raise
            _log.debug("the application failed after its version was retired", exc_info=True)
        finally:
            CURRENT.reset(token)
            publication.discard()
        if publication.ended is not None:
            await guard.closed.wait()  # the server takes our return for the end of the response


async def refuse_websocket(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Answer the handshake with the error; where the server cannot, close before it is accepted."""
    await receive()  # websocket.connect
    error = unfenceable.refuse_websocket(scope["path"])
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
        return

    async def denied(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await send_error(denied, error)


class GuardedSend:
    """``send`` of one response. Also writes the terminal event, once, when the publication ends."""

    def __init__(self, publication: Publication, send: Send) -> None:
        self._publication = publication
        self._send = send
        self._cycle = getattr(send, "__self__", None)  # uvicorn's RequestResponseCycle
        self._flow = getattr(self._cycle, "flow", None)  # its uvicorn FlowControl
        self._head: Message | None = None  # the head of a non-streaming response, held back
        self._started = False
        self._complete = False
        self._splice = b""
        self.closed = asyncio.Event()  # the terminal event is written, or there is none to write
        publication.on_end = self._finish

    async def __call__(self, message: Message) -> None:
        """Publish one ASGI message of the application, or drop it."""
        if self._complete or (self._publication.ended is not None and self._gated()):
            return  # the terminal event is, or will be, the last thing this response says
        if message["type"] == "http.response.start":
            await self._start(message)
            return
        if self._head is not None:
            head, self._head = self._head, None
            if not await self._publish(head):
                return
        if not self._blocked() and self._open():
            await self._write(message)  # the hot path: the same check, no task switch
        else:
            await self._publish(message)

    async def _start(self, message: Message) -> None:
        if self._publication.tag is None:
            await self._write(message)
            return
        message = self._versioned(message)
        if not _is_event_stream(message):
            self._head = message  # a stale result can still become a 409
            return
        if await self._publish(message):
            self._publication.streaming = True

    def _versioned(self, head: Message) -> Message:
        tag = self._publication.tag
        assert tag is not None
        version = str(tag.version).encode()
        self._splice = b',"retire":{"version":"' + version + b'"}}\n\n'
        return {**head, "headers": [*head.get("headers", ()), (VERSION_HEADER, version)]}

    async def _publish(self, message: Message) -> bool:
        while True:
            await self._drained()
            if self._open():
                await self._write(message)  # runs to transport.write without suspending
                return True
            if self._publication.ended is not None or not await self._publication.held():
                return False

    def _open(self) -> bool:
        """The check. Nothing may be awaited between it and the write."""
        return not self._gated() or self._publication.gate() is GateState.OPEN

    def _gated(self) -> bool:
        """False while a receipt is written: it carries no token, and C8 promises it in any case."""
        return self._publication.preamble.is_set()

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            await self._send(message)
            return
        self._complete = not message.get("more_body", False)
        await self._send(self._stamped(message) if self._publication.streaming else message)
        self._publication.wrote(message.get("body", b""), complete=self._complete)

    def _stamped(self, message: Message) -> Message:
        """Put the version into an event's JSON, by splicing bytes before its last brace."""
        body = message.get("body", b"")
        if body.startswith(_FRAME_HEAD) and body.endswith(_FRAME_TAIL) and self._splice:
            return {**message, "body": body[: -len(_FRAME_TAIL)] + self._splice}
        return message

    async def _drained(self) -> None:
        """Wait until the socket takes data (at once where the server shows no flow control)."""
        while self._blocked():
            await self._flow.drain()  # type: ignore[union-attr]

    def _blocked(self) -> bool:
        """Whether the server would wait for a slow reader before it writes."""
        flow = self._flow
        return flow is not None and flow.write_paused and not self._cycle.disconnected  # type: ignore[union-attr]

    async def _finish(self) -> None:
        """Write the terminal event and close; a task of its own, so no gate waits for it."""
        try:
            await self._write_terminal()
        finally:
            self.closed.set()

    async def _write_terminal(self) -> None:
        publication = self._publication
        end = await publication.end_reason()
        await publication.preamble.wait()
        if self._started and not publication.streaming:
            self._abort_connection()
            return
        await self._drained()
        if self._complete:
            return
        self._complete = True
        body = json.dumps(terminal(publication, end), separators=(",", ":")).encode()
        if not self._started:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"retry-after", b"1") if end.why is Ended.UNAVAILABLE else _NO_RETRY,
            ]
            status = _STATUS[end.why]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._drained()
            await self._send({"type": "http.response.body", "body": body})
        else:
            await self._send({"type": "http.response.body", "body": b"data: " + body + b"\n\n"})

    def _abort_connection(self) -> None:
        """A whole answer was cut between head and body: only a broken connection is honest."""
        transport = getattr(self._cycle, "transport", None)
        if self._complete:
            return
        if transport is not None:
            transport.abort()
        else:
            _log.error("a superseded response could not be closed: unknown server")


_STATUS: Final = {Ended.SUPERSEDED: 409, Ended.CANCELLED: 409, Ended.UNAVAILABLE: 503}


def terminal(publication: Publication, end: End) -> dict[str, Any]:
    """The JSON of a terminal event (design, section 5)."""
    tag = publication.tag
    assert tag is not None
    published = publication.last_published()
    error: dict[str, Any] = {
        "code": end.why.value,
        "type": "unavailable" if end.why is Ended.UNAVAILABLE else "conflict",
        "message": _message(publication, end),
        "scope": tag.key.scope,
        "version": str(tag.version),
        "current": str(end.current) if end.current else None,
        "last_published_index": max(published.values(), default=None),
        "usage": publication.usage(),
    }
    if len(published) > 1:
        error["published"] = published
    if end.why is Ended.UNAVAILABLE:
        error["retry_after_s"] = 1
    return {"error": error} if publication.streaming else {"error": error, **publication.extra}


def _message(publication: Publication, end: End) -> str:
    assert publication.tag is not None
    scope, version = publication.tag.key.scope, publication.tag.version
    match end.why:
        case Ended.SUPERSEDED:
            now = f"; current is {end.current}" if end.current else ""
            return f"scope {scope!r}: version {version} was superseded{now}"
        case Ended.CANCELLED:
            return f"scope {scope!r} was cancelled; use another scope name"
        case Ended.UNAVAILABLE:
            return f"scope {scope!r}: the node's publish lease ended and did not come back; retry"


def _is_event_stream(head: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(_EVENT_STREAM)
        for name, value in head.get("headers", ())
    )

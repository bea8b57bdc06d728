"""A real HTTP server on a thread that plays recorded bytes and keeps what it was sent."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

SSE = {"content-type": "text/event-stream; charset=utf-8"}
BREAK = object()  # a piece: cut the connection here


@dataclass
class Answer:
    """One response: pieces are bytes to send, an Event to wait for, or BREAK."""

    pieces: list[Any]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE))


@dataclass
class Got:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may hang up
            super().handle_error(request, client_address)


class Playback:
    """Answers are played in order, per path."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self._answers: dict[str, deque[Answer]] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.play(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, path: str, *answers: Answer) -> None:
        self._answers.setdefault(path, deque()).extend(answers)

    def add_json(self, path: str, body: Any, status: int = 200, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = json.dumps(body).encode()
        self.add(path, Answer([raw], status, {"content-type": "application/json", **named}))

    def play(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers.get("content-length") or 0)
        body = json.loads(handler.rfile.read(size)) if size else None
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.got.append(Got(handler.command, handler.path, headers, body))
        answer = self._answers[handler.path].popleft()
        if answer.pieces[:1] == [BREAK]:
            handler.connection.close()
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for piece in answer.pieces:
            if piece is BREAK:
                handler.wfile.flush()
                handler.connection.shutdown(2)
                handler.close_connection = True
                return
            if isinstance(piece, threading.Event):
                piece.wait(10)
                continue
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Playback]:
    """A fresh server without answers."""
    playback = Playback()
    yield playback
    playback.close()


def event(body: Any, name: str = "") -> bytes:
    """One SSE event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()


def chunk(text: str, version: str) -> bytes:
    """A chat chunk as the server sends it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return event(
        {"object": "chat.completion.chunk", "choices": [choice], "retire": {"version": version}}
    )


def receipt(old: str, new: str, **changes: Any) -> dict[str, Any]:
    """A receipt's JSON."""
    return {
        "schema": 1, "tenant": "default", "scope": "plan-7", "from_version": old, "to_version": new,
        "stages_ms": {"commit": 0.4, "unpublishable": 1.2}, "gates": [], "participants": [],
        "requests": [], "residual_ms": None, "fence": None,
        "frontier_tokens": 64, "inheritable_tokens": 50,
        "certified_tokens": 48, "first_difference": 50, "stop_reason": "block_boundary",
        "pin": None, "successor_request_id": "r2", "error": None, "trace_id": None,
        "replayed": False, "extra": {},
        **changes,
    }  # fmt: skip


def superseded(version: str, current: str, last: int | None) -> bytes:
    """The terminal event of a superseded stream."""
    error = {
        "code": "superseded", "type": "conflict", "message": "superseded", "version": version,
        "current": current, "last_published_index": last,
    }  # fmt: skip
    return event({"error": error})


DONE = event("[DONE]")


class Play:
    """What tests build answers from (a fixture, since test folders are no packages)."""

    Answer = Answer
    BREAK = BREAK
    DONE = DONE
    event = staticmethod(event)
    chunk = staticmethod(chunk)
    receipt = staticmethod(receipt)
    superseded = staticmethod(superseded)

    @staticmethod
    def successor(old: str, new: str, *texts: str) -> Answer:
        """A whole streamed answer to SUPERSEDE."""
        head = event(receipt(old, new), "retire.receipt")
        return Answer([head, *(chunk(text, new) for text in texts), DONE])


@pytest.fixture
def play() -> type[Play]:
    """Builders of answers."""
    return Play

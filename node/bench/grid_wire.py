"""HTTP/1.1 calls on their own sockets, read by hand: what a consumer sees, and in which order.

One thread reads all connections of a cell, so that "after the receipt" has one meaning: everything
that a socket held when the receipt was read came before it. Must never judge what it reads.
"""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import h11

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RECEIVE_BYTES: Final = 1 << 16
POLL_S: Final = 0.001
RECEIPT: Final = "retire.receipt"


class Stuck(Exception):
    """What was waited for did not come in time."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; ``body`` is its JSON object, empty for ``[DONE]``."""

    name: str
    data: str
    body: Mapping[str, Any]

    @classmethod
    def of(cls, block: bytes) -> Event:
        """Read the lines of one event."""
        fields = [line.partition(": ") for line in block.decode().split("\n")]
        named = {name: value for name, _, value in fields}
        data = named.get("data", "")
        body = json.loads(data) if data.startswith("{") else {}
        return cls(named.get("event", "message"), data, body)

    @property
    def tokens(self) -> list[int]:
        """Output tokens that a completion chunk carries."""
        choices = self.body.get("choices") or [{}]
        return choices[0].get("token_ids") or []


@dataclass(slots=True)
class Call:
    """What to send."""

    path: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"


class Connection:
    """One call: its status, its events or body so far, and whether it is over."""

    def __init__(self, url: str, call: Call) -> None:
        parts = urlsplit(url)
        self._sock = socket.create_connection((parts.hostname, parts.port), timeout=5.0)
        self._http = h11.Connection(h11.CLIENT)
        self._text = b""
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.events: list[Event] = []
        self.body = b""
        self.ended = False
        self.broken = ""  # why, when it ended before the response did
        self._send(call, parts.netloc)
        self._sock.setblocking(False)

    # --- reading --------------------------------------------------------------------------------

    def fileno(self) -> int:
        """For ``select``."""
        return self._sock.fileno()

    def drain(self) -> None:
        """Read all that the socket holds now."""
        while not self.ended:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(type(error).__name__)
                return
            self._feed(data)

    def hang_up(self) -> None:
        """Close the socket, as a consumer that leaves."""
        self.ended = True
        self._sock.close()

    @property
    def streaming(self) -> bool:
        """The response is an event stream."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def tokens(self) -> list[int]:
        """Every output token so far."""
        return [token for event in self.events for token in event.tokens]

    @property
    def text(self) -> str:
        """The text so far."""
        choices = [event.body.get("choices") or [{}] for event in self.events]
        return "".join(choice[0].get("text") or "" for choice in choices)

    @property
    def done(self) -> bool:
        """The stream ended as a complete one does."""
        return any(event.data == "[DONE]" for event in self.events)

    @property
    def receipt(self) -> Mapping[str, Any] | None:
        """The receipt: the stream's first event, or in the whole answer."""
        for event in self.events:
            if event.name == RECEIPT:
                return event.body
        return self.json.get("receipt") if self.ended and not self.streaming else None

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Error events of the stream, or the error of the whole answer."""
        bodies = [event.body for event in self.events] if self.streaming else [self.json]
        return [body["error"] for body in bodies if body.get("error")]

    @property
    def json(self) -> dict[str, Any]:
        """The whole answer, once it is here."""
        return json.loads(self.body) if self.ended and self.body else {}

    # --- the protocol ---------------------------------------------------------------------------

    def _send(self, call: Call, host: str) -> None:
        raw = b"" if call.body is None else json.dumps(call.body).encode()
        headers = {"host": host, "content-length": str(len(raw)), "connection": "close"}
        headers |= {"content-type": "application/json", **call.headers}
        request = h11.Request(method=call.method, target=call.path, headers=list(headers.items()))
        parts = [self._http.send(request), self._http.send(h11.Data(data=raw))]
        self._sock.sendall(b"".join(p for p in (*parts, self._http.send(h11.EndOfMessage())) if p))

    def _feed(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while not self.ended:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            self._end(str(error))

    def _take(self, event: Any) -> None:
        match event:
            case h11.Response():
                self.status = event.status_code
                self.headers = {name.decode(): value.decode() for name, value in event.headers}
            case h11.Data():
                self._text += bytes(event.data)
                if self.streaming:
                    self._split()
            case h11.EndOfMessage():
                self.body = self._text
                self._end("")
            case h11.ConnectionClosed():
                self._end("closed before the response was complete")

    def _split(self) -> None:
        *whole, self._text = self._text.split(b"\n\n")
        self.events += [Event.of(block) for block in whole]

    def _end(self, broken: str) -> None:
        self.broken = broken
        self.ended = True
        self._sock.close()


def pump(
    connections: Sequence[Connection], until: Callable[[], bool], *, timeout_s: float, what: str
) -> None:
    """Read the connections, first one first, until ``until`` holds. Stuck, naming ``what``.

    ``until`` is asked after each read, so it sees every connection's progress at once.
    """
    deadline_s = time.monotonic() + timeout_s
    while not until():
        if time.monotonic() >= deadline_s:
            raise Stuck(f"{what}: not within {timeout_s:g} s")
        open_ones = [one for one in connections if not one.ended]
        if not open_ones:
            time.sleep(POLL_S)
            continue
        ready, _, _ = select.select(open_ones, [], [], POLL_S)
        for one in connections:
            if one in ready:
                one.drain()
                if until():
                    return

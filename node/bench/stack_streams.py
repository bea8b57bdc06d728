"""Streams and calls against a running stack, as a client without our package would make them.

A :class:`Flow` reads one stream in a thread and keeps every event with its time of arrival.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.stack import Stack

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event."""

    at_s: float  # time.monotonic() when it was read
    event: str  # "message" when the server named none
    body: Mapping[str, Any] | None  # None: [DONE]

    @property
    def tokens(self) -> int:
        """Output tokens in it, of all choices."""
        choices = (self.body or {}).get("choices", ())
        return sum(len(choice.get("token_ids") or ()) for choice in choices)

    @property
    def version(self) -> str | None:
        """The version that the server stamped on it."""
        return ((self.body or {}).get("retire") or {}).get("version")


def frames_of(lines: Iterator[str]) -> Iterator[Frame]:
    """Events of an SSE body, a blank line ending each."""
    event = "message"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            body = None if value == "[DONE]" else json.loads(value)
            yield Frame(time.monotonic(), event, body)
            event = "message"


def streamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an OpenAI call, made to stream and to show token ids."""
    return {**body, "stream": True, "return_token_ids": True}


class Flow:
    """One streamed call, read as fast as it comes. ``body`` is sent as it is."""

    def __init__(
        self,
        stack: Stack,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        path: str = COMPLETIONS,
    ) -> None:
        self.frames: list[Frame] = []
        self.status = 0
        self.broken: Exception | None = None  # the connection ended without an end of the body
        self.over = False
        self._changed = threading.Condition()
        self._client = httpx.Client(base_url=stack.url, timeout=httpx.Timeout(120.0, connect=10.0))
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(
            target=self._read, args=(path, dict(body), dict(headers or {})), daemon=True
        )
        self._thread.start()

    def _read(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            with (
                self._client,
                self._client.stream("POST", path, json=body, headers=headers) as answer,
            ):
                self._socket = answer.extensions["network_stream"].get_extra_info("socket")
                self.status = answer.status_code
                if answer.headers["content-type"].startswith("text/event-stream"):
                    for frame in frames_of(answer.iter_lines()):
                        self._add(frame)
                else:
                    answer.read()
                    self._add(Frame(time.monotonic(), "message", answer.json()))
        except httpx.HTTPError as error:
            self.broken = error
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _add(self, frame: Frame) -> None:
        with self._changed:
            self.frames.append(frame)
            self._changed.notify_all()

    def until(self, condition: Callable[[Flow], bool], timeout_s: float = 60.0) -> Flow:
        """Wait for a condition; AssertionError with what was read when it does not come true."""
        with self._changed:
            met = self._changed.wait_for(lambda: condition(self) or self.over, timeout_s)
        assert met and condition(self), f"not within {timeout_s:g} s; {self!r}"
        return self

    def tokens_at_least(self, count: int, timeout_s: float = 60.0) -> Flow:
        """Wait for output tokens."""
        return self.until(lambda flow: flow.tokens >= count, timeout_s)

    def ended(self, timeout_s: float = 120.0) -> Flow:
        """Wait for the end of the body."""
        return self.until(lambda flow: flow.over, timeout_s)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None and not self.over:
            with contextlib.suppress(OSError):  # it has just ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)

    @property
    def tokens(self) -> int:
        """Output tokens read so far."""
        return sum(frame.tokens for frame in tuple(self.frames))

    @property
    def last_token_s(self) -> float:
        """When the last token was read; 0.0 when none was."""
        return max((f.at_s for f in tuple(self.frames) if f.tokens), default=0.0)

    @property
    def done(self) -> bool:
        """The stream ended with its end mark."""
        return any(frame.body is None for frame in self.frames)

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error event, which must be the last."""
        bodies = [f.body for f in self.frames if f.body and f.event == "message"]
        found = [body["error"] for body in bodies if "error" in body]
        assert not found or (len(found) == 1 and "error" in bodies[-1]), self.frames[-3:]
        if not found:
            return None
        return found[0]

    @property
    def receipt(self) -> Mapping[str, Any]:
        """The first event of a SUPERSEDE."""
        assert self.frames and self.frames[0].event == "retire.receipt", self.frames[:2]
        assert self.frames[0].body is not None
        return self.frames[0].body

    def gaps_s(self, since_s: float, until_s: float) -> float:
        """The longest silence between tokens within a span of time."""
        times = [f.at_s for f in self.frames if f.tokens and since_s <= f.at_s <= until_s]
        edges = [since_s, *times, until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(edges))

    def __repr__(self) -> str:
        last = self.frames[-1].body if self.frames else None
        return f"Flow(tokens={self.tokens}, over={self.over}, broken={self.broken!r}, last={last})"


@dataclass(frozen=True, slots=True)
class Agent:
    """One scope of one tenant, driven over plain HTTP."""

    stack: Stack
    scope: str
    tenant: str = "default"

    @classmethod
    def new(cls, stack: Stack, name: str, tenant: str = "default") -> Self:
        """A scope that nobody has used."""
        return cls(stack, f"{name}-{uuid.uuid4().hex[:8]}", tenant)

    @property
    def headers(self) -> dict[str, str]:
        """The tag of an OpenAI call."""
        return self.stack.headers(self.scope, self.tenant)

    def stream(self, prompt: str | Sequence[int], **params: Any) -> Flow:
        """A tagged completion stream."""
        body = self.stack.body(_plain(prompt), **params)
        return Flow(self.stack, streamed(body), self.headers)

    def opened(self) -> str:
        """Open the scope with one token; its version."""
        self.stack.complete("open", self.headers, max_tokens=1)
        return self.version

    @property
    def version(self) -> str:
        """As the server has it."""
        return self.view()["version"]

    def view(self) -> dict[str, Any]:
        """GET /v1/scopes/{scope}."""
        return self.stack.scope(self.scope, self.tenant)

    def post(
        self, verb: str, body: object, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """POST /v1/scopes/{scope}/{verb}."""
        tag = {"x-retire-tenant": self.tenant, **(headers or {})}
        return self.stack.http.post(f"/v1/scopes/{self.scope}/{verb}", json=body, headers=tag)

    def supersede(
        self, expected: str, prompt: str | Sequence[int] | None = None, **params: Any
    ) -> dict[str, Any]:
        """SUPERSEDE without streaming; ``{"receipt", "response"}``. AssertionError when refused."""
        body: dict[str, Any] = {"expected_version": expected, "stream": False}
        if prompt is not None:
            body["request"] = self.stack.body(_plain(prompt), **params)
        answer = self.post("supersede", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def supersede_stream(self, expected: str, request: Mapping[str, Any]) -> Flow:
        """SUPERSEDE whose answer is a stream: the receipt, then the successor's chunks."""
        body = {"expected_version": expected, "request": streamed(request)}
        path = f"/v1/scopes/{self.scope}/supersede"
        return Flow(self.stack, body, {"x-retire-tenant": self.tenant}, path=path)


def _plain(prompt: str | Sequence[int]) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)

"""The client for threads: :class:`Retire`, :class:`Scope`, :class:`Stream`, :class:`Successor`.

A thin shell around ``calls`` and ``reading``; ``aio`` is its mirror. Must never decide
about versions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import httpx

from retire.client import calls, tracing, transport
from retire.client.floor import VersionFloor
from retire.client.reading import StreamReader
from retire.client.retry import RetryPolicy
from retire.client.scopes import ScopeHandle, infos_of
from retire.client.views import reply_of
from retire.protocol.contract import Contract
from retire.protocol.errors import RetireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from retire.client.views import Chunk, Reply, ScopeInfo, Transition
    from retire.protocol.contract import Policy, Receipt
    from retire.protocol.versions import Version

T = TypeVar("T")


class Retire:
    """A server of Retire. Safe to share between threads; close it, or use ``with``."""

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None = None,
        token: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: RetryPolicy | None = None,
    ) -> None:
        """``url`` with or without ``/v1``; ``timeout_s``: the longest silence.

        ``token`` names the tenant (default: ``$RETIRE_TOKEN``); ``api_key`` is vLLM's own.
        """
        self._http = httpx.Client(**transport.options(url, token, api_key, timeout_s))
        self._tenant = tenant
        self._retries = retries or RetryPolicy()
        self._floors: dict[calls.Address, VersionFloor] = {}

    def scope(
        self,
        name: str,
        *,
        tenant: str | None = None,
        on_new_input: Policy | None = None,
        parent: str | None = None,
    ) -> Scope:
        """The work replaced together. Nothing is sent; handles of one scope share its version.

        ``parent``: the scope it becomes part of with its first call, for ever; a change of the
        parent moves it too.
        ``on_new_input``: what becomes of this handle's chats and completions while others of the
        scope run, unless the scope has a policy of its own.
        """
        owner = tenant if tenant is not None else self._tenant
        address = calls.Address(name, owner, on_new_input, parent)
        floor = self._floors.setdefault(address, VersionFloor())
        return Scope(self, address, floor)

    def scopes(self) -> tuple[ScopeInfo, ...]:
        """Every scope of the tenant."""
        return infos_of(transport.body_of(self.send(calls.list_scopes(self._tenant))))

    def send(self, call: calls.Call) -> httpx.Response:
        """Send a call and read its whole answer; retried by policy, errors raised."""
        return self.retrying(call, lambda: self._whole(call))

    def open(self, call: calls.Call) -> httpx.Response:
        """Send a call and leave its body unread; errors raised. One attempt."""
        try:
            response = self._http.send(transport.request_of(self._http, call), stream=True)
            if response.is_success:
                return response
            response.read()
        except httpx.TransportError as error:
            raise transport.unreachable(call, self._http.base_url, error) from error
        raise transport.failure_of(response)

    def retrying(self, call: calls.Call, attempt: Callable[[], T]) -> T:
        """``attempt`` until it answers or the policy gives up."""
        number = 1
        with tracing.spanning(call):
            while True:
                try:
                    return attempt()
                except RetireError as error:
                    wait_s = self._retries.wait_s(number, error) if call.repeatable else None
                    if wait_s is None:
                        raise
                time.sleep(wait_s)
                number += 1

    def close(self) -> None:
        """Close every connection; streams still open break."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _whole(self, call: calls.Call) -> httpx.Response:
        response = self.open(call)
        try:
            response.read()
        except httpx.TransportError as error:
            raise transport.unreachable(call, self._http.base_url, error) from error
        return response


class Stream:
    """The chunks of one answer. Iterate, or ``close`` to hang up."""

    def __init__(self, response: httpx.Response, reader: StreamReader) -> None:
        self._response = response
        self._bytes = response.iter_bytes()
        self.reader = reader

    @property
    def version(self) -> Version | None:
        """The version these chunks are published under."""
        return self.reader.version

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """The next chunk that may be seen. Raises the stream's terminal error at its end."""
        while (chunk := self.reader.take()) is None:
            if self.reader.over:
                self.close()
                self.reader.finish()
                raise StopIteration
            self.fill()
        return chunk

    def fill(self) -> None:
        """Read once from the network."""
        try:
            self.reader.feed(next(self._bytes))
        except StopIteration:
            self.reader.end()
        except httpx.TransportError:
            self.reader.end()

    def close(self) -> None:
        """Hang up. The server aborts the request."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Successor(Stream):
    """The answer to SUPERSEDE: the receipt is here already, the successor's chunks follow."""

    @property
    def receipt(self) -> Receipt:
        """What became of the old version and what the new one inherits."""
        assert self.reader.receipt is not None  # Scope.supersede returns none without it
        return self.reader.receipt

    @property
    def reply(self) -> Reply | None:
        """The whole answer, where the request had ``stream`` false; raises its error."""
        self.reader.finish()
        return self.reader.reply


class Scope(ScopeHandle):
    """A handle of one scope; make it with :meth:`Retire.scope`."""

    def __init__(self, client: Retire, address: calls.Address, floor: VersionFloor) -> None:
        super().__init__(address, floor)
        self._client = client

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True] = True, **params: Any
    ) -> Stream: ...
    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False], **params: Any
    ) -> Reply: ...
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = True, **params: Any
    ) -> Stream | Reply:
        """A chat completion under the scope's current version; ``params`` are OpenAI's."""
        return self._infer(calls.CHAT, {"messages": list(messages), "stream": stream, **params})

    @overload
    def complete(self, prompt: str, *, stream: Literal[True] = True, **params: Any) -> Stream: ...
    @overload
    def complete(self, prompt: str, *, stream: Literal[False], **params: Any) -> Reply: ...
    def complete(self, prompt: str, *, stream: bool = True, **params: Any) -> Stream | Reply:
        """A text completion under the scope's current version."""
        return self._infer(calls.COMPLETION, {"prompt": prompt, "stream": stream, **params})

    def supersede(
        self,
        *,
        request: Mapping[str, Any] | None = None,
        expected_version: Version | None = None,
        contract: Contract | None = None,
        idempotency_key: str | None = None,
    ) -> Successor:
        """Retire the current version and start its successor; returns when the receipt is here.

        ``request`` is an OpenAI chat or completion body, streamed unless it says otherwise;
        without it the scope is retired now and its prefix waits for the next request.
        ``expected_version`` defaults to the newest this client has seen.
        VersionConflict: someone else was first. A repeated call (same key) commits once; its
        successor runs for whoever holds the connection, so the last repetition starts it anew.
        """
        call = calls.supersede(
            self._address,
            expected=self._expected(expected_version),
            contract=contract or Contract(),
            request=None if request is None else {"stream": True, **request},
            key=idempotency_key,
        )
        successor = self._client.retrying(call, lambda: self._begin(call))
        if request is None or not successor.receipt.replayed or successor.reply is not None:
            return successor
        return self._resend(successor, {"stream": True, **request})

    def cancel(
        self, *, expected_version: Version | None = None, idempotency_key: str | None = None
    ) -> Transition:
        """Retire the scope for good."""
        return self._transition("cancel", expected_version, idempotency_key)

    def pause(
        self, *, expected_version: Version | None = None, idempotency_key: str | None = None
    ) -> Transition:
        """Stop the work and keep its authority."""
        return self._transition("pause", expected_version, idempotency_key)

    def resume(
        self, *, expected_version: Version | None = None, idempotency_key: str | None = None
    ) -> Transition:
        """Let paused work go on."""
        return self._transition("resume", expected_version, idempotency_key)

    def get(self) -> ScopeInfo:
        """Ask the server: version, phase, requests, pins, last receipts."""
        return self._seen_info(transport.body_of(self._client.send(calls.get(self._address))))

    def _infer(self, path: str, body: Mapping[str, Any]) -> Stream | Reply:
        call = calls.infer(self._address, path, body)
        if body["stream"]:
            response = self._client.open(call)
            return Stream(response, StreamReader(self._floor, transport.header_version(response)))
        response = self._client.send(call)
        reply = reply_of(transport.body_of(response), transport.header_version(response))
        return self._seen_reply(reply)

    def _begin(self, call: calls.Call) -> Successor:
        response = self._client.open(call)
        reader = StreamReader(self._floor, None)
        successor = Successor(response, reader)
        try:
            if not transport.is_event_stream(response):
                response.read()
                reader.take_answer(transport.body_of(response))
            while reader.receipt is None and not reader.over:
                successor.fill()
            reader.require_receipt()
        except httpx.TransportError as error:
            raise transport.unreachable(call, response.url, error) from error
        finally:
            if reader.receipt is None:
                successor.close()
        return successor

    def _resend(self, replayed: Successor, request: Mapping[str, Any]) -> Successor:
        version = replayed.receipt.to_version
        answer = self._client.open(calls.resend(self._address, request, version))
        reader = StreamReader(self._floor, transport.header_version(answer))
        if transport.is_event_stream(answer):
            reader.continue_from(replayed.reader)
        else:
            answer.read()
            reply = reply_of(transport.body_of(answer), transport.header_version(answer))
            reader.continue_from(replayed.reader, self._seen_reply(reply))
        replayed.close()
        return Successor(answer, reader)

    def _transition(
        self, action: str, expected: Version | None, idempotency_key: str | None
    ) -> Transition:
        call = calls.transition(
            self._address, action, expected=self._expected(expected), key=idempotency_key
        )
        return self._seen_transition(transport.body_of(self._client.send(call)))

    def _expected(self, stated: Version | None) -> Version:
        return stated or self.version or self.get().version

"""The client for asyncio: the mirror of ``sync``, method by method (a test holds them together).

A thin shell around ``calls`` and ``reading``. Must never decide about versions.
"""

from __future__ import annotations

import asyncio
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
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from retire.client.views import Chunk, Reply, ScopeInfo, Transition
    from retire.protocol.contract import Policy, Receipt
    from retire.protocol.versions import Version

T = TypeVar("T")


class AsyncRetire:
    """A server of Retire, for one event loop; close it, or use ``async with``."""

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
        self._http = httpx.AsyncClient(**transport.options(url, token, api_key, timeout_s))
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
    ) -> AsyncScope:
        """The work replaced together. Nothing is sent; handles of one scope share its version.

        ``parent``: the scope it becomes part of with its first call, for ever; a change of the
        parent moves it too.
        ``on_new_input``: what becomes of this handle's chats and completions while others of the
        scope run, unless the scope has a policy of its own.
        """
        owner = tenant if tenant is not None else self._tenant
        address = calls.Address(name, owner, on_new_input, parent)
        floor = self._floors.setdefault(address, VersionFloor())
        return AsyncScope(self, address, floor)

    async def scopes(self) -> tuple[ScopeInfo, ...]:
        """Every scope of the tenant."""
        return infos_of(transport.body_of(await self.send(calls.list_scopes(self._tenant))))

    async def send(self, call: calls.Call) -> httpx.Response:
        """Send a call and read its whole answer; retried by policy, errors raised."""
        return await self.retrying(call, lambda: self._whole(call))

    async def open(self, call: calls.Call) -> httpx.Response:
        """Send a call and leave its body unread; errors raised. One attempt."""
        try:
            response = await self._http.send(transport.request_of(self._http, call), stream=True)
            if response.is_success:
                return response
            await response.aread()
        except httpx.TransportError as error:
            raise transport.unreachable(call, self._http.base_url, error) from error
        raise transport.failure_of(response)

    async def retrying(self, call: calls.Call, attempt: Callable[[], Awaitable[T]]) -> T:
        """``attempt`` until it answers or the policy gives up."""
        number = 1
        with tracing.spanning(call):
            while True:
                try:
                    return await attempt()
                except RetireError as error:
                    wait_s = self._retries.wait_s(number, error) if call.repeatable else None
                    if wait_s is None:
                        raise
                await asyncio.sleep(wait_s)
                number += 1

    async def close(self) -> None:
        """Close every connection; streams still open break."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _whole(self, call: calls.Call) -> httpx.Response:
        response = await self.open(call)
        try:
            await response.aread()
        except httpx.TransportError as error:
            raise transport.unreachable(call, self._http.base_url, error) from error
        return response


class AsyncStream:
    """The chunks of one answer. Iterate, or ``close`` to hang up."""

    def __init__(self, response: httpx.Response, reader: StreamReader) -> None:
        self._response = response
        self._bytes = response.aiter_bytes()
        self.reader = reader

    @property
    def version(self) -> Version | None:
        """The version these chunks are published under."""
        return self.reader.version

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk that may be seen. Raises the stream's terminal error at its end."""
        while (chunk := self.reader.take()) is None:
            if self.reader.over:
                await self.close()
                self.reader.finish()
                raise StopAsyncIteration
            await self.fill()
        return chunk

    async def fill(self) -> None:
        """Read once from the network."""
        try:
            self.reader.feed(await anext(self._bytes))
        except StopAsyncIteration:
            self.reader.end()
        except httpx.TransportError:
            self.reader.end()

    async def close(self) -> None:
        """Hang up. The server aborts the request."""
        await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncSuccessor(AsyncStream):
    """The answer to SUPERSEDE: the receipt is here already, the successor's chunks follow."""

    @property
    def receipt(self) -> Receipt:
        """What became of the old version and what the new one inherits."""
        assert self.reader.receipt is not None  # AsyncScope.supersede returns none without it
        return self.reader.receipt

    @property
    def reply(self) -> Reply | None:
        """The whole answer, where the request had ``stream`` false; raises its error."""
        self.reader.finish()
        return self.reader.reply


class AsyncScope(ScopeHandle):
    """A handle of one scope; make it with :meth:`AsyncRetire.scope`."""

    def __init__(self, client: AsyncRetire, address: calls.Address, floor: VersionFloor) -> None:
        super().__init__(address, floor)
        self._client = client

    @overload
    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True] = True, **params: Any
    ) -> AsyncStream: ...
    @overload
    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False], **params: Any
    ) -> Reply: ...
    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = True, **params: Any
    ) -> AsyncStream | Reply:
        """A chat completion under the scope's current version; ``params`` are OpenAI's."""
        return await self._infer(
            calls.CHAT, {"messages": list(messages), "stream": stream, **params}
        )

    @overload
    async def complete(
        self, prompt: str, *, stream: Literal[True] = True, **params: Any
    ) -> AsyncStream: ...
    @overload
    async def complete(self, prompt: str, *, stream: Literal[False], **params: Any) -> Reply: ...
    async def complete(
        self, prompt: str, *, stream: bool = True, **params: Any
    ) -> AsyncStream | Reply:
        """A text completion under the scope's current version."""
        return await self._infer(calls.COMPLETION, {"prompt": prompt, "stream": stream, **params})

    async def supersede(
        self,
        *,
        request: Mapping[str, Any] | None = None,
        expected_version: Version | None = None,
        contract: Contract | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSuccessor:
        """Retire the current version and start its successor; returns when the receipt is here.

        ``request`` is an OpenAI chat or completion body, streamed unless it says otherwise;
        without it the scope is retired now and its prefix waits for the next request.
        ``expected_version`` defaults to the newest this client has seen.
        VersionConflict: someone else was first. A repeated call (same key) commits once; its
        successor runs for whoever holds the connection, so the last repetition starts it anew.
        """
        call = calls.supersede(
            self._address,
            expected=await self._expected(expected_version),
            contract=contract or Contract(),
            request=None if request is None else {"stream": True, **request},
            key=idempotency_key,
        )
        successor = await self._client.retrying(call, lambda: self._begin(call))
        if request is None or not successor.receipt.replayed or successor.reply is not None:
            return successor
        return await self._resend(successor, {"stream": True, **request})

    async def cancel(
        self, *, expected_version: Version | None = None, idempotency_key: str | None = None
    ) -> Transition:
        """Retire the scope for good."""
        return await self._transition("cancel", expected_version, idempotency_key)

    async def pause(
        self, *, expected_version: Version | None = None, idempotency_key: str | None = None
    ) -> Transition:
        """Stop the work and keep its authority."""
        return await self._transition("pause", expected_version, idempotency_key)

    async def resume(
        self, *, expected_version: Version | None = None, idempotency_key: str | None = None
    ) -> Transition:
        """Let paused work go on."""
        return await self._transition("resume", expected_version, idempotency_key)

    async def get(self) -> ScopeInfo:
        """Ask the server: version, phase, requests, pins, last receipts."""
        return self._seen_info(transport.body_of(await self._client.send(calls.get(self._address))))

    async def _infer(self, path: str, body: Mapping[str, Any]) -> AsyncStream | Reply:
        call = calls.infer(self._address, path, body)
        if body["stream"]:
            response = await self._client.open(call)
            return AsyncStream(
                response, StreamReader(self._floor, transport.header_version(response))
            )
        response = await self._client.send(call)
        reply = reply_of(transport.body_of(response), transport.header_version(response))
        return self._seen_reply(reply)

    async def _begin(self, call: calls.Call) -> AsyncSuccessor:
        response = await self._client.open(call)
        reader = StreamReader(self._floor, None)
        successor = AsyncSuccessor(response, reader)
        try:
            if not transport.is_event_stream(response):
                await response.aread()
                reader.take_answer(transport.body_of(response))
            while reader.receipt is None and not reader.over:
                await successor.fill()
            reader.require_receipt()
        except httpx.TransportError as error:
            raise transport.unreachable(call, response.url, error) from error
        finally:
            if reader.receipt is None:
                await successor.close()
        return successor

    async def _resend(self, replayed: AsyncSuccessor, request: Mapping[str, Any]) -> AsyncSuccessor:
        version = replayed.receipt.to_version
        answer = await self._client.open(calls.resend(self._address, request, version))
        reader = StreamReader(self._floor, transport.header_version(answer))
        if transport.is_event_stream(answer):
            reader.continue_from(replayed.reader)
        else:
            await answer.aread()
            reply = reply_of(transport.body_of(answer), transport.header_version(answer))
            reader.continue_from(replayed.reader, self._seen_reply(reply))
        await replayed.close()
        return AsyncSuccessor(answer, reader)

    async def _transition(
        self, action: str, expected: Version | None, idempotency_key: str | None
    ) -> Transition:
        call = calls.transition(
            self._address, action, expected=await self._expected(expected), key=idempotency_key
        )
        return self._seen_transition(transport.body_of(await self._client.send(call)))

    async def _expected(self, stated: Version | None) -> Version:
        return stated or self.version or (await self.get()).version

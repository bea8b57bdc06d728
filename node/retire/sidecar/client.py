"""The sidecar as others call it: the engine plugin, the CLI and the operator.

Speaks protocol values, raises the tree's errors. Must never import the server side or redis.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from retire.sidecar import convert, status
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.pb.node_pb2_grpc import NodeStub
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retire.protocol.contract import Contract
    from retire.protocol.errors import RetireError
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.config import Tls

_log = logging.getLogger(names.LOGGER_SIDECAR)
_REATTACH_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - missing from the type stubs
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # callers retry with their idempotency key
    ("grpc.optimization_target", "latency"),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join: which version, and which mailbox word its gates compare.

    ``slot`` has the fields of ``mailbox.SlotRef``: index, tenure, stamp.
    """

    version: Version
    slot: pb.SlotRef
    created: bool
    generation: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Mutation:
    """What every mutating call carries besides the scope (design, section 5)."""

    expected: Version
    idempotency_key: str
    body_digest: bytes = b""  # sha256 of the caller's body
    traceparent: str = ""


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

    def quota(self, command: pb.Quota) -> None:
        """The node's pin quota of a tenant changed."""
        ...


class NodeClient:
    """One sidecar. ``target`` is ``unix:/path`` or ``host:port``."""

    def __init__(self, target: str, *, tls: Tls | None = None) -> None:
        self._channel = _channel(target, tls)
        self._stub = NodeStub(self._channel)

    async def __aenter__(self) -> NodeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def join(self, key: ScopeKey, version: Version | None = None) -> Joined:
        """Make this node a gate of the scope; register the scope when it is new."""
        request = pb.JoinRequest(key=convert.key_to(key))
        if version is not None:
            request.version.CopyFrom(convert.version_to(version))
        reply = await _unary(self._stub.Join, request)
        return Joined(
            version=convert.version_from(reply.version),
            slot=reply.slot,
            created=reply.created,
            generation=reply.generation,
            paused=reply.paused,
        )

    async def supersede(
        self,
        key: ScopeKey,
        mutation: Mutation,
        *,
        contract: Contract | None = None,
        driver: bool = False,
    ) -> AsyncIterator[pb.TransitionEvent]:
        """Yield committed, unpublishable, fenced. ``driver``: this caller will :meth:`report`."""
        request = pb.SupersedeRequest(
            key=convert.key_to(key),
            expected=convert.version_to(mutation.expected),
            contract=convert.contract_to(contract) if contract else None,
            idempotency_key=mutation.idempotency_key,
            body_digest=mutation.body_digest,
            traceparent=mutation.traceparent,
            driver=driver,
        )
        call = self._stub.Supersede(request)
        async for event in _stream(call):
            yield event

    async def cancel(self, key: ScopeKey, mutation: Mutation) -> pb.TransitionReply:
        """Terminal: no successor; the reply holds the receipt."""
        return await _unary(self._stub.Cancel, _scope_request(key, mutation))

    async def pause(self, key: ScopeKey, mutation: Mutation) -> pb.TransitionReply:
        """Hold the scope's work; its authority stays."""
        return await _unary(self._stub.Pause, _scope_request(key, mutation))

    async def resume(self, key: ScopeKey, mutation: Mutation) -> pb.TransitionReply:
        """Undo a pause."""
        return await _unary(self._stub.Resume, _scope_request(key, mutation))

    async def inspect(self, key: ScopeKey) -> pb.ScopeView:
        """State, version, live requests, pins and last receipts of one scope."""
        return await _unary(self._stub.Inspect, pb.InspectRequest(key=convert.key_to(key)))

    async def list(self, tenant: str = "") -> list[pb.ScopeView]:
        """Every scope this node knows, of one tenant or (empty) of all."""
        reply = await _unary(self._stub.List, pb.ListRequest(tenant=tenant))
        return [*reply.scopes]

    async def watch(
        self, tenant: str = "", *, after: int = 0
    ) -> AsyncIterator[pb.TransitionRecord]:
        """Transitions as they are recorded here, from sequence ``after`` (0: from now on)."""
        call = self._stub.WatchTransitions(pb.WatchRequest(tenant=tenant, after=after))
        async for record in _stream(call):
            yield record

    async def report(
        self, key: ScopeKey, to: Version, *, receipt_json: str, idempotency_key: str
    ) -> None:
        """Hand over the completed receipt of a Supersede that this caller drove."""
        request = pb.ReportRequest(
            key=convert.key_to(key),
            to=convert.version_to(to),
            receipt_json=receipt_json,
            idempotency_key=idempotency_key,
        )
        await _unary(self._stub.Report, request)

    async def status(self) -> pb.StatusReply:
        """The node's lease, term, gates and readiness."""
        return await _unary(self._stub.Status, pb.StatusRequest())

    async def attach(
        self,
        hello: Callable[[], pb.Hello],
        handler: GateHandler,
        *,
        on_welcome: Callable[[pb.Welcome], None],
    ) -> None:
        """Serve commands until cancelled; reattaches with a fresh ``hello()`` when the sidecar
        returns.
        """
        attempt = 0
        while True:
            call = self._stub.Attach()
            try:
                await call.write(pb.GateReport(hello=hello()))
                attempt = await _serve_link(call, handler, on_welcome)
            except grpc.aio.AioRpcError as error:
                refused = await _refusal(call)
                if refused is not None:
                    raise refused from error
                _log.debug("no sidecar; gates close by lease", extra=fields(why=error.details()))
            await asyncio.sleep(_REATTACH_S[min(attempt, len(_REATTACH_S) - 1)])
            attempt += 1


async def _refusal(call: Any) -> RetireError | None:
    """What the sidecar raised, if it did; a broken link (whatever its status) is tried again."""
    metadata = await call.trailing_metadata()
    return next((status.decode(v) for k, v in metadata or () if k == status.METADATA_KEY), None)


async def _serve_link(
    call: Any, handler: GateHandler, on_welcome: Callable[[pb.Welcome], None]
) -> int:
    """Answer commands until the stream ends; returns 0: the next attempt starts afresh."""
    writing = asyncio.Lock()
    running: set[asyncio.Task[None]] = set()
    try:
        while (command := await call.read()) is not _EOF:
            match command.WhichOneof("body"):
                case "welcome":
                    on_welcome(command.welcome)
                case "quota":
                    handler.quota(command.quota)
                case _:
                    task = asyncio.create_task(_answer(call, command, handler, writing))
                    running.add(task)
                    task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        call.cancel()
    return 0


async def _answer(
    call: Any, command: pb.GateCommand, handler: GateHandler, writing: asyncio.Lock
) -> None:
    report = await _handled(command, handler)
    if report is not None:
        async with writing:  # one message at a time on a gRPC stream
            await call.write(report)


async def _handled(command: pb.GateCommand, handler: GateHandler) -> pb.GateReport | None:
    """Run one command. A Switch that fails is not acked: the sidecar then waits out the lease."""
    number = command.command
    kind = command.WhichOneof("body")
    try:
        match kind:
            case "switch":
                last = await handler.switch(command.switch)
                return pb.GateReport(
                    switch_ack=pb.SwitchAck(command=number, last_published_index=last)
                )
            case "fence":
                fenced = await handler.fence(command.fence)
                return pb.GateReport(fence=pb.FenceReply(command=number, fenced=fenced))
            case "inspect":
                reply = await handler.inspect(command.inspect)
                reply.command = number
                return pb.GateReport(inspect=reply)
    except Exception as error:
        _log.exception("command failed", extra=fields(command=kind))
        return _failed(kind, number, f"{type(error).__name__}: {error}")
    return None


def _failed(kind: str | None, number: int, text: str) -> pb.GateReport | None:
    if kind == "fence":
        return pb.GateReport(fence=pb.FenceReply(command=number, error=text))
    if kind == "inspect":
        return pb.GateReport(inspect=pb.InspectReply(command=number, error=text))
    return None


def _scope_request(key: ScopeKey, mutation: Mutation) -> pb.ScopeRequest:
    return pb.ScopeRequest(
        key=convert.key_to(key),
        expected=convert.version_to(mutation.expected),
        idempotency_key=mutation.idempotency_key,
        body_digest=mutation.body_digest,
        traceparent=mutation.traceparent,
    )


def _channel(target: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes(),
        private_key=tls.key.read_bytes(),
        certificate_chain=tls.cert.read_bytes(),
    )
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


async def _unary(method: Any, request: Any) -> Any:
    try:
        return await method(request)
    except grpc.aio.AioRpcError as error:
        raise status.from_rpc(error) from error


async def _stream(call: Any) -> AsyncIterator[Any]:
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise status.from_rpc(error) from error
    finally:
        call.cancel()

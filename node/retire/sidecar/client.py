"""The sidecar as others call it: the engine plugin, the CLI and the operator.

Speaks protocol values, raises the tree's errors. Must never import the server side or redis.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from retire.sidecar import convert, status
from retire.sidecar.files import Watched
from retire.sidecar.gate_link import GateHandler, GateLink
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.pb.node_pb2_grpc import NodeStub
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retire.protocol.contract import Contract, Policy
    from retire.protocol.errors import RetireError
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.config import Tls

__all__ = ["GateHandler", "Joined", "Mutation", "NodeClient"]

_log = logging.getLogger(names.LOGGER_SIDECAR)
_REATTACH_S = (0.05, 0.1, 0.2, 0.5, 1.0)
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
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """What every mutating call carries besides the scope (design, section 5)."""

    expected: Version
    idempotency_key: str
    body_digest: bytes = b""  # sha256 of the caller's body
    traceparent: str = ""


class NodeClient:
    """One sidecar. ``target`` is ``unix:/path`` or ``host:port``.

    ``server_name``: the DNS name expected in the sidecar's certificate, where it is not the host's.
    """

    def __init__(
        self, target: str, *, tls: Tls | None = None, server_name: str | None = None
    ) -> None:
        self._files = Watched((tls.cert, tls.key, tls.ca) if tls else ())
        self._files.mark()
        self._channel = _channel(target, tls, server_name)
        self._stub = NodeStub(self._channel)

    async def __aenter__(self) -> NodeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def outdated(self) -> bool:
        """Whether the TLS files were replaced since: the next connection should be a new client's.
        A channel keeps the certificate that it was made with."""
        return self._files.changed()

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def join(
        self, key: ScopeKey, version: Version | None = None, *, parent: str | None = None
    ) -> Joined:
        """Make this node a gate of the scope; register the scope when it is new.

        ``parent``: a scope of the tenant that it is part of from now on. InvalidField when it is
        part of another one, UnknownScope when there is no such parent.
        """
        request = pb.JoinRequest(key=convert.key_to(key), parent=parent or "")
        if version is not None:
            request.version.CopyFrom(convert.version_to(version))
        reply = await _unary(self._stub.Join, request)
        return Joined(
            version=convert.version_from(reply.version),
            slot=reply.slot,
            created=reply.created,
            generation=reply.generation,
            paused=reply.paused,
            policy=convert.policy_from(reply.policy),
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

    async def warm(
        self,
        key: ScopeKey,
        version: Version,
        request_json: bytes,
        *,
        traceparent: str = "",
        timeout_s: float = 60.0,
    ) -> pb.WarmReply:
        """Have the KV of an OpenAI request's prompt computed under ``version``, the current one."""
        request = pb.WarmRequest(
            key=convert.key_to(key),
            version=convert.version_to(version),
            request_json=request_json,
            traceparent=traceparent,
        )
        return await _unary(self._stub.Warm, request, timeout_s=timeout_s)

    async def authenticate(self, token: str) -> pb.AuthenticateReply:
        """Whom a bearer token stands for; else Unauthenticated, Forbidden or Unavailable."""
        return await _unary(self._stub.Authenticate, pb.AuthenticateRequest(token=token))

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
                name = hello()
                await call.write(pb.GateReport(hello=name))
                await GateLink(call, handler, on_welcome).serve(name.gate)
                attempt = 0
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


def _scope_request(key: ScopeKey, mutation: Mutation) -> pb.ScopeRequest:
    return pb.ScopeRequest(
        key=convert.key_to(key),
        expected=convert.version_to(mutation.expected),
        idempotency_key=mutation.idempotency_key,
        body_digest=mutation.body_digest,
        traceparent=mutation.traceparent,
    )


def _channel(target: str, tls: Tls | None, server_name: str | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes(),
        private_key=tls.key.read_bytes(),
        certificate_chain=tls.cert.read_bytes(),
    )
    named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    return grpc.aio.secure_channel(target, credentials, options=(*_OPTIONS, *named))


async def _unary(method: Any, request: Any, *, timeout_s: float | None = None) -> Any:
    try:
        return await method(request, timeout=timeout_s)
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

"""One node's sidecar as its servers see it: every call of ``node.proto``, in terms of the parts.

Checks requests and joins scopes before the driver sees them. Must never decide a transition.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Final

from retire.protocol import events as ev
from retire.protocol.errors import InvalidField, RetireError, TermMismatch
from retire.protocol.versions import ScopeKey
from retire.sidecar import convert
from retire.sidecar.calls import Call
from retire.sidecar.fencing import inspect
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.reports import Reports
from retire.sidecar.views import (
    live_view,
    not_ready_reason,
    recorded_view,
    scope_view,
    status_reply,
)
from retire.sidecar.warming import warm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retire.protocol.versions import Version
    from retire.sidecar.authentication import Authenticator
    from retire.sidecar.links import Link
    from retire.sidecar.parts import Parts

WARM_S: Final = 300.0  # the longest wait for one context, whatever the caller allows
_OF_DEADLINE: Final = 0.98  # of the caller's time, so that our answer is there before it gives up


class Node:
    """The facade over the parts of a running sidecar."""

    def __init__(self, parts: Parts, authenticator: Authenticator) -> None:
        self._parts = parts
        self._authenticator = authenticator
        self._ports = parts.ports
        self._reports = Reports(parts)
        self.links = parts.ports.links

    async def join(
        self, key: ScopeKey, version: Version | None, parent: str | None = None
    ) -> pb.JoinReply:
        """Make this node a gate of the scope; register it when it is new."""
        entry, created = await self._parts.joins.join(key, version, parent)
        ref = self._ports.scopes.ref(entry)
        assert entry.state.version is not None
        return pb.JoinReply(
            version=convert.version_to(entry.state.version),
            slot=pb.SlotRef(index=ref.index, tenure=ref.tenure, stamp=ref.stamp),
            created=created,
            generation=entry.state.generation,
            paused=entry.state.admission is ev.Admission.PAUSED,
            policy=convert.policy_to(entry.policy),
        )

    async def supersede(self, request: pb.SupersedeRequest) -> AsyncIterator[pb.TransitionEvent]:
        """Committed, unpublishable, fenced; the transition goes on when the caller goes away."""
        call = self._call(ev.Change.SUPERSEDE, request)
        call.contract = convert.contract_from(request.contract)
        call.driver = request.driver
        await self._start(call)
        async for event in call.events():
            yield event

    async def cancel(self, request: pb.ScopeRequest) -> pb.TransitionReply:
        """Terminal; the reply holds the receipt (the first call's, when replayed)."""
        return await self._finished(self._call(ev.Change.CANCEL, request))

    async def pause(self, request: pb.ScopeRequest) -> pb.TransitionReply:
        """Take no new work."""
        return await self._finished(self._call(ev.Change.PAUSE, request))

    async def resume(self, request: pb.ScopeRequest) -> pb.TransitionReply:
        """Undo a pause."""
        return await self._finished(self._call(ev.Change.RESUME, request))

    async def inspect(self, key: ScopeKey) -> pb.ScopeView:
        """From memory, with live requests asked of the processes; else as the registry has it."""
        entry = self._ports.scopes.find(key)
        if entry is None:
            await self._parts.tenants.open(key.tenant)
            return recorded_view(await self._ports.registry.get(key))
        replies = await inspect(self.links, key, wait_s=self._ports.settings.fence_wait_s)
        return live_view(scope_view(entry, node=self._ports.identity.node), replies)

    def list_scopes(self, tenant: str) -> pb.ListReply:
        """Every scope joined here, of one tenant or of all."""
        node = self._ports.identity.node
        views = [
            scope_view(entry, node=node)
            for entry in self._ports.scopes
            if tenant in ("", entry.state.key.tenant)
        ]
        return pb.ListReply(scopes=views)

    def watch(self, tenant: str, *, after: int) -> AsyncIterator[pb.TransitionRecord]:
        """The journal from ``after`` on."""
        return self._ports.journal.watch(tenant, after=after)

    async def warm(self, request: pb.WarmRequest, *, left_s: float | None) -> pb.WarmReply:
        """Compute a context's KV on this node, within the caller's deadline."""
        self._refuse_while_entering()
        entry = await self._parts.joins.find(convert.key_from(request.key))
        wait_s = WARM_S if left_s is None else min(WARM_S, left_s * _OF_DEADLINE)
        node = self._ports.identity.node
        return await warm(self.links, entry, request, node=node, wait_s=wait_s)

    async def authenticate(self, token: str) -> pb.AuthenticateReply:
        """Whom a bearer token stands for."""
        caller = await self._authenticator.authenticate(token)
        return pb.AuthenticateReply(
            tenant=caller.tenant, subject=caller.subject, cache_s=caller.cache_s
        )

    def not_ready_reason(self) -> str:
        """Empty when the node may serve."""
        return not_ready_reason(self._parts)

    def report(self, request: pb.ReportRequest) -> None:
        """Take in the receipt that a driver completed."""
        self._reports.take(request)

    def status(self) -> pb.StatusReply:
        """Lease, term, gates, readiness."""
        return status_reply(self._parts)

    def attach(self, hello: pb.Hello) -> Link:
        """Welcome an API process; tell it its quotas and what moved while it was away."""
        link = self.links.attach(hello)
        settings = self._ports.settings
        welcome = pb.Welcome(
            node=self._ports.identity.node,
            publish_lease_s=settings.lease_s,
            lane=str(settings.lane),
        )
        self.links.tell(pb.GateCommand(welcome=welcome), only=link)
        self._parts.quotas.greet(link)
        for message in hello.scopes:
            self._catch_up(ScopeKey(message.tenant, message.scope), link)
        return link

    def detach(self, link: Link) -> None:
        """The process is gone."""
        self.links.detach(link)

    def _catch_up(self, key: ScopeKey, link: Link) -> None:
        """The process may hold streams of a version that ended while no sidecar could tell it."""
        entry = self._ports.scopes.find(key)
        if entry is None or entry.state.version is None:
            return
        body = pb.Switch(
            key=convert.key_to(key),
            to=convert.version_to(entry.state.version),
            slot_index=entry.slot,
            kind=ev.Change.SUPERSEDE.value,
        )
        self.links.switch(body, lambda _: None, only=link)

    def _call(self, change: ev.Change, request: pb.SupersedeRequest | pb.ScopeRequest) -> Call:
        if not request.idempotency_key:
            raise InvalidField(
                "idempotency_key", "", "present: a new one per change, kept for retries"
            )
        call = Call(
            key=convert.key_from(request.key),
            change=change,
            expected=convert.required_version(request, "expected"),
            idempotency_key=request.idempotency_key,
            started_s=self._ports.clock(),
            body_digest=request.body_digest.hex() or _digest(request),
            traceparent=request.traceparent,
        )
        self._ports.stages.begin(call)
        return call

    async def _start(self, call: Call) -> None:
        try:
            self._refuse_while_entering()
            await self._parts.joins.find(call.key)
        except RetireError as error:
            self._ports.stages.end(call, error)
            raise
        self._parts.driver.start(call)

    def _refuse_while_entering(self) -> None:
        if self._parts.rebuild.running:
            raise TermMismatch("the registry is being entered again; retry with the same key")

    async def _finished(self, call: Call) -> pb.TransitionReply:
        await self._start(call)
        async for _ in call.events():
            continue
        committed = call.committed
        assert committed is not None
        reply = pb.TransitionReply(
            to=committed.to,
            replayed=committed.replayed,
            receipt_json=call.receipt_json or call.stored_receipt,
        )
        getattr(reply, "from").CopyFrom(getattr(committed, "from"))
        return reply


def _digest(request: pb.SupersedeRequest | pb.ScopeRequest) -> str:
    """Callers without a body of their own: the contract and the expected version are the body."""
    bare = copy.deepcopy(request)
    for field in ("idempotency_key", "traceparent"):
        bare.ClearField(field)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()

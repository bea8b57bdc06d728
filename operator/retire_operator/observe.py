"""Gathers the Facts about one ServingScope. IO only: it decides and writes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from retire.protocol.errors import RetireError, UnknownScope
from retire.protocol.versions import ScopeKey, Version
from retire_operator import context, receipts
from retire_operator.errors import ObjectMissing
from retire_operator.facts import (
    Context,
    Facts,
    Failure,
    Missing,
    NodeView,
    Parent,
    Quota,
    Record,
    RegistryView,
    Seen,
    Unknown,
)
from retire_operator.resource import TENANTS, Desired, Ref, Source

if TYPE_CHECKING:
    from retire.registry.interface import ScopeRecord
    from retire_operator.mirror import Mirror
    from retire_operator.nodes import NodeHandle, SidecarPool
    from retire_operator.ports import Guard, QuotaAnswer, Registry, Tenants
    from retire_operator.store import ScopeStore

INSPECT_S: Final = 2.0
_QUOTAS_S: Final = 2.0


class Objects(Protocol):
    """What is read of the API server (kube.Kube)."""

    async def config_map(self, ref: Ref) -> Mapping[str, str]:
        """See kube.py."""
        ...

    async def secret(self, ref: Ref) -> Mapping[str, bytes]:
        """See kube.py."""
        ...


class Namespaces(Protocol):
    """Annotations of the namespaces (namespaces.py)."""

    async def of(self, namespace: str) -> Mapping[str, str]:
        """See namespaces.py."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Everybody who is asked."""

    objects: Objects
    namespaces: Namespaces
    registry: Registry
    pool: SidecarPool
    guard: Guard
    tenants: Tenants
    store: ScopeStore
    mirror: Mirror


class Observer:
    """Gathers. ``clock``: seconds that only rise."""

    def __init__(
        self,
        sources: Sources,
        *,
        finalizer_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._from = sources
        self._finalizer_timeout_s = finalizer_timeout_s
        self._clock = clock
        self._quotas: dict[str, tuple[float, int, Mapping[str, QuotaAnswer]]] = {}

    async def gather(self, desired: Desired, raw_status: Mapping[str, Any]) -> Facts:
        """What decides about transitions: quick, for it stands before every one of them."""
        sources, seen = self._from, Seen(raw_status)
        state, (record, why, holders), allowed, resolved = await asyncio.gather(
            sources.guard.ensure(),
            self._record(desired.key),
            self._tenant_allowed(desired),
            self._context(desired),
        )
        owner = sources.store.owner(desired.key)
        return Facts(
            desired=desired,
            seen=seen,
            registry=RegistryView(state.term, state.synced, state.reason, state.message),
            record=record,
            nodes=tuple(_view(h, holders) for h in sources.pool.ready(desired.pool)),
            pool_exists=sources.pool.exists(desired.pool),
            context=resolved,
            tenant_allowed=allowed,
            taken_by=str(owner) if owner not in (None, desired.ref) else "",
            parent=self._parent(desired),
            lines=self._lines(desired, raw_status),
            unreadable_why=why,
            finalizer_timeout_s=self._finalizer_timeout_s,
        )

    async def detail(self, facts: Facts, failure: Failure | None = None) -> Facts:
        """The same with what only the status shows, asked of the nodes and the quotas."""
        nodes, quota = await asyncio.gather(self._inspected(facts), self._quota(facts.desired))
        lines = self._lines(facts.desired, facts.seen.raw)
        return replace(facts, nodes=nodes, quota=quota, failure=failure, lines=lines)

    def _lines(self, desired: Desired, raw_status: Mapping[str, Any]) -> tuple[receipts.Line, ...]:
        written = receipts.from_status(raw_status.get("receipts") or ())
        return receipts.merged(written, self._from.mirror.lines(desired))

    async def _record(self, key: ScopeKey) -> tuple[Record | Unknown, str, tuple[str, ...]]:
        try:
            found = await self._from.registry.get(key)
        except UnknownScope:
            return Unknown.ABSENT, "", ()
        except RetireError as error:
            return Unknown.UNREADABLE, str(error), ()
        return record_of(found), "", found.nodes

    async def _tenant_allowed(self, desired: Desired) -> bool:
        if not desired.foreign_tenant:
            return True
        annotations = await self._from.namespaces.of(desired.ref.namespace)
        names = (name.strip() for name in annotations.get(TENANTS, "").split(","))
        return desired.key.tenant in names

    async def _context(self, desired: Desired) -> Context | Missing | None:
        source = desired.context
        if source is None or desired.deleted_at_s is not None:
            return None
        if source.source is Source.INLINE:
            return context.inline(source)
        ref = Ref(desired.ref.namespace, source.name)
        try:
            if source.source is Source.CONFIG_MAP:
                return context.from_config_map(source, ref, await self._config_map(ref))
            return context.from_secret(source, ref, await self._secret(ref))
        except RetireError as error:
            return context.unreadable(source, ref, str(error))

    async def _config_map(self, ref: Ref) -> Mapping[str, str] | None:
        try:
            return await self._from.objects.config_map(ref)
        except ObjectMissing:
            return None

    async def _secret(self, ref: Ref) -> Mapping[str, bytes] | None:
        try:
            return await self._from.objects.secret(ref)
        except ObjectMissing:
            return None

    def _parent(self, desired: Desired) -> Parent | None:
        if desired.parent is None:
            return None
        ref = Ref(desired.ref.namespace, desired.parent)
        parent, body = self._from.store.desired(ref), self._from.store.body(ref)
        if parent is None or body is None:
            return None
        status = body.get("status") or {}
        return Parent(
            tenant=parent.key.tenant,
            registered=bool(status.get("version")),
            cancelled=parent.cancelled
            or parent.deleted_at_s is not None
            or status.get("phase") == "Cancelled",
        )

    async def _quota(self, desired: Desired) -> Quota | None:
        """Settled even if this scope asks for nothing: the registry is told the tenant's quota."""
        try:
            answers = await self._settled(desired.key.tenant)
        except RetireError:
            return None
        answer = answers.get(desired.key.scope)
        return None if answer is None else Quota(answer.granted, answer.message, answer.left)

    async def _settled(self, tenant: str) -> Mapping[str, QuotaAnswer]:
        revision = self._from.store.revisions[tenant]
        known = self._quotas.get(tenant)
        if known is not None and known[1] == revision and self._clock() - known[0] < _QUOTAS_S:
            return known[2]
        answers = await self._from.tenants.settle(tenant)
        self._quotas[tenant] = (self._clock(), revision, answers)
        return answers

    async def _inspected(self, facts: Facts) -> tuple[NodeView, ...]:
        return tuple(
            await asyncio.gather(*(self._inspect(facts.desired, view) for view in facts.nodes))
        )

    async def _inspect(self, desired: Desired, view: NodeView) -> NodeView:
        handle = self._from.pool.named(view.name)
        if handle is None or not view.holds:
            return view
        try:
            found = await self._from.pool.on(
                handle, lambda node: node.inspect(desired.key), timeout_s=INSPECT_S
            )
        except RetireError:
            return view
        self._from.mirror.take_view(found)
        return replace(
            view,
            version=Version(found.version.term, found.version.epoch),
            requests=len(found.requests),
            pinned_blocks=found.pinned_blocks,
        )


def record_of(found: ScopeRecord) -> Record:
    """What decisions need of it."""
    return Record(found.version, found.paused, found.cancelled, found.policy, found.parent)


def _view(handle: NodeHandle, holders: tuple[str, ...]) -> NodeView:
    return NodeView(handle.name, handle.boot_id, holds=handle.name in holders)

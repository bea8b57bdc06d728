"""Reads and writes a whole registry: what it holds now, and every tenant anew under a term.

Steps may be repeated. Must never choose a term, and never decide that the registry is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import NeedRegister, ScopeClosed, TermMismatch, UnknownScope
from retire.registry.interface import CommitKind, ScopeRecord, Snapshot
from retire.telemetry.logs import fields
from retire_operator.rebuild import Held, TenantPlan, unmet

if TYPE_CHECKING:
    from retire.registry.interface import Registry

_log = logging.getLogger("retire.operator.registry")
# The nodes' own tenant (retire.sidecar.tenants): present in every registry, holds no scope.
NODE_TENANT: Final = "retire-node"
AUTHOR: Final = "operator"
_AT_ONCE: Final = 8


async def look(registry: Registry, only: Iterable[str] | None = None) -> Held:
    """What the registry holds; snapshots of every tenant, or of ``only`` those."""
    try:
        named = frozenset(await registry.list_tenants())
    except NeedRegister:
        return Held(tenants=None)
    asked = named if only is None else named & frozenset(only)
    found: dict[str, Snapshot] = {}
    bereft: set[str] = set()

    async def one(tenant: str) -> None:
        try:
            found[tenant] = await registry.snapshot(tenant)
        except NeedRegister:
            bereft.add(tenant)

    await _side_by_side(one, sorted(asked))
    return Held(named, found, frozenset(bereft))


class Writer:
    """Writes every tenant anew. ``on_written`` hears of each one that this process wrote."""

    def __init__(
        self, registry: Registry, *, on_written: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        self._registry = registry
        self._on_written = on_written

    async def write(
        self,
        plans: Mapping[str, TenantPlan],
        quotas: Mapping[str, int | None],
        *,
        term: int,
        settle_s: float,
    ) -> str:
        """All tenants under ``term``; the nodes' own one last, so that it stands for all. Returns
        its incarnation. TermMismatch when the registry has moved past ``term``."""

        async def one(tenant: str) -> None:
            await self._tenant(plans[tenant], quotas.get(tenant), term=term, settle_s=settle_s)

        await _side_by_side(one, [tenant for tenant in plans if tenant != NODE_TENANT])
        nodes = plans.get(NODE_TENANT) or TenantPlan(NODE_TENANT, (), 0, None)
        await self._tenant(nodes, None, term=term, settle_s=settle_s)
        held = await look(self._registry)
        for plan in plans.values():
            for record in unmet(plan, held):
                await self._restore(record, term)
        return await self._registry.hello(NODE_TENANT, term=term)

    async def open_tenant(self, tenant: str, *, term: int, settle_s: float) -> None:
        """A tenant that nobody knew when the registry was written: while leases of an older term
        may run, its first commits must wait for them too."""
        if settle_s > 0:  # else not asked: a snapshot is as long as the tenant has scopes
            try:
                await self._registry.snapshot(tenant)
            except NeedRegister:
                plan = TenantPlan(tenant, (), 0, None)
                await self._tenant(plan, None, term=term, settle_s=settle_s)
        await self._registry.hello(tenant, term=term)

    async def _tenant(
        self, plan: TenantPlan, quota_blocks: int | None, *, term: int, settle_s: float
    ) -> None:
        try:
            await self._registry.rebuild(
                plan.tenant,
                term=term,
                scopes=plan.scopes,
                quota_blocks=quota_blocks,
                sequence=plan.sequence,
                settle_s=settle_s,
            )
        except TermMismatch as error:
            if (await self._registry.snapshot(plan.tenant)).term != term:
                raise
            # A node that followed the term was faster; what it did not know is added afterwards.
            _log.info("tenant was written by a node", extra=fields(tenant=plan.tenant, why=error))
            return
        self._on_written(plan.tenant, term)
        _log.warning(
            "tenant rebuilt", extra=fields(tenant=plan.tenant, term=term, scopes=len(plan.scopes))
        )

    async def _restore(self, wanted: ScopeRecord, term: int) -> None:
        """A scope that whoever wrote the tenant first did not know, or did not know to be over."""
        record = await self._registered(wanted, term)
        if wanted.cancelled and not record.cancelled:
            await self._commit(CommitKind.CANCEL, record, term)
        elif wanted.paused and record.created:
            await self._commit(CommitKind.PAUSE, record, term)

    async def _registered(self, wanted: ScopeRecord, term: int) -> ScopeRecord:
        try:
            return await self._registry.get(wanted.key)
        except UnknownScope:
            pass
        epoch, policy = wanted.version.epoch, wanted.policy
        try:
            return await self._registry.register(
                wanted.key, term=term, epoch=epoch, policy=policy, parent=wanted.parent
            )
        except (NeedRegister, ScopeClosed):  # without its parent rather than not at all
            return await self._registry.register(wanted.key, term=term, epoch=epoch, policy=policy)

    async def _commit(self, kind: CommitKind, record: ScopeRecord, term: int) -> None:
        name = hashlib.sha256(record.key.scope.encode()).hexdigest()[:32]
        await self._registry.commit(
            kind,
            record.key,
            term=term,
            expected=record.version,
            idempotency_key=f"rebuild/{term}/{kind.value}/{name}",
            body_digest="",
            by=AUTHOR,
        )


async def _side_by_side(one: Callable[[str], Awaitable[None]], tenants: Sequence[str]) -> None:
    places = asyncio.Semaphore(_AT_ONCE)

    async def placed(tenant: str) -> None:
        async with places:
            await one(tenant)

    # Nothing of a step runs on after it: all are awaited, then the first failure is raised.
    done = await asyncio.gather(*(placed(tenant) for tenant in tenants), return_exceptions=True)
    for failure in done:
        if failure is not None:
            raise failure

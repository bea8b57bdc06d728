"""Watches the registry: opens it once, notices that it lost its data, has it rebuilt under a new
term.

Owns when the term rises and when commits may resume. A process writes the registry only under a
term that it made itself by compare-and-set, and from the beginning: a term that somebody else left
half-written is ended by the next one. So nothing is ever written twice under one term, whoever is
killed where. Must never be needed for safety: versions and compare-and-set are.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from retire.protocol.errors import (
    NeedRegister,
    RegistryUnavailable,
    RetireError,
    TermMismatch,
)
from retire.protocol.gate import DRIFT_MARGIN
from retire.telemetry.logs import fields
from retire_operator.gathering import Gatherer
from retire_operator.rebuild import Facts, Held, TenantPlan, loss, plan_rebuild
from retire_operator.registry_writer import NODE_TENANT, Writer, look
from retire_operator.term import Term, TermLease

if TYPE_CHECKING:
    from retire.registry.interface import Registry

_log = logging.getLogger("retire.operator.registry")

SYNCED: Final = "RegistrySynced"
UNAVAILABLE: Final = "RegistryUnavailable"
REBUILDING: Final = "RegistryRebuilding"
NO_TERM: Final = "TermUnavailable"


@dataclass(frozen=True, slots=True)
class RegistryState:
    """Under which term the registry stands; nothing is committed unless ``synced``."""

    term: int
    synced: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Times in seconds."""

    watch_s: float = 1.0  # a light look: the nodes, the names of the tenants, the term
    full_s: float = 15.0  # every tenant's data against CR status
    takeover_s: float = 5.0  # how long another operator may take to write a registry
    patience_s: float = 2.0  # how long a node may take to enter a registry of a new term
    settle_s: float = 2.0  # the longest publish lease of a node that cannot be asked


class Quotas(Protocol):
    """What the namespaces give a tenant (tenants.py)."""

    async def decided(self, tenant: str, held: int | None) -> int | None:
        """The tenant's quota in blocks; ``held``: what the registry held, kept without an
        opinion."""
        ...


class RegistryGuard:
    """One per operator. ``connect(create_when_empty)`` makes a client; ``clock`` is monotonic."""

    def __init__(
        self,
        lease: TermLease,
        gatherer: Gatherer,
        quotas: Quotas,
        *,
        connect: Callable[[bool], Registry],
        clock: Callable[[], float],
        settings: GuardSettings | None = None,
        on_written: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._lease = lease
        self._gatherer = gatherer
        self._quotas = quotas
        self._connect = connect
        self._clock = clock
        self._settings = settings or GuardSettings()
        self._registry = connect(False)
        self._writer = Writer(self._registry, on_written=on_written)
        self._lock = asyncio.Lock()
        self._state = RegistryState(0, False, REBUILDING, "the registry was not looked at yet")
        self._looked_s = self._full_s = -math.inf
        self._term_s = (0, clock())  # a term, and since when we know it
        self._written: int | None = None  # the term that this process wrote completely
        self._term_seen = 0  # the highest term that the registry ever answered with
        self._lease_s = self._settings.settle_s  # the longest publish lease ever seen
        self._settled_s = math.inf  # when the last lease of an older term has ended
        self.rebuilds = 0

    @property
    def state(self) -> RegistryState:
        """The last answer, however old."""
        return self._state

    async def ensure(self) -> RegistryState:
        """The last answer while it is fresh, else a new one."""
        if self._fresh:
            return self._state
        async with self._lock:
            return self._state if self._fresh else await self._round()

    async def check(self) -> RegistryState:
        """Look now."""
        async with self._lock:
            return await self._round()

    def suspect(self, why: str) -> None:
        """The registry contradicted somebody: look at everything before the next answer."""
        _log.info("registry suspected", extra=fields(why=why))
        self._looked_s = self._full_s = -math.inf

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.check()
            except Exception:  # a fault of ours must not end the watch
                _log.exception("the registry could not be checked")
            await asyncio.sleep(self._settings.watch_s)

    async def open_tenant(self, tenant: str) -> None:
        """Open a tenant for its first scope; Unavailable unless the registry is synced."""
        state = await self.ensure()
        if not state.synced:
            raise RegistryUnavailable(f"{state.reason}: {state.message}")
        left_s = max(0.0, self._settled_s - self._clock())
        settle_s = min(left_s, self._settle_s)
        await self._writer.open_tenant(tenant, term=state.term, settle_s=settle_s)

    async def close(self) -> None:
        """Close the registry client."""
        await self._registry.close()

    @property
    def _fresh(self) -> bool:
        return self._clock() - self._looked_s < 2 * self._settings.watch_s

    @property
    def _settle_s(self) -> float:
        return self._lease_s * (1 + DRIFT_MARGIN)

    async def _round(self) -> RegistryState:
        now_s = self._clock()
        full = not self._state.synced or now_s - self._full_s >= self._settings.full_s
        before = self._state
        try:
            self._state = await self._look(full=full)
            self._full_s = now_s if full else self._full_s
        except RetireError as error:
            self._state = RegistryState(self._state.term, False, _reason(error), str(error))
            self._full_s = -math.inf
        self._looked_s = self._clock()
        if (before.synced, before.reason, before.term) != (
            self._state.synced,
            self._state.reason,
            self._state.term,
        ):
            _log.info("registry", extra=fields(state=self._state))
        return self._state

    async def _look(self, *, full: bool) -> RegistryState:
        # In this order: whoever knows something learned it from the registry, which may only be
        # ahead.
        term = await self._lease.current()
        facts = await (self._gatherer.known() if full else self._gatherer.nodes())
        held = await look(self._registry, None if full else (NODE_TENANT,))
        self._note(term, facts, held)
        why = self._loss(term, facts, held)
        if not why and term.incarnation:
            return self._synced(term)
        if not full:
            return await self._look(full=True)
        if not why and self._written == term.number:
            # All was written; only the note of it was lost.
            await self._lease.complete(term.number, held.snapshots[NODE_TENANT].incarnation)
            return self._synced(term)
        if term.number == 0 and held.tenants is None and not facts.tenants() and not facts.term:
            return await self._open_first(term)
        return await self._end_term(term, why or f"term {term.number} was left half-written")

    def _note(self, term: Term, facts: Facts, held: Held) -> None:
        if term.number != self._term_s[0]:
            self._term_s = (term.number, self._clock())
            # Who entered under an older term holds its lease for at most this long from now on.
            self._settled_s = self._clock() + self._settle_s if term.number > 1 else -math.inf
        self._lease_s = max(self._lease_s, facts.publish_lease_s)
        self._term_seen = max(self._term_seen, held.term)

    def _loss(self, term: Term, facts: Facts, held: Held) -> str:
        why = loss(facts, held, term.number)
        if why:
            return why
        nodes = held.snapshots.get(NODE_TENANT)
        if nodes is None:
            return "the registry has no tenant for the nodes"
        if term.incarnation not in ("", nodes.incarnation):
            return f"the registry is another: incarnation {nodes.incarnation}"
        number, since_s = self._term_s
        if self._clock() - since_s < self._settings.patience_s:
            return ""  # nodes are still on their way into the registry of this term
        lost = (n for n in facts.nodes if n.registry_lost and n.term == number)
        return next((f"node {n.name}: {n.registry_lost}" for n in lost), "")

    def _synced(self, term: Term) -> RegistryState:
        return RegistryState(
            term.number, True, SYNCED, f"the registry is complete under term {term.number}"
        )

    async def _open_first(self, term: Term) -> RegistryState:
        """Nothing was ever known to anybody: the only time that an empty registry is a new one."""
        await self._registry.check_durability()  # a term is not spent on what cannot be written
        made = await self._lease.advance(term.number)
        opener = self._connect(True)
        try:
            incarnation = await opener.hello(NODE_TENANT, term=made.number)
        finally:
            await opener.close()
        self._written = made.number
        self._note(made, Facts(), Held(None))
        await self._lease.complete(made.number, incarnation)
        _log.info("registry opened", extra=fields(term=made.number))
        return self._synced(made)

    async def _end_term(self, term: Term, why: str) -> RegistryState:
        """The registry is not that of ``term``: the next one, unless another operator is at it."""
        others = term.holder not in ("", self._lease.identity)
        waited_s = self._clock() - self._term_s[1]
        if others and not term.incarnation and waited_s < self._settings.takeover_s:
            message = f"operator {term.holder} is writing the registry under term {term.number}"
            return RegistryState(term.number, False, REBUILDING, message)
        _log.error("registry lost", extra=fields(term=term.number, why=why))
        return await self._rebuild(term, why)

    async def _rebuild(self, term: Term, why: str) -> RegistryState:
        # Everything is read before the term rises: nodes wait for what follows.
        facts = await self._gatherer.everything()
        held = await look(self._registry)
        self._note(term, facts, held)
        target = max(term.number, facts.term, self._term_seen) + 1
        plans = plan_rebuild(facts, held, target)
        quotas = {plan.tenant: await self._quota(plan) for plan in plans.values()}
        await self._registry.check_durability()  # a term is not spent on what cannot be written
        made = await self._lease.advance(term.number, target)
        self._note(made, facts, held)
        try:
            incarnation = await self._writer.write(
                plans, quotas, term=made.number, settle_s=self._settle_s
            )
        except TermMismatch as error:
            self._term_seen = max(self._term_seen, getattr(error, "held", None) or 0)
            raise
        self._written = made.number
        self.rebuilds += 1
        await self._lease.complete(made.number, incarnation)
        _log.warning(
            "registry rebuilt", extra=fields(term=made.number, tenants=len(plans), why=why)
        )
        return self._synced(made)

    async def _quota(self, plan: TenantPlan) -> int | None:
        if plan.tenant == NODE_TENANT:
            return None
        return await self._quotas.decided(plan.tenant, plan.quota_blocks)


def _reason(error: RetireError) -> str:
    match error:
        case RegistryUnavailable():
            return UNAVAILABLE
        case TermMismatch() | NeedRegister():  # another operator was faster, or it is lost again
            return REBUILDING
        case _:
            return NO_TERM

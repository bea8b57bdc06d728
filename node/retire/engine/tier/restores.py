"""Records on their way back from the host, and the successors that wait for them.

Destination blocks are pinned for the record and known to nobody until every rank has found in them
the digests that were taken when they were offloaded; then the record is pinned in HBM again and its
successors are aligned as usual. Whatever else happens, the blocks are given back, but never before
the last transfer into them has ended. Must never import vLLM.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from retire.engine.pins import PinOwner
from retire.engine.tier.copies import At
from retire.engine.tier.orders import Done, Restore
from retire.protocol.alignment import KvGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.request import Request

    from retire.engine.records import Record
    from retire.engine.seams.kv_cache import Chain
    from retire.engine.tier.copies import HostCopy
    from retire.engine.tier.host_tier import HostTier


class RestoreResult(Enum):
    """What became of a restore."""

    RESTORED = "restored"
    DAMAGED = "damaged"  # other bytes than were offloaded, or fewer
    STALE = "stale"  # of another owner, version, generation or engine: nothing was copied
    LATE = "late"  # not there within RETIRE_RESTORE_TIMEOUT_MS
    NO_ROOM = "no_room"  # no free blocks for it within that time
    QUOTA = "quota"  # the tenant's pins are exhausted


@dataclass(frozen=True, slots=True)
class Waiter:
    """A successor that waits, and how much of the record it can use."""

    request: Request
    tokens: int


@dataclass(slots=True)
class Restoring:
    """One record's way back. ``chain`` is there once its transfer was ordered."""

    job: int
    record: Record
    copy: HostCopy
    tokens: int
    deadline_s: float  # monotonic
    waiters: dict[str, Waiter] = field(default_factory=dict)
    owner: PinOwner | None = None
    chain: Chain | None = None
    given_up: RestoreResult | None = None  # its waiters went on without it


@dataclass(slots=True)
class Restores:
    """Restores of one tier. ``settled`` is told each waiter's id, and what came of its wait."""

    tier: HostTier
    jobs: dict[int, Restoring] = field(default_factory=dict)
    settled: Callable[[str, RestoreResult], None] = lambda request_id, result: None

    def owners(self) -> set[PinOwner]:
        """Leases over blocks that a transfer may still write."""
        return {r.owner for r in self.jobs.values() if r.owner is not None}

    @property
    def lacking_room(self) -> bool:
        """Whether a restore waits for free blocks."""
        return any(r.owner is None for r in self.jobs.values())

    # --- a successor waits -----------------------------------------------------------------------

    def join(self, request: Request, record: Record, tokens: int) -> RestoreResult | None:
        """Wait for ``tokens`` tokens of a record; None: ``settled`` will be told, never at once."""
        assert record.copy is not None
        if not self.tier.sealed(record):
            self.tier.drop(record)
            return RestoreResult.STALE
        running = self._running(record, tokens) or self._new(record, tokens)
        running.waiters[request.request_id] = Waiter(request, tokens)
        return None

    def leave(self, request_id: str) -> None:
        """The successor waits no longer. The restore goes on: the next one may want it too."""
        for restoring in self.jobs.values():
            restoring.waiters.pop(request_id, None)

    def _running(self, record: Record, tokens: int) -> Restoring | None:
        fitting = (
            r
            for r in self.jobs.values()
            if r.record is record and r.given_up is None and r.tokens >= tokens
        )
        return next(fitting, None)

    def _new(self, record: Record, tokens: int) -> Restoring:
        assert record.copy is not None
        job = self.tier.new_job()
        deadline_s = time.monotonic() + self.tier.settings.restore_timeout_s
        restoring = Restoring(job, record, record.copy, tokens, deadline_s)
        restoring.copy.stored.readers += 1
        self.jobs[job] = restoring
        return restoring

    # --- transfers -------------------------------------------------------------------------------

    def begin_waiting(self) -> None:
        """Order the transfers that have room now."""
        for restoring in [r for r in self.jobs.values() if r.owner is None]:
            self._begin(restoring)

    def _begin(self, restoring: Restoring) -> None:
        retained = self.tier.retained
        if restoring.copy.stored.at is not At.REST or not restoring.waiters:
            self._give_up(restoring, RestoreResult.STALE)
            return
        places = self._places(restoring)
        wanted = sorted({p for group in places for p in group if p is not None})
        left = retained.ledger.left(restoring.record.key.tenant)
        if left is not None and len(wanted) > left:
            self._give_up(restoring, RestoreResult.QUOTA)
        elif len(wanted) <= retained.cache.free_blocks:
            blocks = retained.cache.new_blocks(wanted)
            restoring.chain = retained.cache.chain_of(restoring.tokens, places, blocks)
            restoring.owner = self._hold(restoring, restoring.chain)
            ids = tuple(blocks[position].block_id for position in wanted)
            stored = restoring.copy.stored
            self.tier.orders.begin.append(Restore(restoring.job, stored.job, tuple(wanted), ids))

    def _places(self, restoring: Restoring) -> tuple[tuple[int | None, ...], ...]:
        """Per KV group and block, the position to restore; None: the successor never reads it."""
        cache = self.tier.retained.cache
        places: list[tuple[int | None, ...]] = []
        groups = zip(cache.block_sizes, cache.windows, restoring.copy.index, strict=True)
        for size, window, index in groups:
            first, past = KvGroup(size, (), window).needs(restoring.tokens)
            places.append((None,) * first + index[first:past])
        return tuple(places)

    def _hold(self, restoring: Restoring, chain: Chain) -> PinOwner:
        retained, record = self.tier.retained, restoring.record
        name = f"{record.request_id}/restore-{restoring.job}"
        owner = PinOwner(record.key, name, record.version)
        ids = [block.block_id for block in chain.real_blocks()]
        retained.ledger.pin(owner, ids, expires_s=float("inf"))  # until its transfer has ended
        left = retained.ledger.left(record.key.tenant)
        retained.chronicle.pinned(owner.key, owner.version, ids, left)
        return owner

    def ended(self, job: int, answers: dict[int, Done]) -> None:
        """Every rank's transfers have ended: install what they brought, or give the blocks back."""
        restoring = self.jobs.pop(job)
        stored = restoring.copy.stored
        result = restoring.given_up or self._judge(restoring, answers)
        if result is RestoreResult.DAMAGED and restoring.record.copy is restoring.copy:
            self.tier.drop(restoring.record)
        self.tier.read_to_end(stored)
        if result is RestoreResult.RESTORED and restoring.waiters:
            self._install(restoring)
        else:
            self.tier.retained.unpin(restoring.owner)
        self._tell(restoring, result)

    def _judge(self, restoring: Restoring, answers: dict[int, Done]) -> RestoreResult:
        if restoring.record.copy is not restoring.copy or not self.tier.sealed(restoring.record):
            return RestoreResult.STALE
        wanted = sorted({p for group in self._places(restoring) for p in group if p is not None})
        found = tuple(answers[rank].tags for rank in sorted(answers))
        if any(done.error for done in answers.values()) or found != restoring.copy.tags(wanted):
            return RestoreResult.DAMAGED
        return RestoreResult.RESTORED

    def _install(self, restoring: Restoring) -> None:
        """The record is pinned in HBM again; its blocks may be found like any that are written."""
        retained, record = self.tier.retained, restoring.record
        assert restoring.chain is not None and restoring.owner is not None
        ids = [block.block_id for block in restoring.chain.real_blocks()]
        retained.chronicle.restored(record.key, record.version, ids)
        furthest = max(restoring.waiters.values(), key=lambda waiter: waiter.tokens)
        retained.unpin_record(record)
        record.chain = retained.cache.register(furthest.request, restoring.chain, furthest.tokens)
        record.pinned, record.restored = restoring.owner, True
        retained.ledger.renew(restoring.owner, expires_s=retained.expires_s(record.key))

    # --- without it ------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """Let the successors of late restores go on without them."""
        for restoring in list(self.jobs.values()):
            if restoring.deadline_s <= now_s and restoring.given_up is None:
                lacked = restoring.owner is None
                self._give_up(restoring, RestoreResult.NO_ROOM if lacked else RestoreResult.LATE)

    def void(self) -> None:
        """Nothing on its way may be installed: the cache is being reset."""
        for restoring in list(self.jobs.values()):
            if restoring.given_up is None:
                self._give_up(restoring, RestoreResult.STALE)

    def _give_up(self, restoring: Restoring, why: RestoreResult) -> None:
        restoring.given_up = why
        if restoring.owner is None:  # nothing was ordered
            del self.jobs[restoring.job]
            self.tier.read_to_end(restoring.copy.stored)
        else:
            self.tier.orders.cancel.append(restoring.job)
        self._tell(restoring, why)

    def _tell(self, restoring: Restoring, result: RestoreResult) -> None:
        waiters, restoring.waiters = restoring.waiters, {}
        for request_id in waiters:
            self.settled(request_id, result)

"""The DRAM tier of one engine, scheduler side: which records are at rest, and their way back.

A record whose contract says ``dram`` is copied to the host while its HBM pins still hold; when
every rank has its pages and their digests, the pins end. For a successor it is first brought back
into fresh blocks (``restores``). Decides and keeps account; transfers are the workers', and only
``drain`` waits for one. Must never import vLLM.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from retire.engine.chronicle import Chronicle
from retire.engine.tier.budget import HostBudget, HostRefusal
from retire.engine.tier.copies import At, Binding, HostCopy, Stored, is_sealed, seal
from retire.engine.tier.orders import Done, Offload, Orders
from retire.engine.tier.restores import Restores
from retire.protocol.contract import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retire.engine.records import Record
    from retire.engine.retained import Retained
    from retire.engine.tier.settings import HostSettings
    from retire.protocol.contract import Contract
    from retire.protocol.versions import ScopeKey

_log = logging.getLogger("retire.engine")
REFUSALS_MAX: Final = 4096  # scopes


class Workers(Protocol):
    """Every rank of the engine."""

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's pages in every layer, all ranks together."""
        ...

    def exchange(self, orders: Orders, *, wait: bool) -> list[tuple[int, Done]]:
        """Send orders; returns what has ended, by rank. ``wait``: for the answers, not the jobs."""
        ...

    def drain(self) -> list[tuple[int, Done]]:
        """Wait for every job that was begun; returns what has ended."""
        ...


@dataclass(slots=True)
class HostTier:
    """What is at rest or on its way. ``off`` says why there is no such tier; None: there is."""

    retained: Retained
    settings: HostSettings
    off: str | None = "no worker is attached"
    budget: HostBudget = field(init=False)
    restores: Restores = field(init=False)
    refused: dict[ScopeKey, HostRefusal] = field(default_factory=dict)  # of the newest FENCE
    _chronicle: Chronicle | None = None
    _decided: bool = False
    _workers: Workers | None = None
    _orders: Orders = field(default_factory=Orders)
    _moving: dict[int, tuple[Stored, list[Record]]] = field(default_factory=dict)  # by job
    _kept: dict[int, Stored] = field(default_factory=dict)  # by job: memory of ours in the workers
    _answers: dict[int, dict[int, Done]] = field(default_factory=dict)  # job -> rank -> answer
    _jobs: count[int] = field(default_factory=lambda: count(1))
    _rows: int = 0  # pages ever offloaded: each has a number of its own in the history

    def __post_init__(self) -> None:
        self.budget = HostBudget(self.settings.bytes, self.settings.tenant_bytes)
        self.restores = Restores(self)

    def attach(self, connect: Callable[[], Workers], *, unfit: str | None) -> None:
        """Reach the workers, once. ``unfit``: why this engine cannot have the tier, if so."""
        if self._decided:
            return
        self._decided = True
        self.off = unfit if self.settings.bytes else "it is switched off"
        if self.off is None:
            self._workers = connect()
        else:
            _log.warning("no DRAM tier: %s; contracts that ask for it keep HBM", self.off)

    @property
    def chronicle(self) -> Chronicle:
        """Host memory in the history: a node of its own, whose blocks are pages at rest."""
        if self._chronicle is None:
            engine = self.retained.chronicle
            self._chronicle = Chronicle(f"{engine.node}/dram", engine.write)
        return self._chronicle

    @property
    def attached(self) -> bool:
        """Whether it was decided if there is such a tier."""
        return self._decided

    @property
    def jobs(self) -> int:
        """Transfers that are not over."""
        return len(self._moving) + len(self.restores.jobs)

    @property
    def busy(self) -> bool:
        """Whether a worker has, or gets, something to do."""
        return bool(self._orders or self._moving or self._answers or self.restores.jobs)

    @property
    def active(self) -> bool:
        """Whether anything must be looked after."""
        return self.busy or bool(self._kept)

    # --- offload ---------------------------------------------------------------------------------

    def settle(self, records: list[Record], contract: Contract, expires_s: float) -> None:
        """What a FENCE asks: the newest contract bounds what is at rest, too."""
        if not records:
            return
        key = records[0].key
        self.refused.pop(key, None)
        if contract.tier is Tier.DRAM and (refused := self._keep(records, expires_s)) is not None:
            self.refused[key] = refused
            if len(self.refused) > REFUSALS_MAX:
                del self.refused[next(iter(self.refused))]
        for record in records:
            if record.copy is not None:
                record.copy.expires_s = expires_s

    def _keep(self, records: Iterable[Record], expires_s: float) -> HostRefusal | None:
        """Begin to copy pinned records of one scope, the newest first; why some stay in HBM only.

        Pages that several records share are copied once.
        """
        new = [
            record
            for record in records
            if record.copy is None and record.pinned is not None and record.chain.real_blocks()
        ]
        if self.off is not None or self._workers is None:
            return HostRefusal.OFF if new else None
        refused: HostRefusal | None = None
        while new and (refused := self._offload(new, expires_s)) is not None:
            new.pop()
            if not new:
                return refused
        return refused

    def _offload(self, records: list[Record], expires_s: float) -> HostRefusal | None:
        assert self._workers is not None
        where: dict[int, int] = {}
        for record in records:
            for block in record.chain.real_blocks():
                where.setdefault(block.block_id, len(where))
        job, key = self.new_job(), records[0].key
        size = len(where) * self._workers.block_bytes
        refused = self.budget.charge(job, key.tenant, size)
        if refused is not None:
            return refused
        stored = Stored(
            job, key, records[0].version, len(where), size, self._rows, holders=len(records)
        )
        self._rows += len(where)
        for record in records:
            record.copy = self._copy_of(record, stored, where, expires_s)
        self._kept[job] = stored
        self._moving[job] = (stored, list(records))
        self._orders.begin.append(Offload(job, tuple(where)))
        return None

    def _copy_of(
        self, record: Record, stored: Stored, where: dict[int, int], expires_s: float
    ) -> HostCopy:
        return HostCopy(
            stored,
            record.chain.tokens,
            tuple(
                tuple(None if block.is_null else where[block.block_id] for block in group)
                for group in record.chain.blocks
            ),
            self.retained.certifier.generation,
            expires_s,
            held=self.retained.cache.held(record.chain),
        )

    def _at_rest(self, job: int, answers: dict[int, Done]) -> None:
        """Every rank has its pages: the HBM pins of those that still want them end."""
        stored, records = self._moving.pop(job)
        mine = [r for r in records if r.copy is not None and r.copy.stored is stored]
        failed = next((done.error for done in answers.values() if done.error), None)
        if failed is not None or stored.at is At.GONE:
            for record in mine:
                record.copy = None
            stored.holders = 0
            self._give_back(stored)
            return
        stored.at = At.REST
        stored.tags = tuple(answers[rank].tags for rank in sorted(answers))
        self.chronicle.pinned(stored.key, stored.version, stored.rows(), None)
        for record in mine:
            assert record.copy is not None
            record.copy.seal = seal(record.copy, self.binding(record), self._secret)
            self.retained.unpin_record(record)

    # --- what a copy must still be ---------------------------------------------------------------

    @property
    def _secret(self) -> bytes:
        return self.retained.certifier.identity.key

    def binding(self, record: Record) -> Binding:
        """Whose KV a record's copy must be, as things are now."""
        certifier = self.retained.certifier
        return Binding(
            record.key,
            record.version,
            certifier.generation,
            certifier.identity.fingerprint,
            certifier.identity.numerical_mode,
            record.tokens,
        )

    def sealed(self, record: Record) -> bool:
        """Whether a record's copy is at rest and still what was sealed."""
        copy = record.copy
        return (
            copy is not None
            and copy.stored.at is At.REST
            and copy.generation == self.retained.certifier.generation
            and is_sealed(copy, self.binding(record), self._secret)
        )

    def stop_moving(self, record: Record) -> None:
        """Its successor is here: what HBM still holds need not go."""
        if record.copy is not None and record.copy.stored.at is At.MOVING:
            self.drop(record)

    # --- the end of a copy -----------------------------------------------------------------------

    def drop(self, record: Record) -> None:
        """A record's copy is wanted no more."""
        copy, record.copy = record.copy, None
        if copy is None:
            return
        stored = copy.stored
        stored.holders -= 1
        if stored.holders:
            return
        moving, stored.at = stored.at is At.MOVING, At.GONE
        if moving:
            self._orders.cancel.append(stored.job)
        elif not stored.readers:
            self._give_back(stored)

    def read_to_end(self, stored: Stored) -> None:
        """A restore from it touches its memory no more."""
        stored.readers -= 1
        if stored.at is At.GONE and not stored.readers:
            self._give_back(stored)

    def _give_back(self, stored: Stored) -> None:
        if stored.tags:
            self.chronicle.unpinned(stored.key, stored.version, stored.rows())
        stored.at = At.GONE
        self._orders.drop.append(stored.job)
        del self._kept[stored.job]
        self.budget.refund(stored.job)

    def expire(self, now_s: float) -> None:
        """Give up the copies whose lease is over, and restores that are late."""
        for key in {stored.key for stored in self._kept.values()}:
            for record in self.retained.records.get(key, ()):
                if record.copy is not None and record.copy.expires_s <= now_s:
                    self.drop(record)
        self.restores.expire(now_s)

    # --- the workers -----------------------------------------------------------------------------

    def poll(self, *, idle: bool) -> None:
        """Send orders, take in what has ended. ``idle``: no step is in flight."""
        if self._workers is None or not self.busy:
            return
        self.restores.begin_waiting()
        orders, self._orders = self._orders, Orders()
        self._take(self._workers.exchange(orders, wait=idle))

    def new_job(self) -> int:
        """A number for a job, never used again."""
        return next(self._jobs)

    @property
    def orders(self) -> Orders:
        """What goes to the workers with the next poll."""
        return self._orders

    def drain(self) -> None:
        """Void what is on its way and wait until nothing is: the cache is being reset."""
        self.restores.void()
        while self._workers is not None and self.busy:
            orders, self._orders = self._orders, Orders()
            self._take(self._workers.exchange(orders, wait=True))
            self._take(self._workers.drain())

    def _take(self, ended: list[tuple[int, Done]]) -> None:
        assert self._workers is not None
        for rank, done in ended:
            answers = self._answers.setdefault(done.job, {})
            answers[rank] = done
            if len(answers) < self._workers.ranks:
                continue
            del self._answers[done.job]
            if done.job in self._moving:
                self._at_rest(done.job, answers)
            else:
                self.restores.ended(done.job, answers)

    # --- what it amounts to ----------------------------------------------------------------------

    def pages_for(self, key: ScopeKey) -> int:
        """Pages at rest for a scope; those still moving are pinned in HBM and counted there."""
        return sum(s.pages for s in self._kept.values() if s.key == key and s.at is At.REST)

    def bytes_for(self, key: ScopeKey) -> int:
        """Host bytes charged for a scope."""
        return sum(s.size for s in self._kept.values() if s.key == key)

    def audit(self) -> list[str]:
        """Faults in the account: empty when sound."""
        held: dict[int, int] = {}
        for records in self.retained.records.values():
            for record in records:
                if record.copy is not None:
                    held[record.copy.stored.job] = held.get(record.copy.stored.job, 0) + 1
        faults = [
            f"copy {job} counts {stored.holders} holders, {held.get(job, 0)} records hold it"
            for job, stored in self._kept.items()
            if stored.holders != held.get(job, 0)
        ]
        if self.budget.copies() != set(self._kept):
            faults.append(f"charged {self.budget.copies()}, kept {set(self._kept)}")
        leaked = [s.job for s in self._kept.values() if s.at is At.GONE and not self.busy]
        return faults + [f"copy {job} is given up but still charged" for job in leaked]

"""ALIGN and RESUME inside the engine: what ended requests leave, and what a successor takes over.

Owns the fence records of retired requests, their pins, and each successor's certificate until its
adoption is verified. Works on ``seams.kv_cache`` blocks; must never import vLLM.

A *record* is left by every scoped request that ends. Superseded: its written blocks are pinned at
once under a lease. Ended by itself (finished, client gone): its blocks stay ordinary cache,
remembered with their hashes, and are pinned when a SUPERSEDE comes, as far as they are intact.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from retire.engine.certification import Certifier
from retire.engine.chronicle import Chronicle
from retire.engine.pins import PinLedger, PinOwner
from retire.engine.records import NOTHING, Outcome, Record, Successor, record_of, same_namespace
from retire.protocol.alignment import Alignment, KvGroup, align, cold
from retire.protocol.contract import Contract, StopReason
from retire.protocol.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.request import Request

    from retire.engine.records import Ending
    from retire.engine.seams.kv_cache import Chain, KvCache
    from retire.engine.tag import Tag
    from retire.protocol.versions import ScopeKey, Version

RECORDS_PER_SCOPE: Final = 8
RECORD_TOKENS_MAX: Final = 8 * 2**20  # remembered in all, 4 bytes each; the oldest go first
OUTCOMES_MAX: Final = 1024
EXPECTED_MAX: Final = 8192  # scopes whose successor somebody waits for
UNREPORTED_SCOPES_MAX: Final = 4096
_COLD: Final = frozenset({StopReason.QUOTA, StopReason.CONTRACT, StopReason.FINGERPRINT})


_DEFAULT: Final = Contract()


@dataclass(slots=True)
class Inheritance:
    """Records, pins and certificates of one engine."""

    cache: KvCache
    certifier: Certifier
    chronicle: Chronicle
    ledger: PinLedger = field(default_factory=PinLedger)
    _records: OrderedDict[ScopeKey, deque[Record]] = field(default_factory=OrderedDict)
    _contracts: dict[ScopeKey, Contract] = field(default_factory=dict)  # of the newest FENCE
    _outcomes: OrderedDict[str, Outcome] = field(default_factory=OrderedDict)
    _successors: dict[str, Successor] = field(default_factory=dict)  # aligned, not running yet
    _expected: OrderedDict[tuple[ScopeKey, Version], list[Callable[[str, Outcome], None]]] = field(
        default_factory=OrderedDict
    )
    _unreported: OrderedDict[ScopeKey, deque[Record]] = field(default_factory=OrderedDict)
    _remembered: int = 0  # tokens in all records

    @property
    def active(self) -> bool:
        """Whether a step has anything of ours to look after."""
        return bool(self.ledger.pins or self._successors)

    # --- a request ends ------------------------------------------------------------------------

    def ended(self, request: Request, tag: Tag, end: Ending) -> None:
        """Remember an ending request; keep its blocks at once when it was superseded."""
        successor = self._successors.pop(request.request_id, None)
        if successor is not None:
            self._unpin(successor.owner)
        record = record_of(request, tag, self.cache.chain(request.request_id, end.frontier), end)
        if end.superseded:
            self._keep(record)
        self._remember(record)

    def _remember(self, record: Record) -> None:
        self._unreported.setdefault(record.key, deque(maxlen=RECORDS_PER_SCOPE)).append(record)
        if len(self._unreported) > UNREPORTED_SCOPES_MAX:
            self._unreported.popitem(last=False)
        records = self._records.setdefault(record.key, deque())
        self._records.move_to_end(record.key)
        records.append(record)
        self._remembered += len(record.tokens)
        if len(records) > RECORDS_PER_SCOPE:
            self._let_go(records.popleft())
        while self._remembered > RECORD_TOKENS_MAX and len(self._records) > 1:
            self._forget(next(iter(self._records)))

    def _forget(self, key: ScopeKey, below: Version | None = None) -> int:
        """Drop a scope's records (of versions below); returns the pins ended, in blocks."""
        records = self._records.pop(key, deque())
        stay = deque(r for r in records if below is not None and not r.version < below)
        if stay:
            self._records[key] = stay
        return sum(self._let_go(r) for r in records if r not in stay)

    def _keep(self, record: Record) -> None:
        """Pin what the record's chain still holds, within contract and quota."""
        contract = self._contracts.get(record.key, _DEFAULT)
        if self.certifier.forbids(contract):
            record.refused = StopReason.CONTRACT
            return
        if not record.superseded:
            record.chain = self.cache.cut(record.chain, self.cache.intact_tokens(record.chain))
        owner = PinOwner(record.key, record.request_id, record.version)
        if self._pin(owner, record.chain, time.monotonic() + contract.ttl_s):
            record.pinned = owner
        else:
            record.refused = StopReason.QUOTA

    def _pin(self, owner: PinOwner, chain: Chain, expires_s: float) -> bool:
        blocks = chain.real_blocks()
        try:
            self.ledger.pin(owner, [b.block_id for b in blocks], expires_s=expires_s)
        except QuotaExceeded:
            return False
        self.cache.touch(blocks)
        left = self.ledger.left(owner.key.tenant)
        self.chronicle.pinned(owner.key, owner.version, [b.block_id for b in blocks], left)
        return True

    def _unpin(self, owner: PinOwner | None) -> int:
        if owner is None:
            return 0
        block_ids = self.ledger.unpin(owner)
        self.cache.release(block_ids)
        self.chronicle.unpinned(owner.key, owner.version, block_ids)
        return len(block_ids)

    def _let_go(self, record: Record) -> int:
        self._remembered -= len(record.tokens)
        record.tokens = array("I")
        record.chain = self.cache.cut(record.chain, 0)
        return self._unpin_record(record)

    def _unpin_record(self, record: Record) -> int:
        owner, record.pinned = record.pinned, None
        return self._unpin(owner)

    # --- FENCE -----------------------------------------------------------------------------------

    def fence(
        self, key: ScopeKey, version: Version, contract: Contract | None, *, terminal: bool
    ) -> list[Record]:
        """Settle what requests below ``version`` leave; report each ended one once.

        One that ended by itself before the fence is kept too, as far as its blocks are intact.
        """
        self._answer_expected(key, below=version)
        if contract is not None:
            self._contracts[key] = contract
        keep = not terminal and (contract is None or not self.certifier.forbids(contract))
        records = [r for r in self._records.get(key, ()) if r.version < version]
        for record in reversed(records):  # the newest first: a quota may not reach for all
            self._settle(record, contract, keep=keep)
        if terminal:
            self._forget(key)
            self._contracts.pop(key, None)
        unreported = self._unreported.pop(key, deque())
        later = deque((r for r in unreported if not r.version < version), unreported.maxlen)
        if later:
            self._unreported[key] = later
        return [record for record in unreported if record.version < version]

    def _settle(self, record: Record, contract: Contract | None, *, keep: bool) -> None:
        if not keep:
            self._unpin_record(record)
            record.refused = StopReason.CONTRACT
        elif record.pinned is not None and contract is not None:
            self.ledger.renew(record.pinned, expires_s=time.monotonic() + contract.ttl_s)
        elif record.pinned is None and record.refused is None:
            self._keep(record)

    # --- ALIGN and RESUME ------------------------------------------------------------------------

    def expect(self, key: ScopeKey, version: Version, then: Callable[[str, Outcome], None]) -> None:
        """Call ``then`` with the first request of ``version`` that ALIGN sees, and its outcome.

        At once when it was seen already. ``release`` answers for a successor that never comes, and
        so does the next FENCE; of too many who wait the first are told so.
        """
        for request_id, successor in self._successors.items():
            if (successor.key, successor.version) == (key, version):
                then(request_id, self._outcomes[request_id])
                return
        self._expected.setdefault((key, version), []).append(then)
        while len(self._expected) > EXPECTED_MAX:
            for gives_up in self._expected.popitem(last=False)[1]:
                gives_up("", NOTHING)

    def align(self, request: Request, tag: Tag) -> None:
        """Certify what a new request may inherit from its scope; pin it until it is adopted."""
        outcome = self._aligned(request, tag)
        for then in self._expected.pop((tag.key, tag.version), ()):
            then(request.request_id, outcome)

    def _aligned(self, request: Request, tag: Tag) -> Outcome:
        predecessors = [r for r in self._records.get(tag.key, ()) if r.version < tag.version]
        if not predecessors:
            return NOTHING
        self._successors[request.request_id] = Successor(tag.key, tag.version)
        outcome = self._best(request, tag, predecessors)
        if outcome.chain is not None:
            outcome = self._lease(request, tag, outcome)
        if outcome.alignment.stop_reason in _COLD:
            # Cold and fresh: not even ordinary cache, so that the refusal means what it says.
            request.skip_reading_prefix_cache = True
        self._outcomes[request.request_id] = outcome
        while len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)
        return outcome

    def _best(self, request: Request, tag: Tag, predecessors: list[Record]) -> Outcome:
        best, source = max(
            (
                (self._outcome_from(request, tag, record), record)
                for record in reversed(predecessors)
            ),
            key=lambda pair: _reach(pair[0].alignment),
        )
        best = replace(best, arrival_s=min(record.arrival_s for record in predecessors))
        if best.alignment.stop_reason in _COLD:
            return best
        cached = self.cache.cached_prefix(request)
        if cached.tokens <= best.alignment.certified_tokens:
            return best
        # Other work of this tenant wrote further along the same tokens: an equal hash chain.
        further = self._align(source.tokens, request, cached, frontier=cached.tokens)
        further = replace(
            further,
            certified_tokens=cached.tokens,
            inheritable_tokens=max(further.inheritable_tokens, cached.tokens),
        )
        return replace(best, alignment=further, chain=cached)

    def _outcome_from(self, request: Request, tag: Tag, record: Record) -> Outcome:
        refused = StopReason.CONTRACT if not tag.inherit else record.refused
        if refused is None and not same_namespace(request, record):
            refused = StopReason.FINGERPRINT
        chain = record.chain
        if record.pinned is None:
            chain = self.cache.cut(chain, self.cache.intact_tokens(chain))
        # A frontier within a block is no loss: only whole blocks are ever kept.
        lost = chain.tokens < record.frontier - record.frontier % self.cache.boundary
        frontier = chain.tokens if lost else record.frontier
        alignment = self._align(record.tokens, request, chain, frontier=frontier)
        if lost and alignment.stop_reason is StopReason.FRONTIER:
            alignment = replace(alignment, stop_reason=StopReason.GENERATION)  # no longer ours
        if refused is not None:
            alignment = cold(alignment, refused)
        certified = alignment.certified_tokens
        return Outcome(
            alignment,
            from_version=record.version,
            frontier_tokens=record.frontier,
            chain=self.cache.cut(chain, certified) if certified else None,
        )

    def _align(
        self, old: array[int], request: Request, chain: Chain, *, frontier: int
    ) -> Alignment:
        groups = zip(
            self.cache.block_sizes, self.cache.windows, self.cache.held(chain), strict=True
        )
        return align(
            old,
            array("I", request.prompt_token_ids or ()),
            frontier=frontier,
            groups=tuple(KvGroup(block_size=s, window=w, held=h) for s, w, h in groups),
        )

    def _lease(self, request: Request, tag: Tag, outcome: Outcome) -> Outcome:
        assert outcome.chain is not None
        owner = PinOwner(tag.key, request.request_id, tag.version)
        expires_s = time.monotonic() + self._contracts.get(tag.key, _DEFAULT).ttl_s
        if not self._pin(owner, outcome.chain, expires_s):
            return replace(outcome, alignment=cold(outcome.alignment, StopReason.QUOTA), chain=None)
        self._successors[request.request_id] = Successor(tag.key, tag.version, owner)
        certificate = self.certifier.certify(request, tag, outcome, expires_s)
        self.chronicle.certified(certificate)
        return replace(
            outcome,
            certificate=certificate,
            pinned_blocks=len(self.ledger.pins[owner].block_ids),
            expires_s=expires_s,
        )

    def adoption_of(self, request: Request) -> Chain | None:
        """The certified blocks that admission must alias for this request (None: none)."""
        successor = self._successors.get(request.request_id)
        if successor is None or successor.owner is None:
            return None
        outcome = self._outcomes[request.request_id]
        if not successor.verified:
            if self.certifier.refusal(request, successor, outcome) is not None:
                self._end_lease(successor.owner)
                return None
            self._successors[request.request_id] = replace(successor, verified=True)
        return outcome.chain

    def adopted(self, request_id: str, tag: Tag) -> None:
        """The request runs: verify that it took exactly the certified blocks; end the leases."""
        successor = self._successors.pop(request_id, None)
        if successor is None:
            return
        if successor.owner is not None:
            outcome = self._outcomes[request_id]
            assert outcome.chain is not None and self.cache.holds(request_id, outcome.chain), (
                f"{request_id} runs on blocks other than its certificate's"
            )
            assert outcome.certificate is not None
            self.chronicle.adopted(tag, request_id, outcome.certificate)
            self._unpin(successor.owner)
        self._forget(successor.key, below=successor.version)

    def predecessor_arrival(self, request_id: str) -> float | None:
        """When the request that this one replaces had arrived (None: it replaces nothing)."""
        outcome = self._outcomes.get(request_id)
        return outcome.arrival_s if outcome is not None else None

    # --- RECLAIM ---------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """End the leases whose time is over."""
        for owner in self.ledger.expired(now_s):
            self._end_lease(owner)

    def yield_oldest(self) -> bool:
        """Give up the lease that ends first, the unclaimed before those of waiting successors."""
        claimed = {successor.owner for successor in self._successors.values()}
        pins = self.ledger.pins
        owner = min(pins, key=lambda o: (o in claimed, pins[o].expires_s), default=None)
        if owner is None:
            return False
        self._end_lease(owner)
        return True

    def _end_lease(self, owner: PinOwner) -> None:
        self._unpin(owner)
        for record in self._records.get(owner.key, ()):
            if record.pinned == owner:
                record.pinned = None
        successor = self._successors.get(owner.request_id)
        if successor is not None and successor.owner == owner:
            self._successors[owner.request_id] = replace(successor, owner=None)

    def release(self, key: ScopeKey) -> int:
        """Give up what is kept for a scope's successor; returns the blocks of its leases."""
        self._answer_expected(key)
        return self._forget(key)

    def _answer_expected(self, key: ScopeKey, below: Version | None = None) -> None:
        """Those who wait for a successor that comes no more get their answer."""
        for at in [at for at in self._expected if at[0] == key and (not below or at[1] < below)]:
            for then in self._expected.pop(at):
                then("", NOTHING)

    def forget_all(self) -> None:
        """The cache is being reset: no record, lease or certificate survives it."""
        self.certifier.generation += 1
        for owner in list(self.ledger.pins):
            self._end_lease(owner)
        for key in list(self._records):
            self._forget(key)

    def pinned_for(self, key: ScopeKey) -> int:
        """Physical blocks pinned for a scope."""
        pins = self.ledger.pins
        return len({b for owner in self.ledger.owners(key) for b in pins[owner].block_ids})

    def audit(self) -> list[str]:
        """Faults between ledger and block pool: empty when sound."""
        ids = {b for pin in self.ledger.pins.values() for b in pin.block_ids}
        return self.ledger.audit(self.cache.references(ids))


def _reach(alignment: Alignment) -> tuple[int, int]:
    return alignment.certified_tokens, alignment.inheritable_tokens

"""RESUME inside the engine: what a successor takes over, from ALIGN until its adoption is verified.

Owns each successor's outcome and certificate, and who waits for it. What ended requests left is in
``retained``, what it is worth to a successor is decided in ``alignments``. Must never import vLLM.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from retire.engine.alignments import COLD, Aligner
from retire.engine.pins import PinLedger, PinOwner
from retire.engine.records import NOTHING, Outcome, Record, Successor, record_of
from retire.engine.retained import RECORDS_PER_SCOPE, Retained
from retire.engine.tier.host_tier import HostTier
from retire.engine.tier.settings import HostSettings
from retire.engine.tier.waiting import Restored, Waiting
from retire.protocol.alignment import cold
from retire.protocol.contract import StopReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.request import Request

    from retire.engine.certification import Certifier
    from retire.engine.chronicle import Chronicle
    from retire.engine.records import Ending
    from retire.engine.seams.kv_cache import Chain, KvCache
    from retire.engine.tag import Tag
    from retire.engine.tier.restores import RestoreResult
    from retire.protocol.contract import Contract
    from retire.protocol.versions import ScopeKey, Version

OUTCOMES_MAX: Final = 1024
EXPECTED_MAX: Final = 8192  # scopes whose successor somebody waits for
UNREPORTED_SCOPES_MAX: Final = 4096
REPORTED_MAX: Final = 1024  # requests of one scope that a receipt tells of


@dataclass(slots=True)
class Inheritance:
    """Successors and certificates of one engine."""

    cache: KvCache
    certifier: Certifier
    chronicle: Chronicle
    retained: Retained = field(init=False)
    _outcomes: OrderedDict[str, Outcome] = field(default_factory=OrderedDict)
    _successors: dict[str, Successor] = field(default_factory=dict)  # aligned, not running yet
    _expected: OrderedDict[tuple[ScopeKey, Version], list[Callable[[str, Outcome], None]]] = field(
        default_factory=OrderedDict
    )
    _unreported: OrderedDict[ScopeKey, deque[Record]] = field(default_factory=OrderedDict)
    tier: HostTier = field(init=False)
    waiting: dict[str, Waiting] = field(default_factory=dict)  # successors, for a copy
    settled: Callable[[Request], None] = lambda request: None  # told that one waits no more

    def __post_init__(self) -> None:
        self.retained = Retained(self.cache, self.certifier, self.chronicle)
        self.tier = HostTier(self.retained, HostSettings.from_env())
        self.tier.restores.settled = self._arrived
        self.retained.give_up_copy = self.tier.drop

    @property
    def ledger(self) -> PinLedger:
        """Who keeps which blocks."""
        return self.retained.ledger

    @property
    def active(self) -> bool:
        """Whether a step has anything of ours to look after."""
        return bool(self.ledger.pins or self._successors or self.tier.active)

    # --- a request ends, its scope is fenced -----------------------------------------------------

    def ended(self, request: Request, tag: Tag, end: Ending) -> None:
        """Remember an ending request; keep its blocks at once when it was superseded."""
        successor = self._successors.pop(request.request_id, None)
        if successor is not None:
            self.retained.unpin(successor.owner)
        if self.waiting.pop(request.request_id, None) is not None:
            self.tier.restores.leave(request.request_id)
        chain = self.cache.chain(request.request_id, end.frontier)
        if end.superseded:
            chain = self.cache.with_windows(chain, request)
        record = record_of(request, tag, chain, end)
        if end.superseded:
            self.retained.keep(record)
        self._note(record)
        self.retained.remember(record)

    def _note(self, record: Record) -> None:
        """For the next receipt: every request that it ended, the newest of those that had ended."""
        unreported = self._unreported.setdefault(record.key, deque(maxlen=REPORTED_MAX))
        unreported.append(record)
        finished = [other for other in unreported if other.state == "finished"]
        if len(finished) > RECORDS_PER_SCOPE:
            unreported.remove(finished[0])
        if len(self._unreported) > UNREPORTED_SCOPES_MAX:
            self._unreported.popitem(last=False)

    def fence(
        self, key: ScopeKey, version: Version, contract: Contract | None, *, terminal: bool
    ) -> list[Record]:
        """Settle what requests below ``version`` leave; report each ended one once.

        One that ended by itself before the fence is kept too, as far as its blocks are intact.
        """
        self._answer_expected(key, below=version)
        retained = self.retained
        if contract is not None:
            retained.contracts[key] = contract
        keep = not terminal and (contract is None or not self.certifier.forbids(contract))
        # The newest first: a quota may not reach for all.
        records = list(reversed(retained.below(key, version)))
        for record in records:
            retained.settle(record, contract, keep=keep)
        if keep and contract is not None:
            self.tier.settle(records, contract, retained.expires_s(key))
        if terminal:
            retained.forget(key)
            retained.contracts.pop(key, None)
        return self._report(key, version)

    def _report(self, key: ScopeKey, version: Version) -> list[Record]:
        unreported = self._unreported.pop(key, deque())
        later = deque((r for r in unreported if not r.version < version), unreported.maxlen)
        if later:
            self._unreported[key] = later
        return [record for record in unreported if record.version < version]

    # --- ALIGN and RESUME ------------------------------------------------------------------------

    def expect(self, key: ScopeKey, version: Version, then: Callable[[str, Outcome], None]) -> None:
        """Call ``then`` with the first request of ``version`` that ALIGN sees, and its outcome.

        At once when it was seen already. ``release`` answers for a successor that never comes, and
        so does the next FENCE; of too many who wait the first are told so.
        """
        for request_id, successor in self._successors.items():
            known = (successor.key, successor.version) == (key, version)
            if known and request_id not in self.waiting:
                then(request_id, self._outcomes[request_id])
                return
        self._expected.setdefault((key, version), []).append(then)
        while len(self._expected) > EXPECTED_MAX:
            for gives_up in self._expected.popitem(last=False)[1]:
                gives_up("", NOTHING)

    def align(self, request: Request, tag: Tag) -> None:
        """Certify what a new request may inherit from its scope; pin it until it is adopted.

        One that needs a copy from host memory is ``waiting`` until that is in place, or given up.
        """
        outcome = self._aligned(request, tag)
        if request.request_id not in self.waiting:
            self._answer(request, tag, outcome)

    def _answer(self, request: Request, tag: Tag, outcome: Outcome) -> None:
        for then in self._expected.pop((tag.key, tag.version), ()):
            then(request.request_id, outcome)

    def _aligned(self, request: Request, tag: Tag, restored: Restored | None = None) -> Outcome:
        predecessors = self.retained.below(tag.key, tag.version)
        if not predecessors:
            return NOTHING if restored is None else restored.told(NOTHING)
        self._successors[request.request_id] = Successor(tag.key, tag.version)
        outcome = Aligner(self.cache).best(request, tag, predecessors)
        if restored is None and outcome.alignment.stop_reason not in COLD:
            restored = self._fetch(request, tag, predecessors, outcome)
        if request.request_id not in self.waiting:
            for record in predecessors:
                self.tier.stop_moving(record)  # it is about to be taken over, or not to be
            if restored is not None:
                outcome = restored.told(outcome)
            if outcome.chain is not None:
                outcome = self._lease(request, tag, outcome)
        if outcome.alignment.stop_reason in COLD:
            request.skip_reading_prefix_cache = True
        self._outcomes[request.request_id] = outcome
        while len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)
        return outcome

    def _fetch(
        self, request: Request, tag: Tag, predecessors: list[Record], outcome: Outcome
    ) -> Restored | None:
        """Wait for a copy in host memory that reaches further than what HBM holds."""
        aligner = Aligner(self.cache)
        reach = {aligner.at_rest(request, tag, r): r for r in predecessors}
        tokens = max(reach)
        if tokens <= outcome.alignment.certified_tokens:
            return None
        refused = self.tier.restores.join(request, reach[tokens], tokens)
        if refused is not None:
            return Restored(refused, tokens)
        self.waiting[request.request_id] = Waiting(request, tag, tokens)
        return None

    def _arrived(self, request_id: str, result: RestoreResult) -> None:
        """A successor's copy is in place, or it goes on without."""
        wait = self.waiting.pop(request_id)
        outcome = self._aligned(wait.request, wait.tag, Restored(result, wait.tokens))
        self._answer(wait.request, wait.tag, outcome)
        self.settled(wait.request)

    def _lease(self, request: Request, tag: Tag, outcome: Outcome) -> Outcome:
        assert outcome.chain is not None
        owner = PinOwner(tag.key, request.request_id, tag.version)
        expires_s = self.retained.expires_s(tag.key)
        if not self.retained.pin(owner, outcome.chain, expires_s):
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
            self.retained.unpin(successor.owner)
        self.retained.forget(successor.key, below=successor.version)

    def predecessor_arrival(self, request_id: str) -> float | None:
        """When the request that this one replaces had arrived (None: it replaces nothing)."""
        outcome = self._outcomes.get(request_id)
        return outcome.arrival_s if outcome is not None else None

    # --- RECLAIM ---------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """End the leases whose time is over, in both tiers."""
        for owner in set(self.ledger.expired(now_s)) - self.tier.restores.owners():
            self._end_lease(owner)
        self.tier.expire(now_s)

    def yield_oldest(self) -> bool:
        """Give up the lease that ends first, the unclaimed before those of waiting successors."""
        claimed = {successor.owner for successor in self._successors.values()}
        pins = self.ledger.pins
        ours = pins.keys() - self.tier.restores.owners()
        owner = min(ours, key=lambda o: (o in claimed, pins[o].expires_s), default=None)
        if owner is None:
            return False
        self._end_lease(owner)
        return True

    def _end_lease(self, owner: PinOwner) -> None:
        self.retained.end_lease(owner)
        successor = self._successors.get(owner.request_id)
        if successor is not None and successor.owner == owner:
            self._successors[owner.request_id] = replace(successor, owner=None)

    def release(self, key: ScopeKey) -> int:
        """Give up what is kept for a scope's successor; returns the blocks of its leases."""
        self._answer_expected(key)
        return self.retained.forget(key)

    def _answer_expected(self, key: ScopeKey, below: Version | None = None) -> None:
        """Those who wait for a successor that comes no more get their answer."""
        for at in [at for at in self._expected if at[0] == key and (not below or at[1] < below)]:
            for then in self._expected.pop(at):
                then("", NOTHING)

    def forget_all(self) -> None:
        """The cache is being reset: no record, lease or certificate survives it."""
        self.certifier.generation += 1
        for owner in self.ledger.pins.keys() - self.tier.restores.owners():
            self._end_lease(owner)
        for key in list(self.retained.records):
            self.retained.forget(key)
        self.tier.drain()  # blocks that a transfer may still write are given back after it

    def pinned_for(self, key: ScopeKey) -> int:
        """Physical blocks pinned for a scope."""
        return self.retained.pinned_for(key)

    def kept_for(self, key: ScopeKey) -> int:
        """Blocks kept for a scope: pinned ones, or else those at rest on the host."""
        return self.pinned_for(key) or self.tier.pages_for(key)

    def audit(self) -> list[str]:
        """Faults between ledger, block pool and host budget: empty when sound."""
        return self.retained.audit() + self.tier.audit()

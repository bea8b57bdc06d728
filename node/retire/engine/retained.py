"""What ended requests leave, and which of their blocks are kept: fence records and their pins.

A *record* is left by every scoped request that ends. Superseded: its written blocks are pinned at
once under a lease. Ended by itself (finished, client gone): its blocks stay ordinary cache,
remembered with their hashes, and are pinned when a SUPERSEDE comes, as far as they are intact.
Works on ``seams.kv_cache`` blocks; must never import vLLM.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from retire.engine.pins import PinLedger, PinOwner
from retire.engine.tier.copies import At
from retire.protocol.contract import Contract, StopReason
from retire.protocol.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.engine.certification import Certifier
    from retire.engine.chronicle import Chronicle
    from retire.engine.records import Record
    from retire.engine.seams.kv_cache import Chain, KvCache
    from retire.protocol.versions import ScopeKey, Version

RECORDS_PER_SCOPE: Final = 8
RECORD_TOKENS_MAX: Final = 8 * 2**20  # remembered in all, 4 bytes each; the oldest go first
_DEFAULT: Final = Contract()


@dataclass(slots=True)
class Retained:
    """Records and pins of one engine."""

    cache: KvCache
    certifier: Certifier
    chronicle: Chronicle
    ledger: PinLedger = field(default_factory=PinLedger)
    records: OrderedDict[ScopeKey, deque[Record]] = field(default_factory=OrderedDict)
    contracts: dict[ScopeKey, Contract] = field(default_factory=dict)  # of the newest FENCE
    give_up_copy: Callable[[Record], None] = lambda record: None  # its copy in host memory
    _remembered: int = 0  # tokens in all records

    def below(self, key: ScopeKey, version: Version) -> list[Record]:
        """Records of a scope's earlier versions, the oldest first."""
        return [record for record in self.records.get(key, ()) if record.version < version]

    def expires_s(self, key: ScopeKey) -> float:
        """When a lease that begins now ends (monotonic)."""
        return time.monotonic() + self.contracts.get(key, _DEFAULT).ttl_s

    # --- records ---------------------------------------------------------------------------------

    def remember(self, record: Record) -> None:
        """Take in a new record; the oldest ones give way."""
        records = self.records.setdefault(record.key, deque())
        self.records.move_to_end(record.key)
        records.append(record)
        self._remembered += len(record.tokens)
        if len(records) > RECORDS_PER_SCOPE:
            self._let_go(records.popleft())
        while self._remembered > RECORD_TOKENS_MAX and len(self.records) > 1:
            self.forget(next(iter(self.records)))

    def forget(self, key: ScopeKey, below: Version | None = None) -> int:
        """Drop a scope's records (of versions below); returns the pins ended, in blocks."""
        records = self.records.pop(key, deque())
        stay = deque(r for r in records if below is not None and not r.version < below)
        if stay:
            self.records[key] = stay
        return sum(self._let_go(r) for r in records if r not in stay)

    def _let_go(self, record: Record) -> int:
        self._remembered -= len(record.tokens)
        record.tokens = array("I")
        record.chain = self.cache.cut(record.chain, 0)
        self.give_up_copy(record)
        return self.unpin_record(record)

    # --- pins ------------------------------------------------------------------------------------

    def keep(self, record: Record) -> None:
        """Pin what the record's chain still holds, within contract and quota."""
        if self.certifier.forbids(self.contracts.get(record.key, _DEFAULT)):
            record.refused = StopReason.CONTRACT
            return
        if not record.superseded:
            record.chain = self.cache.cut(record.chain, self.cache.intact_tokens(record.chain))
        owner = PinOwner(record.key, record.request_id, record.version)
        if self.pin(owner, record.chain, self.expires_s(record.key)):
            record.pinned = owner
        else:
            record.refused = StopReason.QUOTA

    def settle(self, record: Record, contract: Contract | None, *, keep: bool) -> None:
        """What a FENCE makes of a record: kept under the new contract, or given up."""
        if not keep:
            self.give_up_copy(record)
            self.unpin_record(record)
            record.refused = StopReason.CONTRACT
        elif record.pinned is not None and contract is not None:
            self.ledger.renew(record.pinned, expires_s=time.monotonic() + contract.ttl_s)
        elif record.pinned is None and record.refused is None and record.copy is None:
            self.keep(record)

    def pin(self, owner: PinOwner, chain: Chain, expires_s: float) -> bool:
        """Lease a chain's blocks; False when the tenant's quota does not reach for them."""
        blocks = chain.real_blocks()
        try:
            self.ledger.pin(owner, [b.block_id for b in blocks], expires_s=expires_s)
        except QuotaExceeded:
            return False
        self.cache.touch(blocks)
        left = self.ledger.left(owner.key.tenant)
        self.chronicle.pinned(owner.key, owner.version, [b.block_id for b in blocks], left)
        return True

    def unpin(self, owner: PinOwner | None) -> int:
        """End a lease, if there is one; returns its blocks."""
        if owner is None:
            return 0
        block_ids = self.ledger.unpin(owner)
        self.cache.release(block_ids)
        self.chronicle.unpinned(owner.key, owner.version, block_ids)
        return len(block_ids)

    def unpin_record(self, record: Record) -> int:
        """End a record's lease; it stays remembered."""
        owner, record.pinned = record.pinned, None
        return self.unpin(owner)

    def end_lease(self, owner: PinOwner) -> None:
        """End a lease and tell the record that held it."""
        self.unpin(owner)
        for record in self.records.get(owner.key, ()):
            if record.pinned == owner:
                record.pinned = None
                if record.copy is not None and record.copy.stored.at is At.MOVING:
                    self.give_up_copy(record)  # its blocks may be written while they are read

    def pinned_for(self, key: ScopeKey) -> int:
        """Physical blocks pinned for a scope."""
        pins = self.ledger.pins
        return len({b for owner in self.ledger.owners(key) for b in pins[owner].block_ids})

    def audit(self) -> list[str]:
        """Faults between ledger and block pool: empty when sound."""
        ids = {b for pin in self.ledger.pins.values() for b in pin.block_ids}
        return self.ledger.audit(self.cache.references(ids))

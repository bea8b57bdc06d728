"""The pin ledger: which KV blocks are kept, for whom, until when, within which quota (C6).

Pure bookkeeping by block id; ``seams/kv_cache.py`` moves the reference counts. A tenant's usage
counts physical blocks once, however many owners hold them. Must never import vLLM.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retire.protocol.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retire.protocol.versions import ScopeKey, Version


@dataclass(frozen=True, slots=True)
class PinOwner:
    """One lease: a retired request's fence record, or a successor until it has adopted."""

    key: ScopeKey
    request_id: str
    version: Version


@dataclass(frozen=True, slots=True)
class Pin:
    """Blocks of one owner. ``expires_s`` is on the caller's monotonic clock."""

    block_ids: tuple[int, ...]
    expires_s: float


@dataclass(slots=True)
class PinLedger:
    """Owned, quota-bound, expiring pins of one engine."""

    pins: dict[PinOwner, Pin] = field(default_factory=dict)
    quotas: dict[str, int] = field(default_factory=dict)  # tenant -> blocks; absent: unlimited
    _holders: dict[str, Counter[int]] = field(default_factory=dict)  # tenant -> block -> owners

    def pin(self, owner: PinOwner, block_ids: Iterable[int], *, expires_s: float) -> None:
        """Lease blocks to ``owner``. QuotaExceeded changes nothing."""
        assert owner not in self.pins, f"{owner} holds a pin already"
        ids = tuple(block_ids)
        holders = self._holders.setdefault(owner.key.tenant, Counter())
        asked = sum(1 for block_id in set(ids) if block_id not in holders)
        left = self.left(owner.key.tenant)
        if left is not None and asked > left:
            raise QuotaExceeded(owner.key.tenant, asked=asked, left=left)
        holders.update(ids)
        self.pins[owner] = Pin(ids, expires_s)

    def unpin(self, owner: PinOwner) -> tuple[int, ...]:
        """End a lease; returns its blocks, each to be dereferenced once. Unknown owner: nothing."""
        pin = self.pins.pop(owner, None)
        if pin is None:
            return ()
        holders = self._holders[owner.key.tenant]
        for block_id in pin.block_ids:
            holders[block_id] -= 1
            if holders[block_id] == 0:
                del holders[block_id]
        return pin.block_ids

    def renew(self, owner: PinOwner, *, expires_s: float) -> None:
        """Let a lease end at another time. Unknown owner: nothing."""
        pin = self.pins.get(owner)
        if pin is not None:
            self.pins[owner] = Pin(pin.block_ids, expires_s)

    def used(self, tenant: str) -> int:
        """Physical blocks pinned for a tenant."""
        return len(self._holders.get(tenant, ()))

    def left(self, tenant: str) -> int | None:
        """Blocks left in the tenant's quota; None: unlimited."""
        quota = self.quotas.get(tenant)
        return None if quota is None else max(0, quota - self.used(tenant))

    def set_quota(self, tenant: str, blocks: int | None) -> None:
        """Bound a tenant from now on; pins already held stay until their lease ends."""
        if blocks is None:
            self.quotas.pop(tenant, None)
        else:
            self.quotas[tenant] = blocks

    def expired(self, now_s: float) -> list[PinOwner]:
        """Owners whose lease has ended."""
        return [owner for owner, pin in self.pins.items() if pin.expires_s <= now_s]

    def overdue_s(self, now_s: float) -> float:
        """How long the oldest lease has been over; 0: none is."""
        ends = min((pin.expires_s for pin in self.pins.values()), default=now_s)
        return max(0.0, now_s - ends)

    def owners(self, key: ScopeKey) -> list[PinOwner]:
        """Leases of one scope."""
        return [owner for owner in self.pins if owner.key == key]

    def total(self) -> int:
        """Physical blocks pinned for anyone."""
        return sum(len(holders) for holders in self._holders.values())

    def by_tenant(self) -> dict[str, int]:
        """Physical blocks pinned, per tenant that has any."""
        return {tenant: len(holders) for tenant, holders in self._holders.items() if holders}

    def audit(self, references: dict[int, int]) -> list[str]:
        """What does not add up, given each block's references in the pool: empty when sound."""
        recount: dict[str, Counter[int]] = {}
        for owner, pin in self.pins.items():
            if not pin.block_ids:
                continue  # a request that ended before it had a whole block
            recount.setdefault(owner.key.tenant, Counter()).update(pin.block_ids)
        held = {tenant: holders for tenant, holders in self._holders.items() if holders}
        faults = [] if recount == held else [f"holders {held} do not match the pins {recount}"]
        wanted: Counter[int] = Counter()
        for holders in recount.values():
            wanted.update(holders)
        faults += [
            f"block {block_id} has {references.get(block_id, 0)} references for {count} pins"
            for block_id, count in wanted.items()
            if references.get(block_id, 0) < count
        ]
        return faults

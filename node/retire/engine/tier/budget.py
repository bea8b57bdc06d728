"""The host budget: how many bytes are at rest, for which tenant, within which bounds (C6).

Pure bookkeeping: a copy is charged before its transfer begins and until its last transfer has
ended. Must never import vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class HostRefusal(Enum):
    """Why a prefix stays in HBM though its contract says ``dram``."""

    OFF = "off"  # the tier is switched off, or this engine cannot have one
    HOST_BYTES = "host_bytes"  # the engine's budget is exhausted
    HOST_QUOTA = "host_quota"  # the tenant's is


@dataclass(slots=True)
class HostBudget:
    """Bytes of one engine, all its ranks together."""

    capacity: int
    tenant_capacity: int | None = None  # of a tenant without a quota of its own; None: no bound
    quotas: dict[str, int] = field(default_factory=dict)
    _charges: dict[int, tuple[str, int]] = field(default_factory=dict)  # copy -> tenant, bytes

    @property
    def used(self) -> int:
        """Bytes charged."""
        return sum(size for _, size in self._charges.values())

    def used_by(self, tenant: str) -> int:
        """Bytes charged to a tenant."""
        return sum(size for who, size in self._charges.values() if who == tenant)

    def by_tenant(self) -> dict[str, int]:
        """Bytes per tenant that has any."""
        return {who: self.used_by(who) for who in {who for who, _ in self._charges.values()}}

    def left(self, tenant: str) -> int:
        """Bytes that the tenant may still ask for."""
        quota = self.quotas.get(tenant, self.tenant_capacity)
        engine = self.capacity - self.used
        return max(0, engine if quota is None else min(engine, quota - self.used_by(tenant)))

    def charge(self, copy: int, tenant: str, size: int) -> HostRefusal | None:
        """Reserve ``size`` bytes for a copy; a refusal reserves nothing."""
        assert copy not in self._charges, f"copy {copy} is charged already"
        if size > self.capacity - self.used:
            return HostRefusal.HOST_BYTES
        if size > self.left(tenant):
            return HostRefusal.HOST_QUOTA
        self._charges[copy] = (tenant, size)
        return None

    def refund(self, copy: int) -> None:
        """The copy's memory is free again."""
        del self._charges[copy]

    def set_quota(self, tenant: str, size: int | None) -> None:
        """Bound a tenant from now on; what is at rest stays until its lease ends."""
        if size is None:
            self.quotas.pop(tenant, None)
        else:
            self.quotas[tenant] = size

    def copies(self) -> set[int]:
        """Every copy that is charged."""
        return set(self._charges)

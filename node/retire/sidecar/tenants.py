"""The tenants this node has joined: hello, the stream's follower, the lease in each.

Must never know scopes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import NeedRegister, TermMismatch, Unavailable
from retire.protocol.events import Registered
from retire.sidecar.events import Follower, admission_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from retire.registry.interface import ScopeRecord, Snapshot
    from retire.sidecar.driver import Driver
    from retire.sidecar.joins import Joining
    from retire.sidecar.lease import LeaseKeeper
    from retire.sidecar.ports import Ports

# The node's own lease, so that a node without scopes is seen to live; holds no scope.
NODE_TENANT: Final = "retire-node"


class Tenants:
    """Opens each tenant once; opening one twice at a time is one opening."""

    def __init__(
        self, ports: Ports, driver: Driver, lease: LeaseKeeper, *, joining: Joining
    ) -> None:
        self._ports = ports
        self._driver = driver
        self._lease = lease
        self.joining = joining
        self.incarnation = ""  # of the node's own tenant, for Status
        self.terms: dict[str, int] = {}  # tenant -> the term it was entered under last
        self._opened: dict[str, asyncio.Task[None]] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self.on_lost: Callable[[TermMismatch | NeedRegister], Awaitable[None]] = _unexpected
        self.on_opened: Callable[[str], None] = lambda _: None
        self.on_quota: Callable[[str], None] = lambda _: None  # the tenant's quota was changed
        self.closed_until_s = 0.0  # after a rebuild: leases of the older term may still run

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._followers))

    async def open(self, tenant: str) -> None:
        """Say hello, take the node's lease in the tenant, follow its stream from there."""
        if tenant in self._followers:
            return
        opening = self._opened.get(tenant)
        if opening is None:
            opening = self._ports.tasks.spawn(
                self._open(tenant), name=f"opening of tenant {tenant}", quiet=True
            )
            self._opened[tenant] = opening
            opening.add_done_callback(lambda _: self._opened.pop(tenant, None))
        await asyncio.shield(opening)

    async def covered(self, tenant: str) -> None:
        """Until this node's deadline comes from a lease in the tenant too."""
        await self._lease.covered(tenant)

    async def _open(self, tenant: str) -> None:
        own, registry = self._ports.identity, self._ports.registry
        if not own.term:
            raise Unavailable("the registry has no term yet; retry later")
        await self._settled(tenant)
        await registry.hello(tenant, term=own.term)
        renewal = await registry.renew(
            own.node,
            term=own.term,
            boot_id=own.boot_id,
            lease_s=self._ports.settings.lease_s,
            tenants={tenant: 0},
        )
        self._lease.join(tenant, renewal.sequences[tenant])
        self._follow(tenant, renewal.tails[tenant])

    async def _settled(self, tenant: str) -> None:
        """After a rebuild a tenant may be opened that is there: leases of before count in it."""
        left_s = self.closed_until_s - self._ports.clock()
        if left_s <= 0:
            return
        try:
            await self._ports.registry.snapshot(tenant)
        except NeedRegister:
            raise Unavailable(
                f"the registry was rebuilt; new tenants open in {left_s:.1f} s"
            ) from None

    def take(self, record: ScopeRecord, sequence: int) -> None:
        """A record read from the registry, applied to a joined scope: versions only rise."""
        entry = self._ports.scopes.find(record.key)
        if entry is not None:
            entry.policy, entry.parent = record.policy, record.parent
            self._driver.apply(
                record.key,
                Registered(
                    record.version,
                    record.generation,
                    admission_of(record),
                    sequence=sequence,
                    gates=self._driver.gates.local(),
                ),
            )

    def enter_at(self, tenant: str, snapshot: Snapshot) -> None:
        """Take the whole tenant as it is and follow its stream from there (after a recovery)."""
        if tenant == NODE_TENANT:
            self.incarnation = snapshot.incarnation
        for record in snapshot.scopes:
            self.take(record, snapshot.sequence)
        self._lease.join(tenant, snapshot.sequence)
        self._follow(tenant, snapshot.tail)

    def unfollow(self, tenant: str) -> None:
        """Stop following, unless it is the follower itself that reports a loss."""
        running = self._followers.pop(tenant, None)
        if running is not None and running is not asyncio.current_task():
            running.cancel()

    def _follow(self, tenant: str, after: str) -> None:
        self.unfollow(tenant)
        follower = Follower(self._ports, self._driver, self._lease, tenants=self, tenant=tenant)
        self.terms[tenant] = self._ports.identity.term
        self._followers[tenant] = self._ports.tasks.spawn(
            follower.run(after), name=f"stream of tenant {tenant}"
        )
        self.on_opened(tenant)


async def _unexpected(error: TermMismatch | NeedRegister) -> None:
    raise error

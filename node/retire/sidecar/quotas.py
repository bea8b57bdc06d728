"""The node's share of each tenant's pin quota: an owned reservation, renewed, pushed to the
engines.

Must never pin or count blocks: the engine's ledger does, within what it is told here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import QuotaExceeded, RetireError
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.tenants import NODE_TENANT
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.registry.interface import Reservation
    from retire.sidecar.links import Link
    from retire.sidecar.ports import Ports

_log = logging.getLogger(names.LOGGER_SIDECAR)
LEASE_S: Final = 30.0
_NOTHING: Final = 0


class Quotas:
    """What this node may pin, per tenant: a number of blocks, or None for unlimited."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._granted: dict[str, int | None] = {}
        self._refreshing: dict[str, asyncio.Lock] = {}

    @property
    def granted(self) -> Mapping[str, int | None]:
        """Blocks that this node may pin, by tenant."""
        return self._granted

    def open(self, tenant: str) -> None:
        """Begin to hold a share in a tenant; until it is granted the engines may pin nothing.

        Also when its quota was changed: more is taken at once, and what is over is given back.
        """
        if tenant != NODE_TENANT:
            self._ports.tasks.spawn(self._refresh(tenant), name=f"quota of tenant {tenant}")

    def greet(self, link: Link) -> None:
        """Tell a new API process what it may pin."""
        for tenant, blocks in self._granted.items():
            self._ports.links.tell(_quota(tenant, blocks), only=link)

    async def run(self) -> None:
        """Renew every reservation, and take what other nodes gave back, three times a lease."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            for tenant in tuple(self._granted):
                await self._refresh(tenant)

    async def release(self) -> None:
        """Give everything back (clean shutdown)."""
        own = self._ports.identity
        for tenant, blocks in self._granted.items():
            if blocks:
                await self._ports.registry.release(tenant, term=own.term, owner=self._owner)

    @property
    def _owner(self) -> str:
        own = self._ports.identity
        return f"{own.node}:{own.boot_id}"

    async def _refresh(self, tenant: str) -> None:
        """One at a time for a tenant: each begins with what the one before was granted."""
        async with self._refreshing.setdefault(tenant, asyncio.Lock()):
            await self._refresh_alone(tenant)

    async def _refresh_alone(self, tenant: str) -> None:
        try:
            granted = await self._reserve(tenant)
        except RetireError as error:
            _log.warning("pin quota not renewed", extra=fields(tenant=tenant, why=error))
            self._granted.setdefault(tenant, _NOTHING)
            return
        if tenant not in self._granted or self._granted[tenant] != granted:
            self._granted[tenant] = granted
            self._ports.links.tell(_quota(tenant, granted))

    async def _reserve(self, tenant: str) -> int | None:
        """Renew what is held, then grow by what is left. None: the tenant has no quota."""
        held = await self._renewed(tenant)
        if held.left is None:
            return await self._without_quota(tenant)
        if held.over:  # the quota was lowered: whoever learns it first gives first
            held = await self._ask(tenant, max(0, held.blocks - held.over))
        return await self._grown(tenant, held)

    async def _grown(self, tenant: str, held: Reservation) -> int:
        if not held.left:
            return held.blocks
        try:
            await self._ask(tenant, held.blocks + held.left)
        except QuotaExceeded:  # another node was faster; what we hold stays ours
            return held.blocks
        return held.blocks + held.left

    async def _renewed(self, tenant: str) -> Reservation:
        """What we held, if the registry still has it or can give it again; else nothing."""
        try:
            return await self._ask(tenant, self._granted.get(tenant) or _NOTHING)
        except QuotaExceeded:  # our lease had ended, or the registry was rebuilt
            return await self._ask(tenant, _NOTHING)

    async def _without_quota(self, tenant: str) -> int | None:
        """This node's default, where there is one: as the tenant's quota, unless an operator sets
        quotas: then it bounds this node only."""
        default, settings = self._ports.settings.pin_quota_blocks, self._ports.settings
        if default is None or settings.term_lease is not None:
            return default
        term = self._ports.identity.term
        await self._ports.registry.set_quota(tenant, term=term, blocks=default)
        return await self._grown(tenant, await self._renewed(tenant))

    async def _ask(self, tenant: str, blocks: int) -> Reservation:
        return await self._ports.registry.reserve(
            tenant,
            term=self._ports.identity.term,
            owner=self._owner,
            blocks=blocks,
            lease_s=LEASE_S,
        )


def _quota(tenant: str, blocks: int | None) -> pb.GateCommand:
    return pb.GateCommand(quota=pb.Quota(tenant=tenant, blocks=blocks))

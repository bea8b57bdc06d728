"""Puts one sidecar together: every part built once, its dependencies handed in.

Must never hold behaviour beyond start and stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retire.mailbox import MailboxWriter, SlotFlags
from retire.protocol.errors import RetireError
from retire.protocol.events import Admission, Registered
from retire.protocol.state import ScopeState
from retire.protocol.transitions import step
from retire.sidecar.driver import Driver
from retire.sidecar.joins import Joining, Joins
from retire.sidecar.journal import Journal
from retire.sidecar.lease import LeaseKeeper
from retire.sidecar.links import Links
from retire.sidecar.ports import Identity, Ports
from retire.sidecar.quotas import Quotas
from retire.sidecar.rebuild import Rebuild
from retire.sidecar.scopes import Scopes
from retire.sidecar.stages import Stages
from retire.sidecar.tasks import Tasks
from retire.sidecar.tenants import Tenants
from retire.sidecar.tracks import Tracks
from retire.telemetry import names
from retire.telemetry.logs import fields
from retire.telemetry.tracing import OFF, Tracer

if TYPE_CHECKING:
    from retire.mailbox import Slot
    from retire.protocol.errors import NeedRegister, TermMismatch
    from retire.registry.interface import Registry
    from retire.sidecar.config import Settings
    from retire.sidecar.terms import Terms
    from retire.telemetry.history import History

_log = logging.getLogger(names.LOGGER_SIDECAR)


@dataclass(frozen=True, slots=True)
class Given:
    """What the process hands in."""

    settings: Settings
    registry: Registry
    terms: Terms
    term: int  # 0: not known yet, terms will tell
    mailbox: MailboxWriter
    history: History
    tracer: Tracer = OFF


class Parts:
    """The parts of one sidecar, from mailbox to driver."""

    def __init__(self, given: Given) -> None:
        settings, self.mailbox = given.settings, given.mailbox
        self.ports = ports = Ports(
            identity=Identity(settings.node, self.mailbox.boot_id, given.term),
            registry=given.registry,
            scopes=Scopes(self.mailbox),
            links=Links(
                lease_s=settings.lease_s,
                clock=time.monotonic,
                restarted=next(iter(self.mailbox.slots()), None) is not None,
            ),
            journal=Journal(wall_s=time.time),
            history=given.history,
            tracks=Tracks(),
            tasks=Tasks(),
            settings=settings,
            stages=Stages(given.tracer, node=settings.node),
            clock=time.monotonic,
        )
        joining = Joining()
        self.driver = Driver(ports)
        self.lease = LeaseKeeper(ports, self.mailbox, self._lost)
        self.tenants = Tenants(ports, self.driver, self.lease, joining=joining)
        self.rebuild = Rebuild(
            ports, self.driver, self.lease, tenants=self.tenants, terms=given.terms
        )
        self.joins = Joins(ports, self.tenants, joining)
        self.quotas = Quotas(ports)
        self._keeping: asyncio.Task[None] | None = None
        self.tenants.on_lost = self._lost
        self.tenants.on_opened = self.tenants.on_quota = self.quotas.open

    def start(self) -> None:
        """Take over the mailbox's scopes, enter the registry, keep the lease. Returns at once."""
        for slot in self.mailbox.slots():
            self._recover(slot)
        self.rebuild.start()
        self._keeping = self.ports.tasks.spawn(self.lease.run(), name="lease keeper")
        self.ports.tasks.spawn(self.quotas.run(), name="pin quotas")

    def close_gates(self) -> None:
        """Nothing is published and nothing renewed any more: a late renewal would outlive us."""
        self.lease.suspend()
        if self._keeping is not None:
            self._keeping.cancel()

    async def stop(self) -> None:
        """Close the gates, end the leases so that no committer waits for them, let go."""
        self.close_gates()
        tenants = tuple(self.tenants.terms)
        self.driver.answers.close()
        own = self.ports.identity
        try:
            async with asyncio.timeout(self.ports.settings.lease_s):
                await self.ports.registry.expire(own.node, term=own.term, tenants=tenants)
                await self.quotas.release()
        except (RetireError, TimeoutError) as error:
            _log.warning("leases run out by themselves", extra=fields(why=error or "no time left"))
        self.ports.tracks.close_all()
        await self.ports.tasks.close()
        await self.ports.registry.close()
        self.mailbox.detach()
        self.ports.history.close()
        self.ports.stages.close()

    async def _lost(self, error: TermMismatch | NeedRegister) -> None:
        await self.rebuild.lost(error)

    def _recover(self, slot: Slot) -> None:
        """A scope of the mailbox as the last sidecar left it; the registry may be ahead."""
        admission = Admission.OPEN
        if slot.flags & SlotFlags.PAUSED:
            admission = Admission.PAUSED
        if slot.flags & SlotFlags.CANCELLED:
            admission = Admission.CANCELLED
        learned = step(
            ScopeState(slot.key, self.ports.identity.node),
            Registered(slot.version, slot.generation, admission),
        )
        self.ports.scopes.add(learned.state, self.ports.clock())

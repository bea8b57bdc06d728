"""The lease keeper: renews the node's publish lease and stores the deadline in the mailbox.

Which deadline may be stored is decided by ``protocol.gate.LeaseState``: only one whose every commit
stands in the mailbox already. Must never store anything else, and never read the stream itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from retire.protocol import gate
from retire.protocol.errors import LeaseExpired, NeedRegister, RegistryUnavailable, TermMismatch
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retire.mailbox import MailboxWriter
    from retire.sidecar.ports import Ports

_log = logging.getLogger(names.LOGGER_SIDECAR)
RENEWALS_PER_LEASE: Final = 3


class LeaseKeeper:
    """The node's publish lease, in every tenant it has joined."""

    def __init__(
        self,
        ports: Ports,
        mailbox: MailboxWriter,
        on_lost: Callable[[TermMismatch | NeedRegister], Awaitable[None]],
    ) -> None:
        self._ports = ports
        self._mailbox = mailbox
        self._on_lost = on_lost
        self._state = gate.LeaseState()
        self._lease_s = ports.settings.lease_s
        self._suspended = True  # until the node has entered the registry
        self._sequences: dict[str, int] = {}  # as of the last suspension
        self._renew_now = asyncio.Event()
        self._stored = asyncio.Event()
        self.trouble = "the registry has not answered yet"  # empty: the last renewal was granted
        self.unreachable = True
        self.granted = self.failures = 0  # renewals

    @property
    def left_ms(self) -> float:
        """Time to the publish deadline; negative once it has passed."""
        return (self._mailbox.deadline_ns - time.monotonic_ns()) / 1e6

    @property
    def held(self) -> bool:
        """Whether gates may publish."""
        return self.left_ms > 0

    def join(self, tenant: str, sequence: int) -> None:
        """The node will hold scopes of the tenant; commits up to ``sequence`` are applied."""
        self._step(gate.TenantJoined(tenant, sequence))

    def applied(self, tenant: str, sequence: int) -> None:
        """Every commit of the tenant up to ``sequence`` stands in the mailbox."""
        self._step(gate.Applied(tenant, sequence))

    def drop(self) -> None:
        """Close every gate of the node now."""
        self._step(gate.LeaseDropped())

    def suspend(self) -> None:
        """Close every gate and renew nothing until :meth:`resume`: the registry is another.

        Positions of the old registry mean nothing in the new one, so every tenant is left.
        """
        self._suspended = True
        self.drop()
        for tenant in self.tenants():
            self._sequences[tenant] = self.tenants()[tenant]
            self._step(gate.TenantLeft(tenant))

    def resume(self) -> None:
        """Every tenant is joined again: renew now."""
        self._suspended = False
        self._renew_now.set()

    def seen(self, tenant: str) -> int:
        """The highest commit sequence this node has seen in the tenant, whatever the term."""
        return max(self._sequences.get(tenant, 0), self.tenants().get(tenant, 0))

    def tenants(self) -> dict[str, int]:
        """Joined tenants and their applied commit sequence."""
        return dict(self._state.applied)

    async def covered(self, tenant: str) -> None:
        """Until the stored deadline comes from a lease in this tenant too; LeaseExpired if it takes
        longer than a lease."""
        end_s = time.monotonic() + self._lease_s
        while not self._state.can_open(tenant):
            self._renew_now.set()
            stored = self._stored
            left_s = end_s - time.monotonic()
            try:
                await asyncio.wait_for(stored.wait(), max(0.0, left_s))
            except TimeoutError:
                raise LeaseExpired(
                    f"no publish lease for tenant {tenant!r}: {self.trouble or 'catching up'}"
                ) from None

    async def run(self) -> None:
        """Renew for ever: every third of a lease, and at once when a tenant was joined."""
        while True:
            self._renew_now.clear()
            began_s = time.monotonic()
            try:
                await self.renew()
            except Exception as error:  # a fault of ours: stay closed, say so, go on trying
                _log.exception("renewal failed")
                self._failed(f"{type(error).__name__}: {error}", unreachable=False)
            pause_s = began_s + self._lease_s / RENEWALS_PER_LEASE - time.monotonic()
            if pause_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._renew_now.wait(), pause_s)

    async def renew(self) -> None:
        """One renewal; a failure leaves the stored deadline to run out."""
        if self._suspended:
            return
        own = self._ports.identity
        sent_ns = time.monotonic_ns()
        self._step(gate.RenewalSent(sent_ns))
        try:
            renewal = await self._ports.registry.renew(
                own.node,
                term=own.term,
                boot_id=own.boot_id,
                lease_s=self._lease_s,
                tenants=self.tenants(),
            )
        except RegistryUnavailable as error:
            self._failed(str(error))
        except (TermMismatch, NeedRegister) as error:
            self._failed(str(error), unreachable=False)
            await self._on_lost(error)
        else:
            if self._suspended:  # dropped while the answer was under way: it grants nothing
                return
            self._step(gate.Renewed(sent_ns, self._lease_s, renewal.sequences))
            if self.trouble:
                _log.info("lease held", extra=fields(node=own.node, term=own.term))
            self.trouble, self.unreachable = "", False
            self.granted += 1

    def _failed(self, why: str, *, unreachable: bool = True) -> None:
        if not self.trouble:
            _log.warning("lease not renewed; gates close when it ends", extra=fields(why=why))
        self.trouble, self.unreachable = why, unreachable
        self.failures += 1
        if not self.held:  # forget renewals that will never be answered
            self.drop()

    def _step(self, event: gate.LeaseEvent) -> None:
        before = self._state
        self._state = before.step(event)
        if self._state.deadline_ns != self._mailbox.deadline_ns:
            self._mailbox.renew(self._state.deadline_ns)
        if self._state.covered != before.covered or self._state.deadline_ns != before.deadline_ns:
            self._stored.set()
            self._stored = asyncio.Event()

"""Follows each tenant's stream: applies commits to scopes and mailbox, acks to waiting transitions.

Nothing of the stream is skipped: a gap is closed with a snapshot. Must never commit anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Final

from retire.protocol import events as ev
from retire.protocol.contract import Policy
from retire.protocol.errors import NeedRegister, RegistryUnavailable, TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.author import Author
from retire.sidecar.driver import Moved
from retire.sidecar.fencing import from_payload
from retire.sidecar.journal import Transition
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from retire.registry.interface import Event, ScopeRecord
    from retire.sidecar.driver import Driver
    from retire.sidecar.lease import LeaseKeeper
    from retire.sidecar.ports import Ports
    from retire.sidecar.tenants import Tenants
    from retire.sidecar.tracks import Group

_log = logging.getLogger(names.LOGGER_SIDECAR)
_RETRY_S: Final = 0.2
# Our own commit reaches us twice, as the reply and as an event. The reply knows the other gates and
# the caller, so it goes first; if it got lost, the event stands in for it after this long.
OWN_REPLY_S: Final = 0.05


def admission_of(record: ScopeRecord) -> ev.Admission:
    """Whether a recorded scope takes new work."""
    if record.cancelled:
        return ev.Admission.CANCELLED
    return ev.Admission.PAUSED if record.paused else ev.Admission.OPEN


class Follower:
    """One tenant's stream, from a known position on."""

    def __init__(
        self, ports: Ports, driver: Driver, lease: LeaseKeeper, *, tenants: Tenants, tenant: str
    ) -> None:
        self._ports = ports
        self._driver = driver
        self._lease = lease
        self._tenants = tenants
        self.tenant = tenant
        self._after = ""  # the last event that was applied

    async def run(self, after: str) -> None:
        """Apply every event past ``after``; ends by ``tenants.on_lost`` when the stream is
        another.
        """
        self._after = after
        going_on = True
        while going_on:
            try:
                going_on = await self._follow()
            except Exception:  # a fault of ours: without its stream the node would stay closed
                _log.exception("stream of a tenant failed", extra=fields(tenant=self.tenant))
                await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> bool:
        """Until the stream breaks; whether to go on from ``_after``."""
        try:
            async for event in self._ports.registry.events(self.tenant, after=self._after):
                author = Author.decode(event.fields["by"]) if "by" in event.fields else None
                if author is not None and author.node == self._ports.identity.node:
                    await self._driver.answered(author.call, wait_s=OWN_REPLY_S)
                self.apply(event)
                self._after = event.id
        except RegistryUnavailable:
            await asyncio.sleep(_RETRY_S)
        except (TermMismatch, NeedRegister) as error:
            found = await self._resync(error)
            if found is None:
                await self._tenants.on_lost(error)
                return False
            self._after = found
        return True

    async def _resync(self, why: TermMismatch | NeedRegister) -> str | None:
        """Read the whole tenant; the position to go on from, None when the registry is not ours."""
        own = self._ports.identity
        try:
            snapshot = await self._ports.registry.snapshot(self.tenant)
        except NeedRegister:
            return None
        except RegistryUnavailable:
            await asyncio.sleep(_RETRY_S)
            return await self._resync(why)
        applied = self._lease.tenants().get(self.tenant)
        if applied is None:  # left: the node is entering the registry anew, this stream ends
            return None
        if snapshot.term != own.term or snapshot.sequence < applied:
            return None
        _log.warning("stream has a gap; read a snapshot", extra=fields(tenant=self.tenant, why=why))
        for record in snapshot.scopes:
            self._tenants.take(record, snapshot.sequence)
        self._lease.applied(self.tenant, snapshot.sequence)
        return snapshot.tail

    def apply(self, event: Event) -> None:
        """One event, at once."""
        match event.kind:
            case "commit":
                self._commit(event)
            case "ack":
                self._ack(event)
            case "register":
                key = ScopeKey(event.tenant, event.fields["scope"])
                version = Version.parse(event.fields["version"])
                self._ports.journal.append(Transition(key, "register", version, version))
            case "configure":
                self._configure(event)
            case "quota":
                self._tenants.on_quota(event.tenant)
            case "receipt":
                self._receipt(event)

    def _commit(self, event: Event) -> None:
        f = event.fields
        key, author = ScopeKey(event.tenant, f["scope"]), Author.decode(f["by"])
        change, version = ev.Change(f["kind"]), Version.parse(f["to"])
        sequence = int(f["sequence"])
        rows = json.loads(f["children"]) if f["children"] != "[]" else []
        children = tuple((ScopeKey(event.tenant, n), Version.parse(v)) for n, v in rows)
        seen = ev.VersionObserved(
            change,
            version,
            sequence,
            generation=int(f["generation"]),
            gates=self._driver.gates.local(),
            contract=author.contract,
        )
        foreign = author.node != self._ports.identity.node
        trace = author.traceparent if foreign else ""
        moved = Moved(change, sequence, author.contract, children, trace)
        own = author.node == self._ports.identity.node and author.call in self._driver.answers.calls
        self._observe(key, seen, moved, own=own)
        self._tenants.joining.again(
            (key, *(child for child, _ in children)), lambda: self._observe(key, seen, moved)
        )
        if foreign:
            from_version = Version.parse(f["from"])
            self._ports.journal.append(Transition(key, change.value, from_version, version))
        self._lease.applied(event.tenant, sequence)

    def _observe(
        self, key: ScopeKey, seen: ev.VersionObserved, moved: Moved, *, own: bool = False
    ) -> None:
        group: Group | None = None
        if seen.change.moves_version:
            group = self._driver.observe_children(key, seen.version, moved)
        self._driver.observe(key, seen, group, own=own, traceparent=moved.traceparent)

    def _ack(self, event: Event) -> None:
        f = event.fields
        if f["node"] == self._ports.identity.node:
            return
        key, version = ScopeKey(event.tenant, f["scope"]), Version.parse(f["version"])
        if f["payload"]:
            fenced = from_payload(f["payload"])
            self._driver.gates.received(key, f["node"], version=version, fenced=fenced)
        else:
            self._driver.gates.acked(key, f["node"], version)

    def _configure(self, event: Event) -> None:
        """Nobody is told: the API processes ask for the policy with their next join."""
        f = event.fields
        key = ScopeKey(event.tenant, f["scope"])
        policy = None if f["policy"] == "-" else Policy(f["policy"])

        def take() -> None:
            entry = self._ports.scopes.find(key)
            if entry is not None:
                entry.policy, entry.parent = policy, f["parent"] or None

        take()
        self._tenants.joining.again((key,), take)

    def _receipt(self, event: Event) -> None:
        f = event.fields
        if f["node"] != self._ports.identity.node:
            key, version = ScopeKey(event.tenant, f["scope"]), Version.parse(f["version"])
            self._ports.journal.append(
                Transition(key, "receipt", version, version, receipt_json=f["payload"])
            )

"""The registry is not the one we knew: find the term, write what is lost anew, enter it again.

Standalone (design, section 4) the scopes come from this node's own inventory; in Kubernetes the
operator writes them and the node follows (written.py). Every token of a lower term is refused from
then on. Must never lower a version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from retire.protocol import events as ev
from retire.protocol.errors import (
    NeedRegister,
    RegistryUnavailable,
    ScopeClosed,
    TermMismatch,
    Unavailable,
    UnknownScope,
)
from retire.protocol.history import RegistryRebuilt
from retire.protocol.versions import ScopeKey, Version
from retire.registry.interface import CommitKind, ScopeRecord
from retire.sidecar.author import Author
from retire.sidecar.journal import Transition
from retire.sidecar.tenants import NODE_TENANT
from retire.sidecar.written import NotWritten, Written
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from retire.sidecar.driver import Driver
    from retire.sidecar.lease import LeaseKeeper
    from retire.sidecar.ports import Ports
    from retire.sidecar.scopes import Entry
    from retire.sidecar.tenants import Tenants
    from retire.sidecar.terms import Terms

_log = logging.getLogger(names.LOGGER_SIDECAR)
_RETRY_S: Final = 0.2
_POLL_S: Final = 0.5  # of a term that somebody else has to make
_JOINS_AT_ONCE: Final = 32
_SETTLE_MARGIN: Final = 1.1  # clocks run apart; see protocol.gate.DRIFT_MARGIN


class Rebuild:
    """Re-entry into the registry: after a restart, after its loss, after another node rebuilt
    it.
    """

    def __init__(
        self,
        ports: Ports,
        driver: Driver,
        lease: LeaseKeeper,
        *,
        tenants: Tenants,
        terms: Terms,
    ) -> None:
        self._ports = ports
        self._driver = driver
        self._lease = lease
        self._tenants = tenants
        self._terms = terms
        self._written = Written(ports, tenants) if terms.follows else None
        self._running: asyncio.Task[None] | None = None
        self._rebooted = False
        self._waiting = False
        self.why_lost = ""  # why the registry is not the one we knew, until it is entered again
        self.waiting = ""  # what the entry waits for, while it must
        self.count = 0  # tenants this node wrote anew

    @property
    def running(self) -> bool:
        """Whether commits are refused until the node has entered the registry again."""
        return self._running is not None

    async def lost(self, error: TermMismatch | NeedRegister) -> None:
        """Called by whoever notices; the first one starts the recovery. Gates close at once."""
        if self._running is None:
            _log.warning("registry is not the one we knew", extra=fields(why=error))
            self.start(error)

    def start(self, error: TermMismatch | NeedRegister | None = None) -> asyncio.Task[None]:
        """Enter the registry (again) with every scope of the mailbox; None: after a restart."""
        self._lease.suspend()
        self._running = self._ports.tasks.spawn(self._recover(error), name="registry recovery")
        self._running.add_done_callback(self._over)
        return self._running

    def _over(self, done: asyncio.Task[None]) -> None:
        self._running = None
        if done.cancelled():
            return
        if done.exception() is None:
            self.why_lost = self.waiting = ""
            self._lease.resume()
        else:  # logged by the task; the node stays closed and tries again
            asyncio.get_running_loop().call_later(_RETRY_S, self.start)

    async def _recover(self, error: TermMismatch | NeedRegister | None) -> None:
        """Until it works: every step may be repeated."""
        self._rebooted = False
        if error is not None:
            await self._react(error)
        elif not self._ports.identity.term:
            await self._take_term("")
        for tenant in sorted(self._all_tenants(), key=_node_tenant_first):
            self._tenants.unfollow(tenant)
            while not await self._entered(tenant):
                await asyncio.sleep(_RETRY_S)
        own = self._ports.identity
        _log.info(
            "registry entered",
            extra=fields(node=own.node, term=own.term, scopes=len(self._ports.scopes)),
        )

    async def _entered(self, tenant: str) -> bool:
        try:
            await self._enter(tenant)
        except NotWritten as error:
            self._wait_for(error)
            return False
        except RegistryUnavailable as error:
            if not self._waiting:
                _log.warning(
                    "waiting for the registry; start it, or correct its URL",
                    extra=fields(why=error),
                )
            self._waiting, self.waiting = True, str(error)
            return False
        except (TermMismatch, NeedRegister) as error:
            _log.warning("registry cannot be entered as it is", extra=fields(why=error))
            await self._react(error)
            return False
        self._waiting, self.waiting = False, ""
        return True

    def _wait_for(self, error: Unavailable) -> None:
        if self.waiting != str(error):
            _log.warning("not in the registry yet", extra=fields(why=error))
        self.waiting = str(error)

    def sequences(self) -> dict[str, int]:
        """Tenant -> the highest commit sequence this node has seen there, whatever the term."""
        entered = {NODE_TENANT, *self._tenants.terms}
        tenants = self._all_tenants() if self.running else entered  # the same, found quickly
        return {tenant: self._lease.seen(tenant) for tenant in tenants}

    def _all_tenants(self) -> set[str]:
        return {NODE_TENANT, *self._tenants.terms, *self._by_tenant()}

    async def _react(self, error: TermMismatch | NeedRegister) -> None:
        """A forgotten boot enters as a new one; anything else is a registry of another term."""
        own = self._ports.identity
        if isinstance(error, NeedRegister) and not self._rebooted:
            self._rebooted = True
            own.boot_id = f"{own.boot_id.split('.')[0]}.{time.time_ns():x}"
            return
        await self._take_term(str(error))

    async def _take_term(self, why: str) -> None:
        """A higher term than any we know, however long it takes to be made."""
        own = self._ports.identity
        known, floor = own.term, own.term or max(0, self._term_held() - 1)
        if not self._terms.follows:
            self.why_lost = why
        while True:
            try:
                own.term = await self._terms.above(floor)
                break
            except Unavailable as error:
                self.why_lost = why
                self._wait_for(error)
            await asyncio.sleep(_POLL_S)
        self.waiting = ""
        if self._terms.follows:  # whoever made the term knows
            self.why_lost = ""
        if known or own.term > max(1, self._term_held()):
            settle_s = self._ports.settings.lease_s * _SETTLE_MARGIN
            self._tenants.closed_until_s = self._ports.clock() + settle_s

    def _term_held(self) -> int:
        """The highest term of this node's scopes: what the mailbox remembers over a restart."""
        return max((_term(entry) for entry in self._ports.scopes), default=0)

    def _by_tenant(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for entry in self._ports.scopes:
            found.setdefault(entry.state.key.tenant, []).append(entry)
        return found

    async def _enter(self, tenant: str) -> None:
        """The tenant under our term, this node's lease in it, every scope joined, the stream."""
        own, registry = self._ports.identity, self._ports.registry
        mine = self._by_tenant().get(tenant, [])
        await self._open(tenant, mine)
        await registry.renew(
            own.node,
            term=own.term,
            boot_id=own.boot_id,
            lease_s=self._ports.settings.lease_s,
            tenants={tenant: 0},
        )
        for at in range(0, len(mine), _JOINS_AT_ONCE):
            await asyncio.gather(*(self._rejoin(e) for e in mine[at : at + _JOINS_AT_ONCE]))
        snapshot = await registry.snapshot(tenant)
        self._tenants.enter_at(tenant, snapshot)

    async def _open(self, tenant: str, mine: list[Entry]) -> None:
        """Write the tenant anew when it may be of an older term, else say hello.

        Never hello first after the term rose: it could make an empty tenant beside leases that run.
        """
        own, registry = self._ports.identity, self._ports.registry
        held = max((_term(entry) for entry in mine), default=0)
        known = self._tenants.terms.get(tenant, held)
        if self._written is not None:
            await self._written.enter(tenant, max(known, self._floor(tenant)))
            return
        if 0 < known < own.term:
            await self._rebuild(tenant, mine)
        await registry.hello(tenant, term=own.term)

    def _floor(self, tenant: str) -> int:
        """The node's own tenant was there under every term that this node has seen."""
        return self._term_held() if tenant == NODE_TENANT else 0

    async def _rebuild(self, tenant: str, mine: list[Entry]) -> None:
        own = self._ports.identity
        try:
            await self._ports.registry.rebuild(
                tenant,
                term=own.term,
                scopes=[_record(entry, own.term) for entry in mine],
                quota_blocks=await self._quota(tenant),
                sequence=self._lease.seen(tenant),
                settle_s=self._ports.settings.lease_s,
            )
        except TermMismatch:  # another node has written it under this term, or a higher one
            _log.info("tenant was rebuilt by another node", extra=fields(tenant=tenant))
            return
        self.count += 1
        self._note_rebuild(tenant, own.term)

    async def _rejoin(self, entry: Entry) -> None:
        """Join again and move to the registry's version; TermMismatch when the registry is
        behind.
        """
        own, key, version = self._ports.identity, entry.state.key, entry.state.version
        assert version is not None
        cancelled = entry.state.admission is ev.Admission.CANCELLED
        try:
            record = await self._record_of(key, cancelled=cancelled)
        except (NeedRegister, UnknownScope):
            if version.term == own.term:
                raise TermMismatch(f"scope {key} at {version} is not in the registry") from None
            record = await self._register_again(entry)
            record = record if cancelled else await self._join(key)
        if cancelled and not record.cancelled:
            record = await self._close_again(record)
        if record.version < version:
            raise TermMismatch(f"scope {key}: registry is at {record.version}, node at {version}")
        self._take(entry, record)

    async def _register_again(self, entry: Entry) -> ScopeRecord:
        """A scope that whoever rebuilt the registry did not know; below its parent, if there."""
        key, version = entry.state.key, entry.state.version
        assert version is not None
        register, term = self._ports.registry.register, self._ports.identity.term
        if entry.parent is not None:
            parent = self._ports.scopes.find(ScopeKey(key.tenant, entry.parent))
            with contextlib.suppress(NeedRegister, ScopeClosed):
                if parent is not None:
                    await self._register_again(parent)
                return await register(
                    key, term=term, epoch=version.epoch, policy=entry.policy, parent=entry.parent
                )
        return await register(key, term=term, epoch=version.epoch, policy=entry.policy)

    async def _record_of(self, key: ScopeKey, *, cancelled: bool) -> ScopeRecord:
        """A cancelled scope has no gates: it is read, not joined."""
        try:
            return await (self._ports.registry.get(key) if cancelled else self._join(key))
        except ScopeClosed:
            return await self._ports.registry.get(key)

    async def _join(self, key: ScopeKey) -> ScopeRecord:
        own = self._ports.identity
        return await self._ports.registry.join(
            key, term=own.term, node=own.node, boot_id=own.boot_id
        )

    async def _close_again(self, record: ScopeRecord) -> ScopeRecord:
        """The registry lost the scope and its cancel: cancel stays terminal."""
        own = self._ports.identity
        await self._ports.registry.commit(
            CommitKind.CANCEL,
            record.key,
            term=own.term,
            expected=record.version,
            idempotency_key=f"rebuild-{own.term}-{record.key.scope}"[:200],
            body_digest="",
            by=Author(own.node).encode(),
        )
        return await self._ports.registry.get(record.key)

    def _take(self, entry: Entry, record: ScopeRecord) -> None:
        key, before = entry.state.key, entry.state.version
        assert before is not None
        gates = self._driver.gates.local()
        if record.version.term > before.term:
            track = self._ports.tracks.open(key, record.version, self._ports.clock())
            track.mine = track.sole = True  # nobody waits for this node's ack of a rebuild
            self._driver.apply(key, ev.Rebuilt(record.version, record.generation, gates))
            self._ports.journal.append(Transition(key, "rebuild", before, record.version))
        self._tenants.take(record, 0)

    async def _quota(self, tenant: str) -> int | None:
        """The quota the registry still holds, else the default of this node."""
        try:
            held = (await self._ports.registry.snapshot(tenant)).quota_blocks
        except NeedRegister:
            held = None
        return self._ports.settings.pin_quota_blocks if held is None else held

    def _note_rebuild(self, tenant: str, term: int) -> None:
        _log.warning("registry rebuilt", extra=fields(tenant=tenant, term=term))
        if self._ports.history.on:
            self._ports.history.write(RegistryRebuilt(time.monotonic_ns(), tenant, term))


def _node_tenant_first(tenant: str) -> tuple[bool, str]:
    """Where it is there, a registry that somebody else rebuilds is complete (written.py)."""
    return tenant != NODE_TENANT, tenant


def _term(entry: Entry) -> int:
    return 0 if entry.state.version is None else entry.state.version.term


def _record(entry: Entry, term: int) -> ScopeRecord:
    """A scope of this node's inventory, as the registry is to hold it under ``term``."""
    version = entry.state.version
    assert version is not None
    return ScopeRecord(
        key=entry.state.key,
        version=Version(term, version.epoch),
        generation=entry.state.generation,
        paused=entry.state.admission is ev.Admission.PAUSED,
        cancelled=entry.state.admission is ev.Admission.CANCELLED,
        policy=entry.policy,
        parent=entry.parent,
        nodes=(),
    )

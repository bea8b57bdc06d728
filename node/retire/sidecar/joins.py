"""Makes this node a gate of scopes: join or register, open the slot, make room when it is full.

Must never advance a version: a joined scope moves by facts, in the driver.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import (
    CapacityExceeded,
    InvalidField,
    NeedRegister,
    ScopeClosed,
    VersionConflict,
)
from retire.protocol.events import Admission, Registered
from retire.protocol.state import ScopeState
from retire.protocol.transitions import step
from retire.protocol.versions import ScopeKey
from retire.sidecar.events import admission_of
from retire.sidecar.fencing import live_scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retire.protocol.versions import Version
    from retire.registry.interface import ScopeRecord
    from retire.sidecar.ports import Ports
    from retire.sidecar.scopes import Entry
    from retire.sidecar.tenants import Tenants

_FREED_AT_ONCE: Final = 64


class Joining:
    """Scopes whose join is under way: commits seen meanwhile are applied again once the slot is
    open.

    Without it a commit between the registry's answer and the slot would be lost to this node.
    """

    def __init__(self) -> None:
        self._waiting: dict[ScopeKey, list[Callable[[], None]]] = {}

    def begin(self, key: ScopeKey) -> None:
        """From here on commits to ``key`` are kept."""
        self._waiting[key] = []

    def again(self, keys: Iterable[ScopeKey], observe: Callable[[], None]) -> None:
        """Keep ``observe`` for each of ``keys`` that is being joined."""
        for key in keys:
            if key in self._waiting:
                self._waiting[key].append(observe)

    def end(self, key: ScopeKey) -> None:
        """Apply what was kept, in order. Applying a commit twice changes nothing."""
        for observe in self._waiting.pop(key, ()):
            observe()


class Joins:
    """Joins of one node; concurrent joins of one scope are one."""

    def __init__(self, ports: Ports, tenants: Tenants, joining: Joining) -> None:
        self._ports = ports
        self._tenants = tenants
        self._joining = joining
        self._running: dict[ScopeKey, asyncio.Task[tuple[Entry, bool]]] = {}

    async def join(
        self, key: ScopeKey, version: Version | None, parent: str | None = None
    ) -> tuple[Entry, bool]:
        """The joined scope and whether it was created now. A known scope answers from memory.

        ``parent``: what it is part of, from now on if it was part of nothing. Raises
        VersionConflict when ``version`` is given and is not current, ScopeClosed when cancelled,
        UnknownScope for an unknown parent, InvalidField when it has another.
        """
        if parent is not None:
            await self.find(ScopeKey(key.tenant, parent))
        entry, created = self._ports.scopes.find(key), False
        if entry is None:
            entry, created = await self._shared(key)
        if parent is not None and entry.parent != parent:
            await self._place(entry, parent)
        current = entry.state.version
        assert current is not None
        if entry.state.admission is Admission.CANCELLED:
            raise ScopeClosed(key, current)
        if version is not None and version != current:
            raise VersionConflict(key, expected=version, current=current)
        self._ports.scopes.touch(entry, self._ports.clock())
        return entry, created

    async def find(self, key: ScopeKey) -> Entry:
        """The scope, joined if the registry knows it; UnknownScope when nobody does."""
        entry = self._ports.scopes.find(key)
        if entry is not None:
            return entry
        await self._tenants.open(key.tenant)
        record = await self._ports.registry.get(key)
        if record.cancelled:
            raise ScopeClosed(key, record.version)
        entry, _ = await self._shared(key)
        return entry

    async def _place(self, entry: Entry, parent: str) -> None:
        """Make the scope part of ``parent``. The registry refuses another one, and circles."""
        key, term = entry.state.key, self._ports.identity.term
        record = await self._ports.registry.get(key)
        try:
            record = await self._ports.registry.configure(
                key, term=term, policy=record.policy, parent=parent
            )
        except InvalidField as error:
            raise error.renamed("x-retire-parent", parent) from None
        entry.parent = record.parent

    async def _shared(self, key: ScopeKey) -> tuple[Entry, bool]:
        running = self._running.get(key)
        if running is None:
            running = self._ports.tasks.spawn(self._join(key), name=f"join of {key}", quiet=True)
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(running)

    async def _join(self, key: ScopeKey) -> tuple[Entry, bool]:
        await self._tenants.open(key.tenant)
        if not self._ports.scopes.free_count:
            await self.free_idle()
        self._joining.begin(key)
        try:
            record, created = await self._enter(key)
            await self._tenants.covered(key.tenant)
            return self.add(record), created
        finally:
            self._joining.end(key)

    async def _enter(self, key: ScopeKey) -> tuple[ScopeRecord, bool]:
        own, registry = self._ports.identity, self._ports.registry
        created = False
        try:
            record = await registry.join(key, term=own.term, node=own.node, boot_id=own.boot_id)
        except NeedRegister:
            created = (await registry.register(key, term=own.term)).created
            record = await registry.join(key, term=own.term, node=own.node, boot_id=own.boot_id)
        return record, created

    def add(self, record: ScopeRecord) -> Entry:
        """Open the slot of a scope that this node has entered."""
        found = self._ports.scopes.find(record.key)
        if found is not None:
            return found
        learned = step(
            ScopeState(record.key, self._ports.identity.node),
            Registered(record.version, record.generation, admission_of(record)),
        )
        entry = self._ports.scopes.add(learned.state, self._ports.clock())
        entry.policy, entry.parent = record.policy, record.parent
        return entry

    async def free_idle(self) -> None:
        """Give up the slots of scopes nobody asked for within the idle time; CapacityExceeded
        if none.

        A scope with a live request at any API process keeps its slot, however long ago it was
        joined.
        """
        settings = self._ports.settings
        before_s = self._ports.clock() - settings.idle_ttl_s
        idle = self._ports.scopes.idle(before_s=before_s, limit=_FREED_AT_ONCE)
        live = await live_scopes(self._ports.links, idle, wait_s=settings.fence_wait_s)
        leaving = [key for key in idle if key not in live and key in self._ports.scopes]
        if not leaving:
            raise CapacityExceeded(
                f"this node holds {len(self._ports.scopes)} scopes and none has been idle for "
                f"{settings.idle_ttl_s:g} s; end scopes, or raise RETIRE_SLOTS"
            )
        for key in leaving:
            self._ports.scopes.remove(key)
            self._ports.tasks.spawn(self._leave(key), name=f"leave of {key}")

    async def _leave(self, key: ScopeKey) -> None:
        own = self._ports.identity
        if key in self._ports.scopes or key in self._running:  # joined again meanwhile
            return
        await self._ports.registry.leave(key, term=own.term, node=own.node)

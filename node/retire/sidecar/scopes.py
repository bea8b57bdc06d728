"""The table of scopes of this node: protocol state, mailbox slot, last use, last receipts.

Memory only. Must never await, and never change a state: states come from ``transitions.step``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retire.mailbox import SlotFlags
from retire.protocol.errors import UnknownScope
from retire.protocol.events import Admission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retire.mailbox import MailboxWriter, SlotRef
    from retire.protocol.contract import Policy
    from retire.protocol.state import ScopeState
    from retire.protocol.versions import ScopeKey, Version

RECEIPTS_KEPT: Final = 16  # per scope, newest first
_FLAGS: Final = {
    Admission.OPEN: SlotFlags.NONE,
    Admission.PAUSED: SlotFlags.PAUSED,
    Admission.CANCELLED: SlotFlags.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A finished receipt and what replays find it by."""

    to_version: Version
    idempotency_key: str
    json: str


@dataclass(slots=True)
class Entry:
    """One scope this node joined."""

    state: ScopeState
    slot: int  # Invariant: open in the mailbox at state.version
    last_seen_s: float  # last request of an API process, monotonic clock
    receipts: deque[StoredReceipt] | None = None  # made with the first receipt
    policy: Policy | None = None  # as the registry's record has it; a restart forgets both
    parent: str | None = None


class Scopes:
    """Every scope this node joined, least recently used first."""

    def __init__(self, mailbox: MailboxWriter) -> None:
        self._mailbox = mailbox
        self._entries: OrderedDict[ScopeKey, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: ScopeKey) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def newest_first(self) -> Iterator[Entry]:
        """The same, most recently used first."""
        return reversed(self._entries.values())

    @property
    def free_count(self) -> int:
        """Scopes that can still be added."""
        return self._mailbox.free_count

    def find(self, key: ScopeKey) -> Entry | None:
        """The entry, or None when this node has not joined the scope."""
        return self._entries.get(key)

    def get(self, key: ScopeKey) -> Entry:
        """The entry; raises UnknownScope."""
        entry = self._entries.get(key)
        if entry is None:
            raise UnknownScope(key.scope)
        return entry

    def touch(self, entry: Entry, now_s: float) -> None:
        """Note a request; the least recently seen scope is the first to lose its slot."""
        entry.last_seen_s = now_s
        self._entries.move_to_end(entry.state.key)

    def add(self, state: ScopeState, now_s: float) -> Entry:
        """Open the scope's mailbox slot at its version. Raises CapacityExceeded when full."""
        assert state.version is not None
        ref = self._mailbox.open(
            state.key,
            state.version,
            generation=state.generation,
            flags=_FLAGS[state.admission],
        )
        entry = self._entries[state.key] = Entry(state, ref.index, now_s)
        return entry

    def remove(self, key: ScopeKey) -> None:
        """Free the slot: every stamp handed out for the scope is refused from here on."""
        self._mailbox.free(self._entries.pop(key).slot)

    def idle(self, *, before_s: float, limit: int) -> list[ScopeKey]:
        """Scopes nobody asked for since ``before_s`` that have nothing under way, oldest first."""
        found: list[ScopeKey] = []
        for key, entry in self._entries.items():
            if entry.last_seen_s > before_s or len(found) == limit:
                break
            if not entry.state.transitions and not entry.state.pending:
                found.append(key)
        return found

    def ref(self, entry: Entry) -> SlotRef:
        """What a gate of the scope's current version compares."""
        ref = self._mailbox.find(entry.state.key)
        assert ref is not None, "an entry has a slot"
        return ref

    def store_version(self, entry: Entry, version: Version, generation: int) -> None:
        """The store after which no gate of this host publishes a lower version."""
        self._mailbox.advance(entry.slot, version, generation=generation)

    def store_admission(self, entry: Entry) -> None:
        """Mirror paused and cancelled into the slot's flags, for the engine to see."""
        self._mailbox.set_flags(entry.slot, _FLAGS[entry.state.admission])

    def keep_receipt(self, entry: Entry, receipt: StoredReceipt) -> None:
        """Newest first; a receipt of the same version is replaced."""
        if entry.receipts is None:
            entry.receipts = deque(maxlen=RECEIPTS_KEPT)
        for old in entry.receipts:
            if old.to_version == receipt.to_version:
                entry.receipts.remove(old)
                break
        entry.receipts.appendleft(receipt)

    def receipt(self, key: ScopeKey, to_version: Version) -> StoredReceipt | None:
        """The finished receipt of a version, while it is among the last ones."""
        entry = self._entries.get(key)
        if entry is None or entry.receipts is None:
            return None
        return next((r for r in entry.receipts if r.to_version == to_version), None)

"""The single writer of a mailbox: the sidecar. Owns slots and serials; decides no version.

Not thread-safe: one event loop calls it. Must never import the registry or the engine.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from retire.mailbox import layout, storage
from retire.mailbox.layout import Slot, SlotRef, slot_word
from retire.mailbox.recovery import recover
from retire.protocol.errors import CapacityExceeded, InvalidField, VersionConflict
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from retire.protocol.versions import ScopeKey


class MailboxWriter:
    """Opens, advances, closes and frees slots, and renews the node's publish deadline."""

    def __init__(self, fd: int, path: Path, capacity: int) -> None:
        """Adopt a locked descriptor; use :meth:`create`."""
        self.path = path
        self.capacity = capacity
        self._fd = fd
        self._words = storage.map_words(fd, layout.file_bytes(capacity), writable=True)
        found = recover(self._words, storage.read_tenures(fd, capacity))
        self._index: dict[ScopeKey, int] = found.index
        self._freed = found.freed
        self._fresh = found.fresh  # slots from here on were never used
        self._words[layout.H_WRITER_PID] = os.getpid()
        self._changed()  # the writer before may have died between a stamp and this word

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        capacity: int = layout.CAPACITY_DEFAULT,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> MailboxWriter:
        """Open or make the mailbox at ``path`` and hold its lock until :meth:`detach` or death.

        A valid file of a dead writer keeps its slots, stamps and deadline; a damaged one, one of
        another capacity, layout or boot is replaced. ``now_ns`` (wall clock) seeds the serials of a
        new file. Raises Unavailable while another writer lives, InvalidField for a foreign file.
        """
        if not 0 < capacity <= layout.CAPACITY_MAX:
            raise InvalidField("capacity", capacity, f"an integer in 1..{layout.CAPACITY_MAX}")
        file = storage.resolve_path(path)
        fd = storage.lock_for_writing(file, capacity=capacity, wall_ns=now_ns)
        return cls(fd, file, capacity)

    @property
    def boot_id(self) -> str:
        """Identity of the file, drawn when it was created."""
        return storage.boot_id(self._words)

    @property
    def free_count(self) -> int:
        """Slots that :meth:`open` can still hand out."""
        return self.capacity - self._fresh + len(self._freed)

    @property
    def deadline_ns(self) -> int:
        """The publish deadline on CLOCK_MONOTONIC; 0 means closed."""
        return self._words[layout.H_DEADLINE]

    def renew(self, deadline_ns: int) -> None:
        """Store the publish deadline of the whole node. 0 closes every gate."""
        self._words[layout.H_DEADLINE] = deadline_ns

    def open(
        self, key: ScopeKey, version: Version, *, generation: int = 0, flags: int = 0
    ) -> SlotRef:
        """The scope's slot at ``version``; a scope that has one keeps it (idempotent per key).

        An open slot at ``version`` stays as it is. One at a lower version, or a closed one, gets a
        new stamp with the flags and generation given. Raises VersionConflict when the slot is past
        ``version``, CapacityExceeded when every slot is taken.
        """
        _check_flags(flags)
        index = self._index.get(key)
        if index is None:
            return self._assign(key, version, generation, flags)
        ref, current = self._ref(index), self._version(index)
        if version < current:
            raise VersionConflict(key, expected=version, current=current)
        if ref.stamp and version == current:
            return ref
        return self._restamp(index, version, generation, flags=flags)

    def advance(self, index: int, version: Version, *, generation: int | None = None) -> SlotRef:
        """Move an open slot to ``version`` under a new stamp: the old stamp publishes no more.

        The same version leaves the slot as it is; a version never goes down (programmer error).
        """
        ref = self._ref(index)
        current = self._version(index)
        assert version >= current, f"slot {index} is at {current}, cannot go back to {version}"
        if version == current:
            return ref
        if generation is None:
            generation = self._words[slot_word(index, layout.W_GENERATION)]
        return self._restamp(index, version, generation, flags=self._slot_flags(index))

    def close(self, index: int) -> None:
        """Stamp 0: nothing of this slot publishes. The scope keeps the slot."""
        self._ref(index)
        self._store(slot_word(index, layout.W_STAMP), 0)
        self._store(slot_word(index, layout.W_CHANGED), time.monotonic_ns())
        self._changed()

    def free(self, index: int) -> None:
        """Close the slot and let another scope have it, under another tenure."""
        self.close(index)
        record = layout.name_record(self._words, self.capacity, index)
        del self._index[layout.decode_name(record)]
        self._store(slot_word(index, layout.W_TENURE), 0)
        self._freed.append(index)

    def set_flags(self, index: int, flags: int) -> None:
        """Replace w2. Flags inform the engine; they neither open nor close a gate."""
        self._ref(index)
        _check_flags(flags)
        self._store(slot_word(index, layout.W_FLAGS), int(flags))

    def arm(self, index: int, stop_index: int) -> None:
        """Ask the ranks that run this scope's old work to stop at layer ``stop_index``."""
        flags = self._slot_flags(index) | layout.SlotFlags.ARMED
        self._store(slot_word(index, layout.W_STOP), stop_index)
        self.set_flags(index, flags)

    def find(self, key: ScopeKey) -> SlotRef | None:
        """The slot of a scope, its stamp 0 when closed; None when it has none."""
        index = self._index.get(key)
        return None if index is None else self._ref(index)

    def slots(self) -> Iterator[Slot]:
        """Every slot in use, closed ones included."""
        for key, index in tuple(self._index.items()):
            yield self._slot(key, index)

    def detach(self, *, remove: bool = False) -> None:
        """Close every gate, unmap and release the lock; with ``remove`` also unlink the file."""
        self.renew(0)
        if remove and storage.is_at(self._fd, self.path):
            self.path.unlink()
        self._words.release()
        os.close(self._fd)

    def _assign(self, key: ScopeKey, version: Version, generation: int, flags: int) -> SlotRef:
        index = self._take()
        tenure = self._serial()
        record = layout.encode_name(key)
        self._store_name(index, record)
        self._store(slot_word(index, layout.W_SEAL), layout.seal(record, tenure))
        self._store(slot_word(index, layout.W_STOP), 0)
        self._store(slot_word(index, layout.W_TENURE), tenure)
        self._index[key] = index
        return self._restamp(index, version, generation, flags=flags)

    def _restamp(self, index: int, version: Version, generation: int, *, flags: int) -> SlotRef:
        """Closed first, stamp last: a crash between any two stores leaves the slot closed."""
        stamp = self._serial()
        self._store(slot_word(index, layout.W_STAMP), 0)
        self._store(slot_word(index, layout.W_VERSION), version.packed())
        self._store(slot_word(index, layout.W_FLAGS), int(flags))
        self._store(slot_word(index, layout.W_GENERATION), generation)
        self._store(slot_word(index, layout.W_CHANGED), time.monotonic_ns())
        self._store(slot_word(index, layout.W_STAMP), stamp)
        self._changed()
        return self._ref(index)

    def _take(self) -> int:
        if self._freed:
            return self._freed.pop()
        if self._fresh == self.capacity:
            raise CapacityExceeded(
                f"mailbox {self.path} is full: {self.capacity} scopes are open on this node; "
                "end idle scopes or start the sidecar with a larger mailbox capacity"
            )
        index = self._fresh
        if index % layout.SLOTS_PER_PAGE == 0:
            self._reserve_page(index)
        self._fresh += 1
        return index

    def _serial(self) -> int:
        """Issue a serial; the counter is stored before the serial can be seen anywhere."""
        serial = self._words[layout.H_NEXT_SERIAL]
        self._store(layout.H_NEXT_SERIAL, serial + 1)
        return serial

    def _changed(self) -> None:
        """Some stamp is another by now. Stored last, for readers that skip what has not changed."""
        self._store(layout.H_CHANGES, (self._words[layout.H_CHANGES] + 1) & layout.WORD_MAX)

    def _ref(self, index: int) -> SlotRef:
        tenure = self._words[slot_word(index, layout.W_TENURE)] if 0 <= index < self.capacity else 0
        assert tenure, f"slot {index} is not in use"
        return SlotRef(index, tenure, self._words[slot_word(index, layout.W_STAMP)])

    def _version(self, index: int) -> Version:
        return Version.unpack(self._words[slot_word(index, layout.W_VERSION)])

    def _slot_flags(self, index: int) -> int:
        return self._words[slot_word(index, layout.W_FLAGS)]

    def _slot(self, key: ScopeKey, index: int) -> Slot:
        flags = self._slot_flags(index)
        generation = self._words[slot_word(index, layout.W_GENERATION)]
        return Slot(key, self._version(index), self._ref(index), flags, generation)

    def _store(self, word: int, value: int) -> None:
        """The one place that changes a slot or the counter: a single aligned 8-byte store."""
        self._words[word] = value

    def _store_name(self, index: int, record: bytes) -> None:
        at = layout.name_offset(self.capacity, index) // layout.WORD_BYTES
        self._words[at : at + layout.NAME_BYTES // layout.WORD_BYTES] = memoryview(record).cast("Q")

    def _reserve_page(self, index: int) -> None:
        try:
            storage.reserve_page(self._fd, self.capacity, index)
        except OSError as error:
            raise CapacityExceeded(
                f"no memory for {layout.SLOTS_PER_PAGE} more scopes in mailbox {self.path} "
                f"({error.strerror}); enlarge its file system (24 MiB hold 65536 scopes)"
            ) from error


def _check_flags(flags: int) -> None:
    if flags & ~layout.FLAGS_ALL:
        raise InvalidField("flags", flags, f"a combination of the bits {layout.FLAGS_ALL:#b}")

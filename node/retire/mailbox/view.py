"""The reading side of a mailbox: the gate check of API processes, EngineCore and workers.

Maps the file read-only. Must never import the registry, the sidecar or the engine.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from retire.mailbox import layout, storage
from retire.mailbox.layout import Current, GateState, SlotRef, slot_word
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_READ_ATTEMPTS: Final = 64  # an advance is four stores; a reader meets it at most a few times


class MailboxView:
    """A read-only view. ``check(index, stamp)`` is the gate check and the only hot path."""

    __slots__ = ("_fd", "_now_ns", "_words", "boot_id", "capacity", "check", "path")

    def __init__(self, fd: int, path: Path, now_ns: Callable[[], int]) -> None:
        """Adopt a descriptor of a valid mailbox; use :meth:`attach`."""
        self.path = path
        self.capacity: int = storage.read_header(fd, path)[layout.H_CAPACITY]
        self._fd = fd
        self._now_ns = now_ns
        self._words = storage.map_words(fd, layout.names_offset(self.capacity))
        self.boot_id = storage.boot_id(self._words)
        self.check: Callable[[int, int], bool] = gate_check(self._words, self.capacity, now_ns)

    @classmethod
    def attach(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> MailboxView:
        """Map the mailbox at ``path`` (None: ``$RETIRE_MAILBOX``).

        Raises Unavailable when there is none, InvalidField when the file is not a usable mailbox.
        """
        file = storage.resolve_path(path)
        return cls(storage.open_for_reading(file), file, now_ns)

    def gate(self, ref: SlotRef) -> GateState:
        """Why :meth:`check` says what it says. STALE wins: a replaced stamp never opens again."""
        deadline_ns = self._words[layout.H_DEADLINE]
        if not ref.stamp or self._words[slot_word(ref.index, layout.W_STAMP)] != ref.stamp:
            return GateState.STALE
        return GateState.OPEN if self._now_ns() < deadline_ns else GateState.LEASE_EXPIRED

    def lease_left_ns(self) -> int:
        """Time to the publish deadline; negative once it has passed."""
        return self._words[layout.H_DEADLINE] - self._now_ns()

    def current(self, index: int, tenure: int) -> Current | None:
        """What the slot says now, if ``tenure`` still has it; None also while it is closed."""
        words = self._words
        stamp_at = slot_word(index, layout.W_STAMP)
        for _ in range(_READ_ATTEMPTS):
            stamp = words[stamp_at]
            version, flags, stop, held, generation = words[stamp_at + 1 : stamp_at + 6]
            if held != tenure:
                return None
            if stamp and words[stamp_at] == stamp:
                ref = SlotRef(index, tenure, stamp)
                return Current(ref, Version.unpack(version), flags, generation, stop)
        return None

    def replaced(self) -> bool:
        """Whether the path now names another file (or none): attach again."""
        return not storage.is_at(self._fd, self.path)

    def detach(self) -> None:
        """Unmap. Every later check answers False."""
        self.check = _closed
        self._words.release()
        os.close(self._fd)


def gate_check(
    words: memoryview[int], capacity: int, now_ns: Callable[[], int]
) -> Callable[[int, int], bool]:
    """The check as a closure: deadline, then stamp, then clock, in this order (see ``layout``).

    Both views are slices, so no index can reach a word that is not a stamp.
    """
    stamps = words[layout.SLOTS_WORD : slot_word(capacity, 0) : layout.SLOT_WORDS]
    deadline = words[layout.H_DEADLINE : layout.H_DEADLINE + 1]

    def check(index: int, stamp: int) -> bool:
        deadline_ns = deadline[0]
        return stamps[index] == stamp != 0 and now_ns() < deadline_ns

    return check


def _closed(index: int, stamp: int) -> bool:
    del index, stamp
    return False

"""The reading side of a mailbox: the gate check of API processes, EngineCore and workers.

Maps the file read-only. Must never import the registry, the sidecar or the engine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from retire.mailbox import layout, storage
from retire.mailbox.layout import Current, GateState, SlotRef, slot_word
from retire.protocol.versions import Version

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

_READ_ATTEMPTS: Final = 64  # an advance is four stores; a reader meets it at most a few times


class Check(Protocol):
    """The gate check: whether this very instant a gate that holds ``stamp`` may publish."""

    def __call__(self, index: int, stamp: int) -> bool:
        """One load of the deadline, one of the slot's stamp, one look at the clock."""
        ...


class MailboxView:
    """A read-only view. ``check(index, stamp)`` is the gate check and the only hot path."""

    __slots__ = ("_deadline", "_file", "_now_ns", "_stamps", "_words", "boot_id", "check", "path")

    def __init__(self, fd: int, path: Path, now_ns: Callable[[], int]) -> None:
        """Map a descriptor of a valid mailbox, and no longer need it; use :meth:`attach`."""
        capacity = storage.read_header(fd, path)[layout.H_CAPACITY]
        words = storage.map_words(fd, layout.names_offset(capacity))
        self.path = path
        self.boot_id = storage.boot_id(words)
        self._file = storage.identity(fd)
        self._now_ns = now_ns
        self._words = words
        # Slices, so that no index can reach a word that is not a stamp or not the deadline.
        self._stamps = words[layout.SLOTS_WORD :: layout.SLOT_WORDS]
        self._deadline = words[layout.H_DEADLINE : layout.H_DEADLINE + 1]
        self.check: Check = gate_check(self._stamps, self._deadline, now_ns)

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
        with storage.closing(storage.open_for_reading(file)) as fd:
            return cls(fd, file, now_ns)

    def gate(self, ref: SlotRef) -> GateState:
        """Why :meth:`check` says what it says. STALE wins: a replaced stamp never opens again."""
        deadline_ns = self._deadline[0]
        if not ref.stamp or self._stamps[ref.index] != ref.stamp:
            return GateState.STALE
        return GateState.OPEN if self._now_ns() < deadline_ns else GateState.LEASE_EXPIRED

    def lease_left_ns(self) -> int:
        """Time to the publish deadline; negative once it has passed."""
        return self._deadline[0] - self._now_ns()

    def current(self, index: int, tenure: int) -> Current | None:
        """What the slot says now, if ``tenure`` still has it; None also while it is closed."""
        words = self._words
        stamp_at = slot_word(index, layout.W_STAMP)
        assert 0 <= index < len(self._stamps), f"no slot {index}"
        for _ in range(_READ_ATTEMPTS):
            stamp = words[stamp_at]
            version, flags, stop, held, generation = words[stamp_at + 1 : stamp_at + 6]
            if held != tenure:
                return None
            if stamp and words[stamp_at] == stamp:
                ref = SlotRef(index, tenure, stamp)
                return Current(ref, Version.unpack(version), flags, generation, stop)
        return None

    def changes(self) -> int:
        """Equal to an earlier reading: every stamp checked after that reading is as it was."""
        return self._words[layout.H_CHANGES]

    def changed_ns(self, index: int) -> int:
        """When the slot's stamp last changed, on CLOCK_MONOTONIC; 0: never. Information only."""
        return self._words[slot_word(index, layout.W_CHANGED)]

    def replaced(self) -> bool:
        """Whether the path now names another file (or none): attach again."""
        return storage.identity(self.path) != self._file

    def detach(self) -> None:
        """Close this view's gates; the mapping goes with the last closure that reads it."""
        self.check = _closed
        self._stamps = self._deadline = memoryview(bytes(8)).cast("Q")
        self._words = self._stamps[:0]


def gate_check(
    stamps: memoryview[int], deadline: memoryview[int], now_ns: Callable[[], int]
) -> Check:
    """The check as a closure: deadline, then stamp, then clock, in this order (see ``layout``)."""

    def check(index: int, stamp: int) -> bool:
        deadline_ns = deadline[0]
        if stamp and stamps[index] == stamp:  # 0 is what a closed slot holds; it passes nothing
            return now_ns() < deadline_ns
        return False

    return check


def _closed(index: int, stamp: int) -> bool:
    del index, stamp
    return False

"""Who of a scope works and who waits, counted across the API processes of a host.

Owns a file beside the mailbox: a record of 64 words a slot (tenure; inputs that work; the newest
input that superseded; how many wait; their tickets, oldest first), each read and changed under a
lock on its own bytes. Only processes of this host see it: what runs on other nodes is not counted.

A ticket is the input's arrival on CLOCK_MONOTONIC in ns, so tickets of several processes have an
order. Locks and presence are the kernel's: they end with their process, and the first process to
open the file finds nobody present and begins anew. Must never decide who may act.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from retire.mailbox import SlotRef

WORDS: Final = 64
TENURE: Final = 0
WORKING: Final = 1
NEWEST: Final = 2
WAITING: Final = 3
TICKETS: Final = 4
QUEUE_MAX: Final = WORDS - TICKETS
RECORD_BYTES: Final = WORDS * 8
PRESENCE_AT: Final = 1 << 40  # a byte that is locked, never written
RETRY_S: Final = 0.001


class Place:
    """The record of one slot while it is locked."""

    def __init__(self, words: array[int]) -> None:
        self._words = words

    @property
    def working(self) -> int:
        """Inputs that run, or were let in and are about to."""
        return self._words[WORKING]

    @property
    def waiting(self) -> list[int]:
        """Tickets, oldest first."""
        return self._words[TICKETS : TICKETS + self._words[WAITING]].tolist()

    @property
    def newest(self) -> int:
        """Ticket of the newest input let in under interrupt or rollback; 0: none was."""
        return self._words[NEWEST]

    def work(self) -> None:
        """One more works."""
        self._words[WORKING] += 1

    def rest(self) -> None:
        """One has ended."""
        self._words[WORKING] = max(0, self._words[WORKING] - 1)

    def overtake(self, ticket: int) -> None:
        """Inputs that are older than ``ticket`` and would interrupt come too late."""
        self._words[NEWEST] = max(self._words[NEWEST], ticket)

    def join(self, ticket: int) -> bool:
        """Stand in line by arrival; False: the line is full."""
        line = self.waiting
        if ticket not in line:
            if len(line) >= QUEUE_MAX:
                return False
            self._line(sorted((*line, ticket)))
        return True

    def leave(self, ticket: int) -> None:
        """Leave the line, wherever in it."""
        self._line([other for other in self.waiting if other != ticket])

    def _line(self, tickets: list[int]) -> None:
        self._words[WAITING] = len(tickets)
        self._words[TICKETS : TICKETS + len(tickets)] = array("Q", tickets)


class Turns:
    """The file of one mailbox, opened once in a process and never closed: that drops its locks."""

    def __init__(self, path: Path) -> None:
        """Open or create. The folder is this user's alone; so is the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, PRESENCE_AT)
        except BlockingIOError:
            pass  # others are present, and what they count is true
        else:
            os.ftruncate(self._fd, 0)
        fcntl.lockf(self._fd, fcntl.LOCK_SH, 1, PRESENCE_AT)

    @contextlib.asynccontextmanager
    async def at(self, slot: SlotRef) -> AsyncIterator[Place]:
        """The slot's record, locked. The body must not await."""
        while not self._take(slot):
            await asyncio.sleep(RETRY_S)
        with self._taken(slot) as place:
            yield place

    @contextlib.contextmanager
    def now(self, slot: SlotRef) -> Iterator[Place | None]:
        """The same at once; None while another process has it."""
        if not self._take(slot):
            yield None
            return
        with self._taken(slot) as place:
            yield place

    def _take(self, slot: SlotRef) -> bool:
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB, slot)
        except BlockingIOError:
            return False
        return True

    def _lock(self, operation: int, slot: SlotRef) -> None:
        fcntl.lockf(self._fd, operation, RECORD_BYTES, slot.index * RECORD_BYTES)

    @contextlib.contextmanager
    def _taken(self, slot: SlotRef) -> Iterator[Place]:
        at = slot.index * RECORD_BYTES
        try:
            words = array("Q", os.pread(self._fd, RECORD_BYTES, at).ljust(RECORD_BYTES, b"\0"))
            given_on = words[TENURE] > slot.tenure  # tenures only grow: the slot is another scope's
            if words[TENURE] != slot.tenure:
                words = array("Q", bytes(RECORD_BYTES))
                words[TENURE] = slot.tenure
            yield Place(words)
            if not given_on:
                os.pwrite(self._fd, words.tobytes(), at)
        finally:
            self._lock(fcntl.LOCK_UN, slot)

"""Who works and who waits, counted across processes: real files, real locks, real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retire.engine.turns import QUEUE_MAX, Turns
from retire.mailbox import SlotRef

SLOT = SlotRef(3, 7, 1)
# Another API process: does what a line says, answers with a line, until its input ends.
OTHER = """
import sys
from pathlib import Path
from retire.engine.turns import Turns
from retire.mailbox import SlotRef

turns, slot = Turns(Path(sys.argv[1])), SlotRef(3, 7, 1)
held = None
print("open", flush=True)
for line in sys.stdin:
    verb, *rest = line.split()
    if verb == "hold":
        held = turns.now(slot)
        held.__enter__()
    elif verb == "let-go":
        held.__exit__(None, None, None)
    else:
        with turns.now(slot) as place:
            result = getattr(place, verb)
            verb = str(result(*map(int, rest)) if callable(result) else result)
    print(verb, flush=True)
"""


class Other:
    """One other process."""

    def __init__(self, path: Path) -> None:
        argv = [sys.executable, "-c", OTHER, str(path)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def says(self, line: str) -> str:
        """What it answers to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """As the kernel ends a process."""
        self.process.kill()
        self.process.communicate(timeout=30)


@contextmanager
def _other(path: Path) -> Iterator[Other]:
    made = Other(path)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "mailbox.turns-1"


async def test_what_another_process_counts_is_counted_here(path: Path) -> None:
    """Work and tickets; tickets of both have one order."""
    turns = Turns(path)
    with _other(path) as other:
        other.says("work")
        other.says("join 20")
        async with turns.at(SLOT) as place:
            place.work()
            assert place.join(10)
            assert (place.working, place.waiting) == (2, [10, 20])
        assert other.says("working") == "2"
        assert other.says("waiting") == "[10, 20]"
        async with turns.at(SLOT) as place:
            place.rest()
            place.leave(10)
        assert (other.says("working"), other.says("waiting")) == ("1", "[20]")


async def test_a_locked_record_is_waited_for(path: Path) -> None:
    """Another process is deciding: at once there is nothing to have, and no update is lost."""
    turns = Turns(path)
    with _other(path) as other:
        other.says("hold")
        with turns.now(SLOT) as place:
            assert place is None
        elsewhere = SlotRef(4, 9, 1)
        with turns.now(elsewhere) as place:
            assert place is not None  # NEGATIVE CONTROL: only that slot is locked
        other.says("let-go")
        async with turns.at(SLOT) as place:
            place.work()
    with turns.now(SLOT) as place:
        assert place is not None and place.working == 1


async def test_a_killed_process_takes_its_lock_along(path: Path) -> None:
    """What it was deciding never happened."""
    turns = Turns(path)
    with _other(path) as other:
        other.says("hold")
        other.process.kill()
        other.process.wait(30)
        async with turns.at(SLOT) as place:
            assert place.working == 0


def test_counts_of_processes_that_are_all_gone_are_forgotten(path: Path) -> None:
    """A server that was killed left work behind; its successor begins anew."""
    with _other(path) as first:
        first.says("work")
        with _other(path) as second:
            assert second.says("working") == "1"  # NEGATIVE CONTROL: the first still lives
    with _other(path) as third:
        assert third.says("working") == "0"


async def test_a_slot_that_was_given_on_is_another_scopes(path: Path) -> None:
    """An old tenure's work does not count for the new one, and its end takes nothing away."""
    turns = Turns(path)
    async with turns.at(SLOT) as place:
        place.work()
    given_on = SlotRef(SLOT.index, SLOT.tenure + 1, 5)
    async with turns.at(given_on) as place:
        assert place.working == 0
        place.work()
    async with turns.at(SLOT) as place:
        place.rest()
    async with turns.at(given_on) as place:
        assert place.working == 1


async def test_a_line_has_an_end(path: Path) -> None:
    """Who stands in it already stays; the next is told."""
    turns = Turns(path)
    async with turns.at(SLOT) as place:
        assert all(place.join(ticket) for ticket in range(1, QUEUE_MAX + 1))
        assert place.join(1)
        assert not place.join(QUEUE_MAX + 1)
        place.leave(2)
        assert place.join(QUEUE_MAX + 1)
        assert place.waiting[-1] == QUEUE_MAX + 1


async def test_nothing_is_written_when_the_decision_fails(path: Path) -> None:
    """An exception in the middle leaves the record as it was, and unlocked."""
    turns = Turns(path)
    with pytest.raises(ZeroDivisionError):
        async with turns.at(SLOT) as place:
            place.work()
            raise ZeroDivisionError
    async with turns.at(SLOT) as place:
        assert place.working == 0


async def test_work_never_counts_below_nothing(path: Path) -> None:
    """An end too many is no licence to run twice."""
    turns = Turns(path)
    async with turns.at(SLOT) as place:
        place.rest()
        place.work()
        assert place.working == 1


def test_others_may_not_read_the_file(path: Path) -> None:
    """Owner only, and no link is followed."""
    Turns(path)
    assert path.stat().st_mode & 0o077 == 0
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(OSError, match="Too many levels"):
        Turns(link)

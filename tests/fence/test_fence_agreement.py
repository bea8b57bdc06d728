"""Ranks that stop together: two runners in threads, a barrier for each layer's all-reduce."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retire.engine.seams import safe_point
from retire.engine.seams.safe_point import Ranks, SafePoints, StepAbandoned
from retire.engine.step_plan import ScopedWork, StepPlan
from retire.mailbox import MailboxWriter, SlotRef
from retire.protocol.versions import ScopeKey, Version

LAYERS = 12
KEY = ScopeKey("acme", "plan")


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailboxWriter]:
    path = tmp_path / "mailbox"
    monkeypatch.setenv("RETIRE_MAILBOX", str(path))
    writer = MailboxWriter.create(path, capacity=64)
    yield writer
    writer.detach()


def plan(slot: SlotRef, serial: int = 1) -> StepPlan:
    work = (ScopedWork("old", slot, 0, 2048),)
    return StepPlan(serial, 2048, work, True, True, 1e6)


def run(points: SafePoints, step: StepPlan, layer: Callable[[int], None]) -> int:
    """A forward pass; returns the layer at which it stopped, or LAYERS + 1."""
    points.begin(step, on_device=False)
    try:
        points.look()
        for number in range(1, LAYERS + 1):
            points.reach(f"layers.{number}")
            layer(number)
    except StepAbandoned:
        return points.layers
    finally:
        points.end()
    return LAYERS + 1


def together(mailbox: MailboxWriter, at: int, *, lag: int) -> list[int]:
    """Both ranks run; at layer ``at`` of rank ``lag`` the scope is superseded."""
    slot = mailbox.open(KEY, Version(1, 0), generation=1)
    barrier = threading.Barrier(2)
    stopped = [0, 0]

    def rank(number: int) -> None:
        points = SafePoints(lambda: Ranks(number, 0, 2))

        def layer(reached: int) -> None:
            if reached == at and number == lag:
                mailbox.advance(slot.index, Version(1, 1))
            barrier.wait(10)  # the all-reduce

        stopped[number] = run(points, plan(slot), layer)

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return stopped


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_every_rank_stops_at_the_same_layer(mailbox: MailboxWriter, at: int, lag: int) -> None:
    """Whoever notices first, and wherever the others are."""
    stopped = together(mailbox, at, lag=lag)
    assert stopped[0] == stopped[1]
    assert at < stopped[0] <= at + 4


def test_too_late_to_agree_the_step_is_finished(mailbox: MailboxWriter) -> None:
    """Superseded in the last layers: all run to the end."""
    assert together(mailbox, LAYERS, lag=0) == [LAYERS + 1, LAYERS + 1]


def test_ranks_that_decide_alone_stop_apart(
    mailbox: MailboxWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: without the agreement one stops while the other waits for it."""
    slot = mailbox.open(KEY, Version(1, 0), generation=1)
    first, second = SafePoints(), SafePoints()

    def supersede(number: int) -> None:
        if number == 5:
            mailbox.advance(slot.index, Version(1, 1))

    ahead = run(first, plan(slot), lambda number: None)
    behind = run(second, plan(slot), supersede)
    assert (ahead, behind) == (LAYERS + 1, 6)


def test_the_word_of_an_earlier_step_stops_nobody(mailbox: MailboxWriter) -> None:
    """A stop is for one step; the next one, of the successor, runs."""
    together(mailbox, 3, lag=0)
    current = mailbox.find(KEY)
    assert current is not None
    points = SafePoints(lambda: Ranks(1, 0, 2))
    assert run(points, plan(current, serial=2), lambda number: None) == LAYERS + 1


def test_alone_a_rank_stops_at_the_next_layer(mailbox: MailboxWriter) -> None:
    """No margin where nobody has to follow."""
    slot = mailbox.open(KEY, Version(1, 0), generation=1)
    points = SafePoints()

    def supersede(number: int) -> None:
        if number == 4:
            mailbox.advance(slot.index, Version(1, 1))

    assert run(points, plan(slot), supersede) == 5
    assert points.ended is not None and points.ended.branch is safe_point.Branch.LAYER_STOP

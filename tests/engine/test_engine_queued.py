"""Under asynchronous scheduling the next step waits behind an armed one that is launched whole.

Two steps in flight by hand: scheduled and computed, their results taken later and in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from bench.lab import prompt_tokens
from retire.engine.step_control import StepControl
from retire.engine.step_plan import ABANDONED
from retire.mailbox import Overlaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab, Stream

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("ahead"),
]
OLD = prompt_tokens(600, 41)
SHARED = 500
NEW = OLD[:SHARED] + prompt_tokens(60, 42)


def _compute(lab: Lab) -> tuple[Any, Any]:
    """Schedule a step and compute it; its result is not taken yet."""
    step = lab.scheduler.schedule()
    result = lab.core.model_executor.execute_model(step)
    if step.total_num_scheduled_tokens:
        result = lab.core.model_executor.sample_tokens(None)
    return step, result


def _two_in_flight(lab: Lab, event: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """Three quanta are written, a fourth launched; ``event`` comes in the fifth, behind it."""
    lab.submit("old", OLD, lab.tag(lab.key))
    for _ in range(3):
        lab.step()
    first = _compute(lab)
    with lab.at_layer(2, event):
        second = _compute(lab)
    assert first[0].total_num_scheduled_tokens == second[0].total_num_scheduled_tokens == 64
    return [first, second]


def _take(lab: Lab, results: list[tuple[Any, Any]]) -> None:
    for step, result in results:
        lab.scheduler.update_from_output(step, result)
    lab.engine.abort_request(["old"])  # these outputs were not handed on


def _revised_in_the_second(lab: Lab, *, worth_finishing: bool) -> tuple[Any, Stream, bool]:
    """The fence's reply, the successor's stream, and whether the second step was abandoned."""
    slot = lab.tag(lab.key).slot
    replies: list[Any] = []

    def revise() -> None:
        if worth_finishing:
            Overlaps.attach(lab.mailbox.path, writable=True).put(slot, SHARED)
        lab.advance(lab.key)
        replies.append(lab.fence(lab.key))

    results = _two_in_flight(lab, revise)
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    _take(lab, results)
    lab.run()
    reply = replies[0] if isinstance(replies[0], dict) else replies[0].result(timeout=0)
    return reply, stream, bool(getattr(results[1][1], ABANDONED, False))


@pytest.mark.parametrize(("worth_finishing", "frontier"), [(False, 256), (True, 320)])
def test_what_both_steps_computed_is_inherited(
    lab: Lab, worth_finishing: bool, frontier: int
) -> None:
    """The first one's tokens always; the second one's where it was worth finishing. Exact."""
    clean = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 400))
    reply, stream, abandoned = _revised_in_the_second(lab, worth_finishing=worth_finishing)
    assert abandoned is not worth_finishing
    assert reply["requests"][0]["frontier_tokens"] == frontier
    assert stream.cached_tokens == frontier
    assert stream.tokens == clean.tokens
    assert stream.logprobs == pytest.approx(clean.logprobs, abs=1e-4)


def test_retired_at_the_first_result_the_second_is_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: nobody awaits the step that was worth finishing."""
    monkeypatch.setattr(StepControl, "awaited", lambda *_: False)
    reply, _, abandoned = _revised_in_the_second(lab, worth_finishing=True)
    assert not abandoned and reply["requests"][0]["frontier_tokens"] < 320


def test_nothing_more_of_the_old_plan_is_scheduled_while_its_step_is_awaited(lab: Lab) -> None:
    """Its authority has ended; that its request is still there must not give it another step."""
    slot = lab.tag(lab.key).slot

    def revise() -> None:
        Overlaps.attach(lab.mailbox.path, writable=True).put(slot, SHARED)
        lab.advance(lab.key)

    results = _two_in_flight(lab, revise)
    assert lab.scheduler.schedule().total_num_scheduled_tokens == 0
    lab.scheduler.update_from_output(*results[0])
    assert lab.request("old") is not None
    assert lab.scheduler.schedule().total_num_scheduled_tokens == 0
    _take(lab, results[1:])
    assert lab.request("old") is None
    lab.fence(lab.key)


@pytest.mark.parametrize("revised", [False, True])
def test_the_launch_by_workers_of_their_own_is_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, revised: bool
) -> None:
    """Then the next step is scheduled; not for a plan that was revised while the wait lasted."""
    launched: list[int] = []
    lab.submit("old", OLD, lab.tag(lab.key))
    lab.step()
    first = _compute(lab)
    monkeypatch.setattr(lab.scheduler.steps, "launched", launched.__contains__)

    def ended(serial: int) -> None:
        if revised:
            lab.advance(lab.key)
        launched.append(serial)

    monkeypatch.setattr(lab.scheduler, "participants", Mock(ended=ended))
    second = _compute(lab)
    assert launched and bool(second[0].total_num_scheduled_tokens) is not revised
    monkeypatch.undo()
    _take(lab, [first, second])
    lab.fence(lab.key)


def test_nothing_queues_behind_an_abandoned_step(lab: Lab) -> None:
    """What it would have written is not there, and survivors go back."""
    lab.submit("old", OLD, lab.tag(lab.key))
    lab.submit("other", OLD[:300], lab.tag(type(lab.key)("acme", "other")))
    lab.step()
    with lab.at_layer(2, lambda: lab.advance(lab.key)):
        step, result = _compute(lab)
    assert getattr(result, ABANDONED, False)
    assert lab.scheduler.schedule().total_num_scheduled_tokens == 0
    lab.scheduler.update_from_output(step, result)
    lab.engine.abort_request(["old"])
    again = _compute(lab)
    assert again[0].total_num_scheduled_tokens > 0
    lab.scheduler.update_from_output(*again)

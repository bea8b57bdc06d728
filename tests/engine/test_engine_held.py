"""What comes while an armed step runs waits for its result: the step's tokens are inherited too."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from bench.lab import prompt_tokens
from retire.engine.seams.step_fence import StepFence
from retire.engine.step_control import StepControl
from retire.mailbox import Overlaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab, Stream

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("ahead"),
]
OLD = prompt_tokens(600, 31)
NEW = OLD[:500] + prompt_tokens(60, 32)


def _in_a_step_that_is_finished(lab: Lab, calls: Callable[[], None]) -> None:
    """Three quanta are written; the fourth is superseded, worth finishing, and ``calls`` come."""
    lab.submit("old", OLD, lab.tag(lab.key))
    for _ in range(3):
        lab.step()
    slot = lab.tag(lab.key).slot

    def event() -> None:
        Overlaps.attach(lab.mailbox.path, writable=True).put(slot, 500)
        lab.advance(lab.key)
        calls()

    with lab.at_layer(2, event):
        lab.step()


def _superseded_in_a_step(lab: Lab) -> tuple[Any, Stream]:
    replies: list[Any] = []
    streams: list[Stream] = []

    def calls() -> None:
        replies.append(lab.fence(lab.key))
        streams.append(lab.submit("new", NEW, lab.tag(lab.key)))

    _in_a_step_that_is_finished(lab, calls)
    lab.run()
    return replies[0], streams[0]


def test_the_tokens_of_the_finished_step_are_inherited(lab: Lab) -> None:
    """FENCE and successor arrive in the middle of the step: both see its result."""
    clean = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 400))
    reply, stream = _superseded_in_a_step(lab)
    fenced = reply.result(timeout=0)
    assert fenced["requests"][0]["frontier_tokens"] == 256
    assert fenced["branch"] == "finish"
    assert stream.cached_tokens == 256
    assert stream.tokens == clean.tokens
    assert stream.logprobs == pytest.approx(clean.logprobs, abs=1e-4)


def test_without_waiting_the_step_is_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: aligned at once, the successor inherits a step less."""
    monkeypatch.setattr(StepControl, "holding", False)
    monkeypatch.setattr(StepControl, "awaited", lambda *_: False)
    reply, stream = _superseded_in_a_step(lab)
    fenced = reply if isinstance(reply, dict) else reply.result(timeout=0)
    assert fenced["requests"][0]["frontier_tokens"] == 192
    assert stream.cached_tokens == 192


@pytest.mark.parametrize("gating", [False, True], ids=["", "control"])
def test_the_result_of_an_empty_step_retires_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, gating: bool
) -> None:
    """Scheduled before the armed step was, its result comes while that runs. CONTROL: retired at
    it, the armed step is lost."""
    if gating:
        monkeypatch.setattr(StepFence, "_awaits_result", lambda *_: False)

    def an_empty_step() -> None:
        step = lab.scheduler.schedule()
        assert step.total_num_scheduled_tokens == 0
        lab.scheduler.update_from_output(step, EMPTY_MODEL_RUNNER_OUTPUT)

    _in_a_step_that_is_finished(lab, an_empty_step)
    lab.engine.abort_request(["old"])  # what the empty step's outputs said of it was not handed on
    lab.run()
    frontier = lab.fence(lab.key)["requests"][0]["frontier_tokens"]
    assert frontier == (192 if gating else 256)


def test_a_successor_that_is_given_up_while_it_waits_never_enters(lab: Lab) -> None:
    """Its client left in the middle of the step."""

    def calls() -> None:
        lab.submit("new", NEW, lab.tag(lab.key))
        lab.engine.abort_request(["new"])
        assert lab.request("new") is None

    _in_a_step_that_is_finished(lab, calls)
    assert lab.request("new") is None
    lab.run()
    assert lab.fence(lab.key)["requests"][0]["frontier_tokens"] == 256


def test_requests_without_a_scope_do_not_wait(lab: Lab) -> None:
    """Plain traffic is none of it."""
    seen: list[Any] = []

    def calls() -> None:
        lab.submit("plain", NEW)
        seen.append(lab.request("plain"))

    _in_a_step_that_is_finished(lab, calls)
    assert seen[0] is not None
    lab.run()
    lab.fence(lab.key)


@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "control"])
def test_a_request_that_a_cache_reset_preempted_is_not_rolled_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, rolled_back: bool
) -> None:
    """It starts from nothing already; rolled back as well, it would count below nothing."""
    if rolled_back:
        monkeypatch.setattr("retire.engine.seams.step_fence.RequestStatus", Mock(PREEMPTED=None))
    mine = prompt_tokens(40, 33)
    alone = lab.submit("alone", mine, max_tokens=12)
    lab.run()
    lab.clean()
    beside = lab.submit("beside", mine, max_tokens=12)
    lab.run(lambda: len(beside.tokens) >= 2)
    lab.submit("old", OLD, lab.tag(lab.key))

    def event() -> None:
        with contextlib.suppress(RuntimeError):  # vLLM: blocks of the step are not free yet
            lab.scheduler.reset_prefix_cache(reset_running_requests=True)
        lab.advance(lab.key)

    with lab.at_layer(2, event):
        lab.step()
    assert (lab.request("beside").num_computed_tokens < 0) is rolled_back
    if rolled_back:  # the engine would fail on it
        lab.request("beside").num_computed_tokens = 0
        lab.engine.abort_request(["beside", "old"])
        return
    lab.run()
    assert beside.tokens == alone.tokens

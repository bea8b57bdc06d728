"""The plan that travels with a step, and what is learned from its result."""

from __future__ import annotations

import pytest

from retire.engine.step_control import StepControl, bound_from_env, fence_of
from retire.engine.step_plan import Ended, ScopedWork
from retire.engine.tag import Tag
from retire.mailbox import SlotRef
from retire.protocol.contract import Fence
from retire.protocol.contract import FenceBranch as Branch
from retire.protocol.versions import Authority, ScopeKey, Version

TAG = Tag(Authority(ScopeKey("acme", "plan"), Version(1, 0), 1), SlotRef(3, 1, 99), True)
TAGS = {"old": TAG}


def control(**changes: bool) -> StepControl:
    return StepControl(**({"may_stop": True, "ahead": False} | changes))


def test_a_step_without_a_scope_has_no_plan() -> None:
    """Plain traffic pays nothing."""
    steps = control()
    assert steps.plan(1, {"plain": (0, 2048)}, TAGS) is None
    assert steps.done(1, 5.0) is None


def test_the_plan_says_who_the_step_works_for() -> None:
    """Scoped work with its first token; the rest are bystanders."""
    plan = control().plan(1, {"old": (4096, 2048), "plain": (7, 1)}, TAGS)
    assert plan is not None
    assert plan.scoped == (ScopedWork("old", TAG.slot, 4096, 2048),)
    assert (plan.tokens, plan.bystander_tokens) == (2049, 1)
    assert plan.armed and plan.may_stop and plan.predicted_ms is None


def test_decode_steps_are_not_armed_and_long_known_ones_are() -> None:
    """By what was measured, not by a constant."""
    steps = control()
    for number in range(30):
        assert steps.plan(number, {"old": (0, 2048)}, TAGS) is not None
        steps.done(number, 4.0)
    plan = steps.plan(99, {"old": (0, 2048)}, TAGS)
    assert plan is not None and not plan.armed  # 4 ms: its own end is near
    decode = steps.plan(100, {"old": (0, 1)}, TAGS)
    assert decode is not None and not decode.armed and decode.may_stop


def test_nothing_queues_behind_an_armed_step() -> None:
    """Where steps queue, an armed one may have others before it and holds back what follows."""
    steps = control(ahead=True)
    decode = steps.plan(1, {"old": (0, 1)}, TAGS)
    assert decode is not None and not decode.may_stop and not steps.holding
    long = steps.plan(2, {"old": (1, 2048)}, TAGS)
    assert long is not None and long.armed and long.may_stop and steps.holding
    steps.done(1, 20.0)
    assert steps.holding
    steps.done(2, 200.0)
    assert not steps.holding


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "control"])
def test_a_step_queues_behind_one_that_is_launched_and_brings_no_token(silent: bool) -> None:
    """From its last layer on it cannot be abandoned. CONTROL: somebody's token would wait."""
    steps = control(ahead=True)
    launched: list[int] = []
    steps.launched = launched.__contains__
    plan = steps.plan(1, {"old": (0, 2048)}, TAGS, silent=silent)
    assert plan is not None and plan.armed and steps.holding
    launched.append(plan.serial)
    assert steps.holding is not silent


def test_what_is_worth_waiting_for_is_the_launch_of_a_silent_step() -> None:
    """Not one that brings tokens, for then nothing queues behind it at all."""
    steps = control(ahead=True)
    steps.plan(1, {"old": (0, 1)}, TAGS)
    assert steps.launching is None
    plan = steps.plan(2, {"old": (0, 2048)}, TAGS, silent=True)
    assert plan is not None and steps.launching == plan.serial
    steps.plan(3, {"old": (2048, 2048)}, TAGS)
    assert steps.launching is None
    assert control().launching is None


def test_results_are_awaited_for_those_that_an_armed_step_computes() -> None:
    """Also of the step before the armed one; not for others, and not without an armed step."""
    steps = control(ahead=True)
    steps.plan(1, {"old": (0, 1)}, TAGS)
    assert not steps.awaited("old")
    steps.plan(2, {"other": (0, 2048)}, TAGS | {"other": TAG})
    assert steps.awaited("old") and steps.awaited("other") and not steps.awaited("third")
    steps.done(1, 20.0)
    assert not steps.awaited("old") and steps.awaited("other")


def test_an_engine_off_the_allow_list_never_stops() -> None:
    """NEGATIVE CONTROL: the same step, not allowed."""
    plan = control(may_stop=False).plan(1, {"old": (0, 2048)}, TAGS)
    assert plan is not None and not plan.may_stop and not plan.armed


def test_an_abandoned_step_teaches_nothing() -> None:
    """It did not run to its end."""
    steps = control()
    steps.plan(1, {"old": (0, 2048)}, TAGS)
    steps.done(1, None)
    assert steps.times.predicted_ms(2048) is None


@pytest.mark.parametrize(
    ("told", "branch"),
    [
        (None, Branch.QUANTUM),
        (Ended(Branch.LAYER_STOP), Branch.LAYER_STOP),
        (Ended(Branch.FINISH), Branch.FINISH),
    ],
)
def test_a_step_that_was_not_asked_ended_by_itself(told: Ended | None, branch: Branch) -> None:
    """What the receipt calls it."""
    plan = control().plan(1, {"old": (0, 64)}, TAGS)
    assert fence_of(plan, told) == Fence(branch, None)
    assert fence_of(None, told) is None


@pytest.mark.parametrize(
    ("start", "tokens", "overlap", "shared"),
    [(0, 100, None, 0), (0, 100, 40, 40), (50, 100, 40, 0), (50, 100, 90, 40), (50, 100, 999, 100)],
)
def test_shared_tokens_of_a_chunk(
    start: int, tokens: int, overlap: int | None, shared: int
) -> None:
    """Only what lies inside the chunk and inside the common prefix."""
    assert ScopedWork("r", TAG.slot, start, tokens).shared(overlap) == shared


@pytest.mark.parametrize("text", ["0", "-1", "fast", "60001"])
def test_a_bad_bound_names_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A clear refusal at start."""
    monkeypatch.setenv("RETIRE_FENCE_BOUND_MS", text)
    with pytest.raises(ValueError, match="RETIRE_FENCE_BOUND_MS"):
        bound_from_env()


def test_a_step_that_somebody_needs_whole_is_not_stopped() -> None:
    """It is not even armed; beside the same work without that need it is."""
    plan = control().plan(1, {"old": (0, 2048), "plain": (7, 100)}, TAGS, whole=lambda: True)
    assert plan is not None and not plan.may_stop and not plan.armed
    plan = control().plan(2, {"old": (0, 2048), "plain": (7, 100)}, TAGS)
    assert plan is not None and plan.may_stop

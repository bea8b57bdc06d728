"""How a running step ends: the cost model, without an engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retire.engine.fence_policy import Branch, Running, StepTimes, choose, worth_arming


def running(**changes: object) -> Running:
    values = {
        "tokens": 4096,
        "useful_tokens": 0,
        "bystander_tokens": 0,
        "elapsed_ms": 100.0,
        "predicted_ms": 420.0,
    }
    return Running(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "branch"),
    [
        (running(), Branch.LAYER_STOP),
        (running(elapsed_ms=415.0), Branch.FINISH),  # the stop itself takes longer than the rest
        (running(useful_tokens=4096), Branch.FINISH),  # the successor shares all of it
        (running(useful_tokens=1024), Branch.LAYER_STOP),  # 320 ms left, 105 ms to do again
        (running(useful_tokens=1024, elapsed_ms=330.0), Branch.FINISH),
        (running(predicted_ms=None), Branch.LAYER_STOP),  # nothing known, nobody disturbed
        (running(predicted_ms=None, bystander_tokens=1), Branch.FINISH),
        (running(bystander_tokens=8), Branch.LAYER_STOP),
        (running(bystander_tokens=8, elapsed_ms=250.0), Branch.FINISH),  # they would wait too long
        (running(bystander_tokens=3500), Branch.FINISH),  # mostly others' work
    ],
)
def test_the_cheaper_end_is_chosen(step: Running, branch: Branch) -> None:
    """One row a rule."""
    assert choose(step, stop_ms=10.0) is branch


@given(
    elapsed=st.floats(0, 1000),
    predicted=st.floats(1, 1000),
    useful=st.integers(0, 4096),
    stop=st.floats(0, 50),
)
def test_the_choice_is_never_the_dearer_one(
    elapsed: float, predicted: float, useful: int, stop: float
) -> None:
    """Alone on the device: the chosen branch costs the successor no more than the other."""
    step = running(elapsed_ms=elapsed, predicted_ms=predicted, useful_tokens=useful)
    finish_ms = max(0.0, predicted - elapsed)
    stop_ms = stop + predicted * useful / step.tokens
    chosen = choose(step, stop_ms=stop)
    cost = {Branch.FINISH: finish_ms, Branch.LAYER_STOP: stop_ms}[chosen]
    assert cost <= min(finish_ms, stop_ms) + 1e-6


def test_a_policy_that_always_stops_is_dearer_somewhere() -> None:
    """NEGATIVE CONTROL of the property: stopping always loses where the successor shares all."""
    step = running(useful_tokens=4096)
    assert step.remaining_ms is not None and step.predicted_ms is not None
    assert step.remaining_ms < step.predicted_ms * step.useful_tokens / step.tokens


def test_step_times_are_learned() -> None:
    """Decode steps tell the fixed cost, long ones the cost of a token."""
    times = StepTimes()
    assert times.predicted_ms(2048) is None
    for _ in range(40):
        times.measured(1, 20.0)
        times.measured(2048, 220.0)
    predicted = times.predicted_ms(4096)
    assert predicted is not None and math.isclose(predicted, 420.0, rel_tol=0.01)
    for _ in range(40):
        times.measured(2048, 120.0)
    faster = times.predicted_ms(2048)
    assert faster is not None and math.isclose(faster, 120.0, rel_tol=0.01)


@pytest.mark.parametrize(
    ("predicted_ms", "tokens", "armed"),
    [
        (200.0, 2048, True),
        (5.0, 2048, False),
        (None, 2048, True),
        (None, 1, False),
        (30.0, 8, False),
    ],
)
def test_only_steps_that_may_outlast_the_bound_are_armed(
    predicted_ms: float | None, tokens: int, armed: bool
) -> None:
    """Short steps keep their speed; what is not known yet is armed."""
    assert worth_arming(predicted_ms, tokens=tokens, bound_ms=8.0) is armed


def test_one_slow_step_decides_nothing() -> None:
    """A step that compiled its kernels took a thousand times longer: the prediction stays."""
    times = StepTimes()
    for _ in range(5):
        times.measured(2048, 100.0)
    times.measured(2048, 100_000.0)
    assert times.predicted_ms(2048) == pytest.approx(100.0)

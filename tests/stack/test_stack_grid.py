"""The state x event grid on the real stack, and proof that it can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.grid_cells import CELLS, Grid
from bench.grid_events import Event
from bench.grid_states import State
from retire.protocol import invariants
from retire.telemetry import history

if TYPE_CHECKING:
    from bench.grid_cells import Outcome
    from bench.stack import Stack


@pytest.fixture(scope="module")
def grid(stack: Stack) -> Grid:
    """The shared stack with its clean runs."""
    return Grid(stack)


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[Event, State], Outcome]:
    """What the cells came to, for the tests about all of them."""
    return {}


@pytest.mark.parametrize(
    ("event", "state"), [pytest.param(e, s, id=f"{e.value}-{s.value}") for e, s in CELLS]
)
def test_cell(
    grid: Grid, outcomes: dict[tuple[Event, State], Outcome], event: Event, state: State
) -> None:
    """The event keeps every promise in this state, and the state was really met."""
    outcome = outcomes[event, state] = grid.cell(event, state)
    assert outcome.problems == ()
    assert outcome.late_tokens == 0


def test_the_recorded_history_keeps_every_rule(stack: Stack, grid: Grid) -> None:
    """Whatever the stack did in this session, of all tenants together, breaks no invariant."""
    assert grid.clean.new
    records = history.read(stack.history)
    assert len(records) > 100
    assert invariants.check(invariants.in_order(records)) == []


def test_without_gates_the_grid_fails(ungated_stack: Stack) -> None:
    """Negative control: with gates and sweep disabled, old tokens reach the consumer late."""
    outcome = Grid(ungated_stack).cell(Event.SUPERSEDE, State.MID_DECODE)
    assert outcome.late_tokens > 0
    assert any("late tokens" in problem for problem in outcome.problems)
    assert any("C1.published_after_acknowledge" in problem for problem in outcome.problems)

"""The grid on other engines: speculation, two KV groups, tensor parallel ranks, a DRAM tier.

A few cells of each, one for every kind of state; ``make grid`` runs them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bench.grid import drafts
from bench.grid_cells import Grid
from bench.grid_events import Event
from bench.grid_states import State
from bench.grid_variants import DRAM, GROUPS, SPECULATION, TP2
from bench.stack import Stack
from retire.protocol import invariants
from retire.telemetry import history

if TYPE_CHECKING:
    from bench.grid_variants import Variant

CELLS: Final = (
    (Event.SUPERSEDE, State.QUEUED),
    (Event.SUPERSEDE, State.FIRST_CHUNK),
    (Event.SUPERSEDE, State.MID_PREFILL),
    (Event.SUPERSEDE, State.MID_DECODE),
    (Event.SUPERSEDE, State.LAST_TOKEN),
    (Event.SUPERSEDE, State.FINISHED),
    (Event.CANCEL, State.MID_DECODE),
    (Event.DISCONNECT, State.MID_PREFILL),
    (Event.DUPLICATE, State.SUPERSEDED),
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [SPECULATION, GROUPS, TP2, DRAM], ids=lambda one: one.name)
def test_cells_hold_on_this_engine(variant: Variant) -> None:
    """Every cell keeps its promises, the history is sound, the engine is what it should be."""
    with Stack(variant.settings) as stack:
        grid = Grid(stack, variant)
        found = {(event, state): grid.cell(event, state) for event, state in CELLS}
        assert {cell: one.problems for cell, one in found.items() if not one.ok} == {}
        assert sum(one.late_tokens for one in found.values()) == 0
        proposed, accepted = drafts(stack)
        assert 0 < accepted < proposed if variant.drafts else proposed == 0
        records = history.read(stack.history)
        assert invariants.check(invariants.in_order(records)) == []

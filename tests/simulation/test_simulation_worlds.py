"""Exhaustive exploration, within the bounds each case names, through the production ``step``.

Messages are always reordered freely. "loss", "duplicate", "lease end", "crash", "registry loss",
"engine loss" and "fence timeout" are adversary moves, at any moment, as often as the case says.
"""

from __future__ import annotations

import time

import pytest
from sim_actions import initial, is_goal, successors
from sim_explore import explore
from sim_mutants import CANCEL, PAUSE, SUPERSEDE, WORLD_MUTANTS, Mutant
from sim_world import KEY, Bounds

from retire.protocol.errors import IllegalTransition
from retire.protocol.events import Rebuilt, Registered
from retire.protocol.state import ScopeState
from retire.protocol.transitions import step
from retire.protocol.versions import Version

ONE = ((SUPERSEDE, 0),)
SAME = ((SUPERSEDE, 0), (SUPERSEDE, 0))
BOTH = ((SUPERSEDE, 0), (SUPERSEDE, 1))
# Each starts at one epoch; every SUPERSEDE or CANCEL adds one. Two nodes unless it says one.
WORLDS = {
    "2 clients at 2 nodes, 3 epochs": Bounds(BOTH),
    "2 clients at 1 node, 3 epochs, 1 lease end": Bounds(SAME, lease_ends=1),
    "2 clients at 1 node, 3 epochs, 1 duplicate": Bounds(SAME, duplicates=1),
    "2 clients, 3 epochs, 1 loss, 1 node": Bounds(SAME, losses=1, nodes=1),
    "1 client, 1 loss, 1 duplicate, 1 lease end": Bounds(ONE, losses=1, duplicates=1, lease_ends=1),
    "1 client, frames between check and transport": Bounds(ONE, frames=True),
    "1 client, 1 crash": Bounds(ONE, crashes=1),
    "1 client, registry loss and rebuild": Bounds(ONE, registry_losses=1),
    "supersede and cancel, 1 node, 1 duplicate": Bounds(
        ((SUPERSEDE, 0), (CANCEL, 0)), nodes=1, duplicates=1
    ),
    "pause and supersede at 2 nodes": Bounds(((PAUSE, 0), (SUPERSEDE, 1))),
    "engine: 1 client, 1 fence timeout": Bounds(ONE, engine=True, fence_timeouts=1),
    "engine: 1 client, 1 engine loss": Bounds(ONE, engine=True, node_losses=1),
    "engine: 2 clients, 3 epochs, 1 node, 1 fence timeout": Bounds(
        SAME, engine=True, nodes=1, fence_timeouts=1
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_reachable_state_keeps_every_promise(name: str, record_property) -> None:
    """No action breaks a rule, and from every state the newest version can come to publish (C4)."""
    start = time.process_time()
    report = explore(initial(WORLDS[name]), successors, is_goal, limit=40_000)
    record_property("states", report.states)
    spent_s = time.process_time() - start
    print(f"{name}: {report.states} states, {report.edges} steps, {spent_s:.1f} s CPU")
    assert not report.found, report.found[0]
    assert not report.stuck, min(report.stuck, key=len)
    assert report.states > 25, "a world in which nothing happens proves nothing"


@pytest.mark.parametrize("mutant", WORLD_MUTANTS, ids=lambda m: m.name)
def test_exploration_catches_the_planted_bug(mutant: Mutant) -> None:
    """The world that the sound core survives must expose the bug, by the rule it breaks."""
    with mutant.planted():
        start = initial(mutant.bounds)
        report = explore(start, successors, is_goal, limit=40_000, stop_at=mutant.rule)
    assert mutant.rule in report.rules, report.rules


def test_the_sound_core_survives_the_mutants_worlds() -> None:
    """Caught means caught by the bug: without it, the same worlds are clean."""
    for bounds in {m.bounds for m in WORLD_MUTANTS if not m.bounds.same_term}:
        if bounds in WORLDS.values():
            continue
        report = explore(initial(bounds), successors, is_goal, limit=40_000)
        assert not report.rules, (bounds, report.rules)


def test_a_rebuild_under_the_same_term_is_refused() -> None:
    """An operator that does not raise the term gets an error, not a version used twice."""
    bounds = Bounds(ONE, nodes=1, registry_losses=1, same_term=True)
    report = explore(initial(bounds), successors, is_goal, limit=40_000)
    assert report.rules == {"IllegalTransition", "C4.no_progress"}
    known = Version(1, 1)
    scope = step(ScopeState(KEY, "n"), Registered(known)).state
    with pytest.raises(IllegalTransition, match="Rebuilt"):
        step(scope, Rebuilt(known))

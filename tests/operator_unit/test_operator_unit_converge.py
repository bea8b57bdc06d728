"""Two operators on stale facts, an author who edits, an agent who calls: what holds at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from operator_world import NOW_S, World, desired

from retire.protocol.versions import Version
from retire_operator import actions as do
from retire_operator import render
from retire_operator.facts import Context, Facts, Record

CONTEXT = Context('{"prompt":"x"}', "d1")
STEPS_MAX = 60

_operator = st.sampled_from([0, 1])
_step = st.one_of(
    st.tuples(st.just("look"), _operator),
    st.tuples(st.just("act"), _operator),
    st.tuples(st.just("write"), _operator),
    st.tuples(st.just("runtime"), st.sampled_from(["supersede", "pause", "resume"])),
    st.tuples(st.just("edit"), st.sampled_from(["bump", "pause", "unpause", "policy"])),
)
_story = st.lists(_step, max_size=60)


class Operators:
    """Two operators, each acting on what it saw last."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: list[Facts | None] = [None, None]

    def look(self, which: int) -> None:
        self.seen[which] = self.world.view()

    def act(self, which: int) -> None:
        stale = self.seen[which]
        if stale is None:
            return
        for action in render.decide(stale, NOW_S).actions:
            self.world.apply(action)
        self.seen[which] = None  # it gathers again after every action

    def write(self, which: int) -> None:
        """The status, under its resourceVersion: a stale one is refused, so it is written fresh."""
        self.world.status = render.decide(self.world.view(), NOW_S).status


def edit(world: World, what: str) -> None:
    wanted = world.wanted
    if what == "bump":
        world.wanted = replace(wanted, epoch=wanted.epoch + 1, generation=wanted.generation + 1)
    elif what == "policy":
        from retire.protocol.contract import Policy

        world.wanted = replace(wanted, policy=None if wanted.policy else Policy.REJECT)
    else:
        world.wanted = replace(wanted, paused=what == "pause", generation=wanted.generation + 1)


def run(world: World, story: list[tuple[str, Any]]) -> Operators:
    operators = Operators(world)
    for kind, what in story:
        match kind:
            case "runtime":
                world.runtime(what)
            case "edit":
                edit(world, what)
            case _:
                getattr(operators, kind)(what)
    return operators


def settle(world: World) -> None:
    """One operator, left alone."""
    for _ in range(STEPS_MAX):
        view = replace(world.view(), context=CONTEXT)
        plan = render.decide(view, NOW_S)
        world.status = {**plan.status, **{k: v for k, v in world.status.items() if k == "prewarm"}}
        if plan.settled:
            return
        for action in plan.actions:
            world.apply(action)
    raise AssertionError(f"not settled: {plan.actions} {plan.verdict}")


@given(_story)
@settings(max_examples=300, deadline=None)
def test_two_operators_on_stale_facts_converge(story: list[tuple[str, Any]]) -> None:
    """Versions rise by one, no revision is lost, nothing is left to do, a resync is no write."""
    world = World(desired(epoch=0))
    run(world, story)
    settle(world)
    record = world.record
    assert record is not None
    epochs = [version.epoch for version in world.versions]
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs))), "an epoch was skipped"
    assert record.version.epoch >= world.wanted.epoch, "a revision was lost"
    assert record.policy is world.wanted.policy
    if record.paused != world.wanted.paused:
        last = next(line for line in reversed(world.lines) if line.kind == "pause")
        assert record.paused and last.by == "runtime", "a pause of the spec was lost"
    before, versions = dict(world.status), len(world.versions)
    settle(world)
    assert (world.status, len(world.versions)) == (before, versions)


@given(_story)
@settings(max_examples=100, deadline=None)
def test_the_operators_never_commit_more_than_was_asked(story: list[tuple[str, Any]]) -> None:
    """However often two operators act, epochs above the author's are an agent's."""
    world = World(desired(epoch=0))
    run(world, story)
    settle(world)
    assert world.record is not None
    asked = world.wanted.epoch
    by_agent = sum(1 for line in world.lines if line.kind == "supersede" and line.by == "runtime")
    assert world.record.version.epoch <= asked + by_agent


def test_a_burst_is_committed_epoch_by_epoch() -> None:
    """Eight revisions seen as one jump are eight SUPERSEDEs, each under its own key."""
    world = World(desired(epoch=8), Record(Version(1, 0)))
    settle(world)
    assert [v.epoch for v in world.versions] == list(range(9))
    assert len([key for key in world.keys if "/supersede/" in key]) == 8


def test_without_idempotency_keys_and_compare_and_set_it_would_go_wrong() -> None:
    """Negative control: a registry that takes every call lets two operators commit one too many."""
    world = World(desired(epoch=1), Record(Version(1, 0)))
    world.finalizer = True
    stale = world.view()
    actions = [render.decide(stale, NOW_S).actions[0] for _ in range(2)]
    assert all(isinstance(action, do.Supersede) for action in actions)
    assert world.apply(actions[0])
    world.apply(actions[1])
    assert world.versions[-1] == Version(1, 1)
    world.keys.clear()  # no memory of keys, and an expectation that follows the version
    blind = replace(actions[1], expected=world.versions[-1])  # type: ignore[type-var]
    world.apply(blind)
    assert world.versions[-1] == Version(1, 2), "the control has no power"


def test_a_pause_by_the_spec_ends_by_the_spec_and_one_by_an_agent_does_not() -> None:
    """spec.paused true then false resumes, even over an agent's pause; an agent's own stands."""
    world = World(desired(epoch=0), Record(Version(1, 0)))
    settle(world)
    world.runtime("pause")
    settle(world)
    assert world.record is not None and world.record.paused, "an agent's pause was undone"
    edit(world, "pause")
    settle(world)
    edit(world, "unpause")
    settle(world)
    assert not world.record.paused

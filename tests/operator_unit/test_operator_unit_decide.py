"""The decision, row by row: what is found, what is done next, what the status says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_rows import HELD, NEW, ROWS, at
from operator_world import NODE, NOW_S, body, facts

from retire.protocol.versions import Version
from retire_operator import render
from retire_operator.conditions import Type, find
from retire_operator.facts import (
    NodeView,
    Seen,
    Unknown,
)
from retire_operator.receipts import Line


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_of_the_decision(row: tuple[Any, ...]) -> None:
    """Facts -> first action, phase and Ready, for every situation we know of."""
    _, given, action, phase, state, reason = row
    plan = render.decide(given, NOW_S)
    assert (plan.actions[0] if plan.actions else None) == action
    ready = find(plan.status["conditions"], Type.READY)
    assert ready is not None
    assert (plan.status["phase"], ready["status"], ready["reason"]) == (phase, state, reason)
    assert ready["message"] or phase in ("Deleting",)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_deciding_again_on_its_own_status_writes_nothing(row: tuple[Any, ...]) -> None:
    """The status is a fixed point: a resync of an unchanged world is no write at all."""
    given = row[1]
    first = render.decide(given, NOW_S)
    again = render.decide(replace(given, seen=Seen({**given.seen.raw, **first.status})), NOW_S + 9)
    assert again.status == first.status


def test_the_message_names_the_next_epoch() -> None:
    """An epoch that a runtime overtook is said, with what to set."""
    plan = render.decide(facts(at(5)), NOW_S)
    assert "set 6 for the next revision" in plan.verdict.message
    assert plan.status["version"] == "1.5"


def test_the_status_never_goes_back() -> None:
    """Even while the registry is behind, the version that was acknowledged stands."""
    assert render.decide(facts(at(2)), NOW_S).status["version"] == "1.3"
    assert render.decide(facts(Unknown.ABSENT), NOW_S).status["version"] == "1.3"


def test_nothing_of_a_foreign_scope_is_told() -> None:
    """Who may not name the tenant does not learn its versions, nodes or receipts."""
    spied = facts(
        at(9),
        seen=NEW,
        tenant_allowed=False,
        lines=(Line("supersede", Version(1, 9), certified_tokens=7),),
        spec={"epoch": 0, "tenant": "other"},
    )
    status = render.decide(spied, NOW_S).status
    leaked = {"version", "term", "epoch", "participants", "receipts", "inheritedTokens"}
    assert not leaked & set(status)


def test_conditions_have_reasons_and_times_that_move_with_the_status_only() -> None:
    """KEP-1623: a new reason keeps the time, another status sets it."""
    first = render.decide(facts(), NOW_S).status
    later = render.decide(facts(at(5), seen=Seen(first)), NOW_S + 60).status
    blocked = render.decide(facts(nodes=(), seen=Seen(first)), NOW_S + 60).status
    for row in first["conditions"]:
        assert row["reason"]
        assert row["observedGeneration"] == 1
    names = [row["type"] for row in first["conditions"]]
    assert names == [kind.value for kind in Type]
    before, same, other = (find(s["conditions"], Type.READY) for s in (first, later, blocked))
    assert before and same and other
    assert before["lastTransitionTime"] == same["lastTransitionTime"]
    assert before["message"] != same["message"]
    assert other["lastTransitionTime"] > before["lastTransitionTime"]


def test_a_condition_of_somebody_else_is_kept() -> None:
    """Other controllers may write conditions of their own."""
    foreign = {"type": "Audited", "status": "True", "reason": "x", "lastTransitionTime": "t"}
    status = render.decide(facts(seen=Seen({"conditions": [foreign]})), NOW_S).status
    assert status["conditions"][-1] == foreign


def test_an_invalid_object_says_so() -> None:
    """What the schema could not refuse is named in Ready."""
    from retire.protocol.errors import InvalidField

    plan = render.invalid(
        InvalidField("spec.epoch", -1, "0 or more"), {"version": "1.3"}, generation=4, now_s=NOW_S
    )
    assert plan.status["phase"] == "Blocked"
    assert plan.status["version"] == "1.3"
    assert plan.status["conditions"][0]["reason"] == "InvalidSpec"
    assert "spec.epoch" in plan.status["conditions"][0]["message"]


def test_participants_are_the_ready_holders() -> None:
    """A node that does not hold the scope, or is gone, is no participant; pins are added up."""
    other = NodeView("node-2", "b", holds=False, pinned_blocks=5)
    status = render.decide(facts(nodes=(NODE, HELD, other)), NOW_S).status
    assert [row["node"] for row in status["participants"]] == ["node-0", "node-1"]
    assert status["pinnedBlocks"] == 9
    reclaimed = find(status["conditions"], Type.RECLAIMED)
    assert reclaimed is not None and reclaimed["reason"] == "PrefixPinned"
    assert body()["metadata"]["name"] == "plan"

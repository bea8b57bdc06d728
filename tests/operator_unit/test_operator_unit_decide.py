"""The decision, row by row: what is found, what is done next, what the status says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_world import NODE, NOW_S, SYNCED, body, facts, with_desired

from retire.protocol.contract import Policy
from retire.protocol.versions import Version
from retire_operator import actions as do
from retire_operator import render
from retire_operator.conditions import Type, find
from retire_operator.facts import (
    Context,
    Facts,
    Failure,
    Missing,
    NodeView,
    Parent,
    Quota,
    Record,
    RegistryView,
    Seen,
    Unknown,
)
from retire_operator.receipts import Line

NEW = Seen({})
CONTEXT = Context('{"prompt":"x"}', "d1")
OURS = (Line("pause", Version(1, 3), by="revision"),)
HELD = NodeView("node-1", holds=True, pinned_blocks=9)


def deleted(given: Facts, *, ago_s: float = 1.0) -> Facts:
    return with_desired(given, deleted_at_s=NOW_S - ago_s)


def at(epoch: int, **fields: Any) -> Record:
    return Record(Version(1, epoch), **fields)


def cr(kind: str, what: int) -> str:
    return f"cr/uid-plan/{kind}/{what}"


BUMP = do.Supersede(Version(1, 2), cr("supersede", 3), facts().desired.contract)

# (name, facts, the action that comes first or None, phase, Ready status, Ready reason)
ROWS: list[tuple[str, Facts, do.Action | None, str, str, str]] = [
    (
        "new",
        facts(Unknown.ABSENT, seen=NEW),
        do.Register(1, 3, None, None),
        *("Pending", "False", "Registering"),
    ),
    (
        "new, without a finalizer",
        with_desired(facts(Unknown.ABSENT, seen=NEW), has_finalizer=False),
        do.AddFinalizer(),
        *("Pending", "False", "Pending"),
    ),
    (
        "new, under the term that grew",
        facts(Unknown.ABSENT, seen=NEW, registry=replace(SYNCED, term=4)),
        do.Register(4, 3, None, None),
        *("Pending", "False", "Registering"),
    ),
    (
        "new, with policy and parent",
        facts(
            Unknown.ABSENT,
            seen=NEW,
            spec={"epoch": 0, "onNewInput": "interrupt", "parentRef": {"name": "root"}},
            parent=Parent("acme", registered=True, cancelled=False),
        ),
        do.Register(1, 0, Policy.INTERRUPT, "root"),
        *("Pending", "False", "Registering"),
    ),
    ("current, nothing to do", facts(), None, "Active", "True", "Current"),
    ("adopted: the registry was ahead", facts(at(7), seen=NEW), None, "Active", "True", "Current"),
    ("bump", facts(at(2), seen=NEW), BUMP, "Retiring", "False", "Superseding"),
    (
        "burst seen as one jump: one epoch at a time",
        facts(at(2), seen=NEW, spec={"epoch": 10}),
        do.Supersede(Version(1, 2), cr("supersede", 3), facts().desired.contract),
        *("Retiring", "False", "Superseding"),
    ),
    ("runtime was faster, equal", facts(at(3)), None, "Active", "True", "Current"),
    ("runtime was faster, above", facts(at(5)), None, "Active", "True", "Current"),
    (
        "term grew, epoch kept",
        facts(Record(Version(2, 3)), registry=replace(SYNCED, term=2)),
        None,
        *("Active", "True", "Current"),
    ),
    (
        "bump after the term grew",
        facts(Record(Version(2, 2)), registry=replace(SYNCED, term=2), seen=NEW),
        do.Supersede(Version(2, 2), cr("supersede", 3), facts().desired.contract),
        *("Retiring", "False", "Superseding"),
    ),
    (
        "paused and bump: the old plan dies first",
        facts(at(2), seen=NEW, spec={"epoch": 3, "paused": True}),
        BUMP,
        *("Retiring", "False", "Superseding"),
    ),
    (
        "pause",
        facts(spec={"epoch": 3, "paused": True}),
        do.Pause(Version(1, 3), cr("pause", 1)),
        *("Retiring", "False", "Pausing"),
    ),
    (
        "paused",
        facts(at(3, paused=True), lines=OURS, spec={"epoch": 3, "paused": True}),
        None,
        *("Paused", "True", "Paused"),
    ),
    (
        "resume after a pause of the spec",
        facts(at(3, paused=True), lines=OURS),
        do.Resume(Version(1, 3), cr("resume", 1)),
        *("Retiring", "False", "Resuming"),
    ),
    (
        "a pause made at run time is left to it",
        facts(at(3, paused=True), lines=(Line("pause", Version(1, 3)),)),
        None,
        *("Paused", "True", "PausedAtRuntime"),
    ),
    (
        "a wanted pause that a runtime made is made ours",
        facts(at(3, paused=True), spec={"epoch": 3, "paused": True}),
        do.Pause(Version(1, 3), cr("pause", 1)),
        *("Retiring", "False", "Pausing"),
    ),
    (
        "policy",
        facts(spec={"epoch": 3, "onNewInput": "reject"}),
        do.Configure(1, Policy.REJECT),
        *("Active", "False", "Configuring"),
    ),
    (
        "policy taken away",
        facts(at(3, policy=Policy.ENQUEUE)),
        do.Configure(1, None),
        *("Active", "False", "Configuring"),
    ),
    (
        "a scope that a runtime opened gets its parent",
        facts(
            spec={"epoch": 3, "parentRef": {"name": "root"}},
            parent=Parent("acme", registered=True, cancelled=False),
        ),
        do.Configure(1, None, "root"),
        *("Active", "False", "Configuring"),
    ),
    (
        "cancel",
        facts(spec={"epoch": 3, "cancelled": True}),
        do.Cancel(Version(1, 3), cr("cancel", 1)),
        *("Retiring", "False", "Cancelling"),
    ),
    (
        "cancel before a bump that comes with it",
        facts(at(2), seen=NEW, spec={"epoch": 3, "cancelled": True}),
        do.Cancel(Version(1, 2), cr("cancel", 1)),
        *("Retiring", "False", "Cancelling"),
    ),
    (
        "cancelled",
        facts(at(4, cancelled=True), spec={"epoch": 3, "cancelled": True}),
        None,
        *("Cancelled", "False", "Cancelled"),
    ),
    (
        "cancelled at run time, with a bump that can never be",
        facts(at(4, cancelled=True), spec={"epoch": 9}),
        None,
        *("Cancelled", "False", "CancelledAtRuntime"),
    ),
    (
        "deleted",
        deleted(facts()),
        do.Cancel(Version(1, 3), cr("cancel", 1)),
        *("Deleting", "False", "Cancelling"),
    ),
    (
        "deleted and over",
        deleted(facts(at(4, cancelled=True))),
        do.RemoveFinalizer(),
        *("Deleting", "False", "Deleting"),
    ),
    (
        "deleted before it was opened",
        deleted(facts(Unknown.ABSENT, seen=NEW)),
        do.RemoveFinalizer(),
        *("Deleting", "False", "Deleting"),
    ),
    (
        "deleted, nodes gone",
        deleted(facts(nodes=())),
        do.Requeue(1.0),
        *("Deleting", "False", "WaitingToCancel"),
    ),
    (
        "deleted, registry gone",
        deleted(facts(Unknown.UNREADABLE, registry=RegistryView(1, False, "Away", "no answer"))),
        do.Requeue(1.0),
        *("Deleting", "False", "WaitingToCancel"),
    ),
    (
        "deleted, lost by the registry: not over, the guard is told",
        deleted(facts(Unknown.ABSENT)),
        do.TellGuard("the status says 1.3, but in the registry acme/plan is unknown to it"),
        *("Deleting", "False", "WaitingToCancel"),
    ),
    (
        "deleted, nodes gone, time is up",
        deleted(facts(nodes=()), ago_s=31),
        do.RemoveFinalizer(
            "deleted without ending scope acme/plan: no node of pool 'default' is ready"
        ),
        *("Deleting", "False", "DeletedUnfinished"),
    ),
    (
        "deleted, but another object's scope",
        deleted(facts(taken_by="other/plan")),
        do.RemoveFinalizer(),
        *("Deleting", "False", "Deleting"),
    ),
    (
        "deleted, never allowed",
        deleted(facts(tenant_allowed=False, seen=NEW)),
        do.RemoveFinalizer(),
        *("Deleting", "False", "Deleting"),
    ),
    (
        "unknown pool, current",
        facts(nodes=(), pool_exists=False),
        do.Requeue(3.0),
        *("Degraded", "False", "UnknownPool"),
    ),
    (
        "no ready node, bump",
        facts(at(2), seen=NEW, nodes=()),
        do.Requeue(3.0),
        *("Blocked", "False", "NoReadyNode"),
    ),
    (
        "no node is needed to be opened",
        facts(Unknown.ABSENT, seen=NEW, nodes=(), pool_exists=False),
        do.Register(1, 3, None, None),
        *("Pending", "False", "Registering"),
    ),
    (
        "tenant not allowed",
        facts(tenant_allowed=False, spec={"epoch": 3, "tenant": "other"}),
        do.Requeue(3.0),
        *("Blocked", "False", "TenantNotAllowed"),
    ),
    (
        "name taken",
        facts(taken_by="other/plan"),
        do.Requeue(3.0),
        *("Blocked", "False", "NameTaken"),
    ),
    (
        "parent missing",
        facts(Unknown.ABSENT, seen=NEW, spec={"parentRef": {"name": "root"}}),
        do.Requeue(3.0),
        *("Blocked", "False", "ParentMissing"),
    ),
    (
        "parent cancelled",
        facts(
            Unknown.ABSENT,
            seen=NEW,
            spec={"parentRef": {"name": "root"}},
            parent=Parent("acme", registered=True, cancelled=True),
        ),
        do.Requeue(3.0),
        *("Blocked", "False", "ParentCancelled"),
    ),
    (
        "parent of another tenant",
        facts(
            Unknown.ABSENT,
            seen=NEW,
            spec={"parentRef": {"name": "root"}},
            parent=Parent("other", registered=True, cancelled=False),
        ),
        do.Requeue(3.0),
        *("Blocked", "False", "ParentOfAnotherTenant"),
    ),
    (
        "parent not open yet",
        facts(
            Unknown.ABSENT,
            seen=NEW,
            spec={"parentRef": {"name": "root"}},
            parent=Parent("acme", registered=False, cancelled=False),
        ),
        do.Requeue(3.0),
        *("Blocked", "False", "ParentNotRegistered"),
    ),
    (
        "an open child does not need its parent's object",
        facts(at(3, parent="root"), spec={"epoch": 3, "parentRef": {"name": "root"}}),
        None,
        *("Active", "True", "Current"),
    ),
    (
        "registry not synced",
        facts(at(2), registry=RegistryView(1, False, "RegistryRebuilding", "wait")),
        do.Requeue(3.0),
        *("Degraded", "False", "RegistryRebuilding"),
    ),
    (
        "registry silent",
        facts(Unknown.UNREADABLE, unreadable_why="connection refused"),
        do.Requeue(3.0),
        *("Degraded", "False", "RegistryUnavailable"),
    ),
    (
        "the status is newer than the registry",
        facts(at(2)),
        do.TellGuard("the status says 1.3, but in the registry acme/plan is at 1.2"),
        *("Degraded", "False", "RegistryBehind"),
    ),
    (
        "the registry lost the scope: never opened again at spec.epoch",
        facts(Unknown.ABSENT),
        do.TellGuard("the status says 1.3, but in the registry acme/plan is unknown to it"),
        *("Degraded", "False", "RegistryBehind"),
    ),
    (
        "context: warm on the node that keeps the prefix",
        facts(context=CONTEXT, nodes=(NODE, HELD)),
        do.Warm(Version(1, 3), "node-1", CONTEXT.request_json, "d1"),
        *("Active", "True", "Current"),
    ),
    (
        "context warmed already",
        facts(
            context=CONTEXT,
            seen=Seen({"version": "1.3", "prewarm": {"version": "1.3", "digest": "d1"}}),
        ),
        None,
        *("Active", "True", "Current"),
    ),
    (
        "context of another version: warm again",
        facts(
            context=CONTEXT,
            seen=Seen({"version": "1.3", "prewarm": {"version": "1.2", "digest": "d1"}}),
        ),
        do.Warm(Version(1, 3), "node-0", CONTEXT.request_json, "d1"),
        *("Active", "True", "Current"),
    ),
    (
        "no warming of a paused scope",
        facts(at(3, paused=True), lines=OURS, context=CONTEXT, spec={"epoch": 3, "paused": True}),
        None,
        *("Paused", "True", "Paused"),
    ),
    (
        "context missing: the version counts, the successor does not come",
        facts(context=Missing("ConfigMapMissing", "no ConfigMap acme/c")),
        do.Requeue(3.0),
        *("Degraded", "True", "Current"),
    ),
    (
        "quota exceeded",
        facts(quota=Quota(False, "over"), spec={"epoch": 3, "quota": {"pinnedBlocks": 9}}),
        do.Requeue(3.0),
        *("Degraded", "True", "Current"),
    ),
    (
        "the last attempt failed",
        facts(at(2), seen=NEW, failure=Failure("Supersede", "SupersedeFailed", "no answer")),
        BUMP,
        *("Retiring", "False", "SupersedeFailed"),
    ),
]


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

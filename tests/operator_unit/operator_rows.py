"""The decision as a table: (name, facts, first action or None, phase, Ready status, its reason)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from operator_world import NODE, NOW_S, SYNCED, facts, with_desired

from retire.protocol.contract import Policy
from retire.protocol.versions import Version
from retire_operator import actions as do
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

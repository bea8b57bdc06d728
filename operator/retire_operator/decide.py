"""The decision about one ServingScope: from Facts to one next action and the status. Pure.

The rules stand in the order in which they bind. Each answers "what stops here, or what is to be
done next"; the first that has an answer decides. Safety does not rest on this file: every action is
a compare-and-set under an idempotency key, so stale facts cost a refused call and nothing else.
Must never do IO, read a clock or draw a random number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from retire_operator import actions as do
from retire_operator.conditions import State
from retire_operator.facts import Context, Facts, Record, Unknown
from retire_operator.receipts import REVISION
from retire_operator.verdicts import (
    RETRY_S,
    Phase,
    Verdict,
    blocked,
    cannot_move,
    idempotency_key,
    moving,
    no_node,
    suspicion,
)

Rule = Callable[[Facts, float], Verdict | None]


def judge(facts: Facts, now_s: float) -> Verdict:
    """The first rule that has an answer."""
    for rule in RULES:
        verdict = rule(facts, now_s)
        if verdict is not None:
            return verdict
    return _current(facts)


def _deleting(facts: Facts, now_s: float) -> Verdict | None:
    """A deleted object ends its scope, within a bound, and only what it owned."""
    desired, record = facts.desired, facts.record
    if desired.deleted_at_s is None:
        return None
    if not desired.has_finalizer:
        return _gone("Deleting", "", ())
    if facts.taken_by or (not facts.tenant_allowed and facts.seen.version is None):
        return _gone("Deleting", "the scope was never this object's", (do.RemoveFinalizer(),))
    if facts.registry.synced and _is_over(facts):
        return _gone("Deleting", "the scope has ended", (do.RemoveFinalizer(),))
    why = cannot_move(facts) or (facts.failure.message if facts.failure else "")
    if now_s - desired.deleted_at_s >= facts.finalizer_timeout_s:
        warning = f"deleted without ending scope {desired.key}: {why or 'no time left'}"
        return _gone("DeletedUnfinished", warning, (do.RemoveFinalizer(warning),))
    if cannot_move(facts) or not isinstance(record, Record):
        wait = (*suspicion(facts), do.Requeue(1.0))
        return _gone("WaitingToCancel", why or facts.registry.message, wait)
    return _gone("Cancelling", "the scope is being cancelled", (_cancel(facts, record),))


def _gone(reason: str, message: str, actions: tuple[do.Action, ...]) -> Verdict:
    return Verdict(Phase.DELETING, State.FALSE, reason, message, actions=actions)


def _is_over(facts: Facts) -> bool:
    """Nothing of the scope is left to end. A lost scope is not over: its nodes may hold it."""
    if isinstance(facts.record, Record):
        return facts.record.cancelled
    return facts.record is Unknown.ABSENT and facts.seen.version is None


def _unprotected(facts: Facts, now_s: float) -> Verdict | None:
    """The finalizer comes first: a scope that is made must be ended again."""
    del now_s
    if facts.desired.has_finalizer or facts.taken_by or not facts.tenant_allowed:
        return None
    return Verdict(
        Phase.PENDING, State.FALSE, "Pending", "not seen before", actions=(do.AddFinalizer(),)
    )


def _not_ours(facts: Facts, now_s: float) -> Verdict | None:
    """The scope's name belongs to another object, or its tenant to another namespace."""
    del now_s
    desired = facts.desired
    if facts.taken_by:
        return blocked(
            "NameTaken",
            f"scope {desired.key} belongs to the older ServingScope {facts.taken_by}; "
            "choose another metadata.name or spec.tenant",
        )
    if not facts.tenant_allowed:
        return blocked(
            "TenantNotAllowed",
            f"spec.tenant {desired.key.tenant!r} is not a tenant of namespace "
            f"{desired.ref.namespace!r}; name it in the namespace's annotation "
            "serving.retire.dev/tenants",
        )
    return None


def _registry(facts: Facts, now_s: float) -> Verdict | None:
    """Nothing is decided on a registry that is lost, behind, or silent."""
    del now_s
    if not facts.registry.synced:
        reason, message = facts.registry.reason or "RegistryNotSynced", facts.registry.message
        return Verdict(Phase.DEGRADED, State.FALSE, reason, message, actions=(do.Requeue(RETRY_S),))
    if facts.record is Unknown.UNREADABLE:
        return Verdict(
            Phase.DEGRADED,
            State.FALSE,
            "RegistryUnavailable",
            facts.unreadable_why or "the registry does not answer",
            actions=(do.Requeue(RETRY_S),),
        )
    suspicions = suspicion(facts)
    if suspicions:
        return Verdict(
            Phase.DEGRADED,
            State.FALSE,
            "RegistryBehind",
            suspicions[0].why,
            actions=(*suspicions, do.Requeue(1.0)),
        )
    return None


def _unregistered(facts: Facts, now_s: float) -> Verdict | None:
    """A scope that nobody has opened yet starts at spec.epoch, under its parent."""
    del now_s
    desired = facts.desired
    if isinstance(facts.record, Record):
        return None
    orphaned = _parent(facts)
    if orphaned is not None:
        return orphaned
    register = do.Register(facts.registry.term, desired.epoch, desired.policy, desired.parent)
    return Verdict(
        Phase.PENDING, State.FALSE, "Registering", "opening the scope", actions=(register,)
    )


def _parent(facts: Facts) -> Verdict | None:
    name, parent, desired = facts.desired.parent, facts.parent, facts.desired
    if name is None:
        return None
    if parent is None:
        return blocked(
            "ParentMissing",
            f"spec.parentRef: no ServingScope {name!r} in namespace {desired.ref.namespace!r}",
        )
    if parent.tenant != desired.key.tenant:
        return blocked(
            "ParentOfAnotherTenant",
            f"spec.parentRef: {name!r} belongs to tenant {parent.tenant!r}, "
            f"this scope to {desired.key.tenant!r}",
        )
    if parent.cancelled:
        return blocked(
            "ParentCancelled", f"spec.parentRef: {name!r} was cancelled; nothing starts below it"
        )
    if not parent.registered:
        return blocked("ParentNotRegistered", f"spec.parentRef: {name!r} is not open yet")
    return None


def _ended(facts: Facts, now_s: float) -> Verdict | None:
    """Cancel is terminal, whoever called it; a wanted cancel is made."""
    del now_s
    desired, record = facts.desired, facts.record
    assert isinstance(record, Record)
    if record.cancelled:
        message = f"cancelled at {record.version}; create another ServingScope to go on"
        reason = "Cancelled" if desired.cancelled else "CancelledAtRuntime"
        return Verdict(Phase.CANCELLED, State.FALSE, reason, message)
    if not desired.cancelled:
        return None
    return moving(facts, "Cancelling", _cancel(facts, record))


def _cancel(facts: Facts, record: Record) -> do.Cancel:
    key = idempotency_key(facts, "cancel", facts.desired.generation)
    return do.Cancel(record.version, key)


def _behind(facts: Facts, now_s: float) -> Verdict | None:
    """Each missing epoch is a SUPERSEDE of its own, so that a burst commits every one."""
    del now_s
    desired, record = facts.desired, facts.record
    assert isinstance(record, Record)
    if record.version.epoch >= desired.epoch:
        return None
    key = idempotency_key(facts, "supersede", record.version.epoch + 1)
    action = do.Supersede(record.version, key, desired.contract)
    return moving(facts, "Superseding", action)


def _configuring(facts: Facts, now_s: float) -> Verdict | None:
    del now_s
    desired, record = facts.desired, facts.record
    assert isinstance(record, Record)
    orphan = desired.parent is not None and record.parent is None and facts.failure is None
    if record.policy is desired.policy and not orphan:
        return None
    if orphan and (refused := _parent(facts)) is not None:
        return refused
    parent = desired.parent if orphan else None
    action = do.Configure(facts.registry.term, desired.policy, parent)
    return Verdict(
        Phase.ACTIVE, State.FALSE, "Configuring", "setting policy and parent", actions=(action,)
    )


def _holding(facts: Facts, now_s: float) -> Verdict | None:
    """spec.paused, except that a pause which an agent made at run time is left to the agent."""
    del now_s
    desired, record = facts.desired, facts.record
    assert isinstance(record, Record)
    ours = _pause_is_ours(facts)
    # A pause that is wanted and is not ours is made ours, so that spec.paused can end it again.
    if record.paused == desired.paused and not (desired.paused and not ours):
        return None
    if record.paused and not desired.paused and not ours:
        return None
    kind = "pause" if desired.paused else "resume"
    key = idempotency_key(facts, kind, desired.generation)
    call = do.Pause if desired.paused else do.Resume
    return moving(facts, "Pausing" if desired.paused else "Resuming", call(record.version, key))


def _pause_is_ours(facts: Facts) -> bool:
    last = next((line for line in facts.lines if line.kind == "pause"), None)
    return last is not None and last.by == REVISION


def _warming(facts: Facts, now_s: float) -> Verdict | None:
    """Once per version and context, on the node that keeps the predecessor's prefix."""
    del now_s
    record, context = facts.record, facts.context
    assert isinstance(record, Record)
    if not isinstance(context, Context) or record.paused or not facts.nodes:
        return None
    if facts.seen.warmed == (str(record.version), context.digest):
        return None
    node = max(facts.nodes, key=lambda n: (n.pinned_blocks, n.holds, n.name))
    action = do.Warm(record.version, node.name, context.request_json, context.digest)
    settled = _current(facts)
    return Verdict(settled.phase, settled.state, settled.reason, settled.message, (action,))


def _current(facts: Facts) -> Verdict:
    """Nothing is to be done."""
    desired, record = facts.desired, facts.record
    assert isinstance(record, Record)
    if not facts.nodes:
        return no_node(facts, phase=Phase.DEGRADED)
    message = f"at {record.version}"
    if record.version.epoch > desired.epoch:
        message += (
            f"; spec.epoch {desired.epoch} was overtaken at run time, "
            f"set {record.version.epoch + 1} for the next revision"
        )
    if desired.parent is not None and record.parent != desired.parent:
        message += (
            f"; spec.parentRef has no effect: the scope was opened "
            f"{'below ' + repr(record.parent) if record.parent else 'without a parent'}"
        )
    if record.paused:
        reason = "Paused" if desired.paused else "PausedAtRuntime"
        return Verdict(Phase.PAUSED, State.TRUE, reason, message)
    if _degraded(facts):
        retry = (do.Requeue(RETRY_S),)
        return Verdict(Phase.DEGRADED, State.TRUE, "Current", message, retry)
    return Verdict(Phase.ACTIVE, State.TRUE, "Current", message)


def _degraded(facts: Facts) -> bool:
    """It works, but not everything that was asked for is there."""
    context = facts.context
    refused = facts.quota is not None and not facts.quota.granted
    return (
        refused or facts.failure is not None or bool(context and not isinstance(context, Context))
    )


RULES: Final[tuple[Rule, ...]] = (
    _deleting,
    _not_ours,
    _unprotected,
    _registry,
    _unregistered,
    _ended,
    _behind,
    _configuring,
    _holding,
    _warming,
)

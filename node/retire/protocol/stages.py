"""What follows from a change of authority: gates, FENCE, ALIGN, RESUME, RECLAIM.

Part of ``transitions.step`` (the tables are there). ``step_stage`` takes in one fact; ``settle``
derives, from the facts alone, what is due: so "exactly when the last gate is accounted for" is one
condition in one place. Imports nothing outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from retire.protocol.contract import GateOutcome
from retire.protocol.effects import (
    Acknowledge,
    AnswerFenced,
    Effect,
    ReclaimNode,
    ReportAck,
    WatchRetention,
)
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Certified,
    Event,
    FenceReceipt,
    FenceTimedOut,
    GateAcked,
    GateLeaseEnded,
    NodeLost,
    Reclaimed,
    RetentionEnded,
    StageEvent,
    SuccessorAdmitted,
)
from retire.protocol.state import GateAccount, Phase, ScopeState, Successor, Transition
from retire.protocol.versions import Version

RETIRED_MAX = 8  # finished transitions that only wait for memory are merged above this many


def illegal(state: ScopeState, event: Event) -> IllegalTransition:
    """The error for an event outside the tables of ``transitions.py``."""
    what = type(event).__name__
    return IllegalTransition(f"{what} does not fit {state.phase.value} at {state.version}: {event}")


def step_stage(state: ScopeState, event: StageEvent) -> ScopeState:
    """Take in one fact about a transition; raises IllegalTransition when its stage forbids it."""
    match event:
        case GateAcked():
            return _account(state, event.gate, event.version, GateOutcome.ACKED)
        case GateLeaseEnded():
            return _account(state, event.gate, event.version, GateOutcome.LEASE_ENDED)
        case FenceReceipt():
            return _received(state, event)
        case Reclaimed():
            return _reclaimed(state, event)
        case NodeLost():
            return _node_lost(state, event.node)
        case FenceTimedOut() | Certified() | SuccessorAdmitted() | RetentionEnded():
            return _on_one(state, event)
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            raise illegal(state, event)


def _account(state: ScopeState, gate: str, version: Version, outcome: GateOutcome) -> ScopeState:
    held = next((a for a in state.accounts if a.gate == gate), None)
    if held is not None and held.version >= version:
        return state
    rest = tuple(a for a in state.accounts if a.gate != gate)
    return replace(state, accounts=(*rest, GateAccount(gate, version, outcome)))


def _received(state: ScopeState, event: FenceReceipt) -> ScopeState:
    if any(r.node == event.node and r.to_version == event.to_version for r in state.receipts):
        return state
    return replace(state, receipts=(*state.receipts, event))


def _reclaimed(state: ScopeState, event: Reclaimed) -> ScopeState:
    """A node reports for everything below a version at once, and only after it was told to."""
    node, version = event.node, event.version
    told = any(node in t.reclaiming and t.to_version >= version for t in state.transitions)

    def drop(t: Transition) -> Transition:
        if t.to_version > version or node not in t.unreclaimed:
            return t
        if not told:
            raise illegal(state, event)
        return replace(t, unreclaimed=t.unreclaimed - {node}, reclaiming=t.reclaiming - {node})

    return _each(state, drop)


def _node_lost(state: ScopeState, node: str) -> ScopeState:
    """Its memory is void: nothing is certified from it. Its gates still count until lease end."""

    def drop(t: Transition) -> Transition:
        gone = frozenset((node,))
        return replace(
            t,
            missing=t.missing | (t.nodes & gone),
            unreclaimed=t.unreclaimed - gone,
            reclaiming=t.reclaiming - gone,
        )

    receipts = tuple(r for r in state.receipts if r.node != node)
    return _each(replace(state, receipts=receipts), drop)


def _each(state: ScopeState, change: Callable[[Transition], Transition]) -> ScopeState:
    return replace(state, transitions=tuple(change(t) for t in state.transitions))


_OneEvent = FenceTimedOut | Certified | SuccessorAdmitted | RetentionEnded


def _on_one(state: ScopeState, event: _OneEvent) -> ScopeState:
    assert state.version is not None
    target = state.transition_to(event.to_version)
    if target is None:
        if event.to_version > state.version:
            raise illegal(state, event)
        return state  # over, or merged: nothing waits for it
    after = _change_one(state, target, event)
    return _each(state, lambda t: after if t is target else t)


def _change_one(state: ScopeState, target: Transition, event: _OneEvent) -> Transition:
    newest = target.to_version == state.version
    match event, target.stage, target.successor:
        case FenceTimedOut(), Phase.ADVANCING | Phase.FENCING, _:
            return _without_late(state, target)
        # What a superseded version left may serve the newest one's successor, so its retention is
        # the newest one's from then on (``_decide``).
        case RetentionEnded(), _, Successor.AWAITED | Successor.CERTIFIED if newest:
            return replace(target, successor=Successor.NONE)
        case Certified(), Phase.ALIGNING, _ if event.tokens == 0 or has_closed(
            state, target, event.node or state.node
        ):
            return replace(target, successor=Successor.CERTIFIED)
        case SuccessorAdmitted(), Phase.RESUMING, _:
            return replace(target, successor=Successor.ADMITTED)
        case Certified(), Phase.RESUMING, _:
            return target
        case ((Certified() | SuccessorAdmitted()), _, Successor.ADMITTED):
            return target
        case ((FenceTimedOut() | RetentionEnded()), _, _):
            return target
        case _:
            raise illegal(state, event)


def _without_late(state: ScopeState, t: Transition) -> Transition:
    """Wait no longer. Another node's memory is then its own sidecar's business, not ours."""
    late = frozenset(n for n in t.nodes if state.receipt(n, t.to_version) is None)
    others = late - {state.node}
    return replace(t, missing=t.missing | late, unreclaimed=t.unreclaimed - others)


def has_closed(state: ScopeState, t: Transition, node: str) -> bool:
    """The node's KV may be inherited: it gave its receipt in time, and closed every writer.

    No participants means that nothing was running: what ended by itself is written.
    """
    receipt = None if node in t.missing else state.receipt(node, t.to_version)
    return receipt is not None and all(p.closed for p in receipt.participants)


def settle(state: ScopeState) -> tuple[ScopeState, tuple[Effect, ...]]:
    """Do what is due. Idempotent: settling a settled state changes nothing and orders nothing."""
    effects: list[Effect] = []
    kept: list[Transition] = []
    newer: Transition | None = None
    for transition in reversed(_merged(state)):
        decided = _decide(state, transition, newer)
        newer = decided
        acknowledged, acks = _acknowledge(state, decided)
        fenced, answers = _answer_fence(state, acknowledged)
        after, orders = _order_reclaim(state, fenced)
        effects[:0] = [*acks, *answers, *orders]
        if not after.is_over:
            kept.append(after)
    settled = replace(state, transitions=tuple(reversed(kept)))
    if not kept and not state.pending:
        settled = replace(settled, accounts=(), receipts=())
    return settled, tuple(effects)


def _decide(state: ScopeState, t: Transition, newer: Transition | None) -> Transition:
    """A superseded version's successor can come no more once the next one has taken over."""
    superseded = t.to_version != state.version and (newer is None or newer.is_decided)
    if superseded and not t.is_decided:
        return replace(t, successor=Successor.NONE)
    return t


def _acknowledge(state: ScopeState, t: Transition) -> tuple[Transition, list[Effect]]:
    effects: list[Effect] = []
    outcomes = [(g, state.outcome(g.name, t.to_version)) for g in t.gates]
    if not t.reported and all(o is not None for g, o in outcomes if g.is_local):
        t = replace(t, reported=True)
        effects.append(ReportAck(t.to_version))
    if not t.acknowledged and all(o is not None for _, o in outcomes):
        if t.calls:
            settled = tuple((g.name, o) for g, o in outcomes if o is not None)
            effects.append(Acknowledge(t.calls, t.from_version, t.to_version, settled))
        t = replace(t, acknowledged=True, calls=(), fence_calls=t.fence_calls + t.calls)
    return t, effects


def _answer_fence(state: ScopeState, t: Transition) -> tuple[Transition, list[Effect]]:
    receipts = {n: state.receipt(n, t.to_version) for n in t.nodes - t.missing}
    if not t.acknowledged or t.fenced or any(r is None for r in receipts.values()):
        return t, []
    effects: list[Effect] = []
    found = tuple(p for n in sorted(receipts) if (r := receipts[n]) for p in r.participants)
    missing = tuple(sorted(t.missing))  # without calls: a scope that another one's commit moved
    effects.append(AnswerFenced(t.fence_calls, t.to_version, found, missing))
    if not t.is_decided:
        effects.append(WatchRetention(t.to_version, t.contract.ttl_s))
    return replace(t, fenced=True, fence_calls=()), effects


def _order_reclaim(state: ScopeState, t: Transition) -> tuple[Transition, list[Effect]]:
    """RECLAIM comes strictly after: the successor's fate is known and the node's writers closed."""
    if not t.fenced or not t.is_decided:
        return t, []
    due = [n for n in sorted(t.unreclaimed - t.reclaiming) if state.receipt(n, t.to_version)]
    orders: list[Effect] = [ReclaimNode(n, t.to_version) for n in due]
    return replace(t, reclaiming=t.reclaiming | frozenset(due)), orders


def _is_quiet(state: ScopeState, t: Transition) -> bool:
    """It waits for memory only, or for a successor that came too late: the version has moved on."""
    superseded = t.stage is Phase.ALIGNING and t.to_version != state.version
    return superseded or t.stage is Phase.RECLAIMING


def _merged(state: ScopeState) -> tuple[Transition, ...]:
    """Join the two oldest transitions in which nothing happens any more: a burst stays bounded."""
    chain = state.transitions
    while len(chain) > RETIRED_MAX and all(_is_quiet(state, t) for t in chain[:2]):
        old, young = chain[:2]
        joined = replace(
            young,
            from_version=old.from_version,
            unreclaimed=old.unreclaimed | young.unreclaimed,
            reclaiming=(old.reclaiming | young.reclaiming) - (young.unreclaimed - young.reclaiming),
        )
        chain = (joined, *chain[2:])
    return chain

"""The core state machine, ``step(state, event) -> Step``: the only way a scope changes.

Each sidecar keeps one ScopeState per scope it knows, feeds it every event, and executes the effects
in order. A pair that is not in the tables raises IllegalTransition and changes nothing. This file
decides authority (ADVANCE, pause, cancel, registry loss and rebuild); ``stages.py`` what follows
from it (gates, FENCE, ALIGN, RESUME, RECLAIM). Imports nothing outside ``retire.protocol``.

Events about the scope, by phase. "busy" is any of ADVANCING .. RECLAIMING; -- is illegal.

| event                  | UNKNOWN | CURRENT, PAUSED, busy              | CANCELLED                |
| ---------------------- | ------- | ---------------------------------- | ------------------------ |
| Registered             | learn   | version upward only                | same                     |
| ChangeRequested        | --      | CommitToRegistry; LOST: Refuse     | same (replays, refusals) |
| VersionObserved, and   |         |                                    |                          |
| Committed (not UNKN.)  |         |                                    |                          |
|   .. SUPERSEDE, CANCEL | learn   | higher: ADVANCING; else no effect  | -- when higher           |
|   .. PAUSE, RESUME     | learn   | newer: PAUSED / CURRENT when idle  | no effect                |
| CommitRefused          | --      | Refuse                             | Refuse                   |
| RegistryLost, -Found   | link    | link; version and phase stay       | same                     |
| Rebuilt, higher term   | learn   | ADVANCING under the new term       | same, stays cancelled    |
| Rebuilt, term not up   | --      | --                                 | --                       |
| GateAcked, -LeaseEnded | --      | counts for every version up to its | same                     |
| NodeLost               | --      | voids its receipts and memory      | same                     |

Events about one transition, by its stage. To one that is over: no effect.
"none": no successor will come. Certified with tokens needs the node's receipt, writers closed.

| event             | ADVANCING | FENCING        | ALIGNING   | RESUMING   | RECLAIMING        |
| ----------------- | --------- | -------------- | ---------- | ---------- | ----------------- |
| last gate is in   | FENCING   |                |            |            |                   |
| FenceReceipt      | counts    | last: ALIGNING | late       | late       | late: ReclaimNode |
| FenceTimedOut     | missing   | ALIGNING       | no effect  | no effect  | no effect         |
| Certified         | --        | --             | RESUMING   | no effect  | -- if none came   |
| SuccessorAdmitted | --        | --             | --         | RECLAIMING | -- if none came   |
| RetentionEnded    | none      | none           | RECLAIMING | RECLAIMING | no effect         |
| Reclaimed         | --        | --             | --         | --         | last: over        |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from retire.protocol.contract import Contract
from retire.protocol.effects import (
    AnswerCommitted,
    CommitToRegistry,
    Effect,
    FenceEngine,
    Refuse,
    StoreVersion,
    SwitchGates,
    WatchFence,
    WatchLease,
)
from retire.protocol.events import (
    Admission,
    AuthorityEvent,
    Change,
    ChangeRequested,
    CommitRefused,
    Committed,
    Event,
    Gate,
    Rebuilt,
    Refusal,
    Registered,
    RegistryFound,
    RegistryLost,
    StageEvent,
    VersionObserved,
)
from retire.protocol.stages import illegal, settle, step_stage
from retire.protocol.state import Pending, RegistryLink, ScopeState, Successor, Transition
from retire.protocol.versions import Version


@dataclass(frozen=True, slots=True)
class Step:
    """The next state and what the shell must do, in order."""

    state: ScopeState
    effects: tuple[Effect, ...] = ()


def step(state: ScopeState, event: Event) -> Step:
    """Apply one event; a pair outside the tables raises IllegalTransition and changes nothing."""
    if isinstance(event, StageEvent):
        if state.version is None:
            raise illegal(state, event)
        after, effects = step_stage(state, event), ()
    else:
        after, effects = _step_authority(state, event)
    settled, more = settle(after)
    return Step(settled, effects + more)


_Moved = tuple[ScopeState, tuple[Effect, ...]]


def _step_authority(state: ScopeState, event: AuthorityEvent) -> _Moved:
    match event:
        case Registered():
            return _registered(state, event)
        case ChangeRequested():
            return _requested(state, event)
        case Committed():
            return _committed(state, event)
        case CommitRefused():
            return _refused(state, event)
        case VersionObserved():
            return _learn(state, event, event.contract)
        case RegistryLost():
            return replace(state, registry=RegistryLink.LOST), ()
        case RegistryFound():
            return replace(state, registry=RegistryLink.SYNCED), ()
        case Rebuilt():
            return _rebuilt(state, event)
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            raise illegal(state, event)


def _registered(state: ScopeState, event: Registered) -> _Moved:
    if state.version is None:
        at = (event.version.term, event.sequence)
        learned = replace(state, version=event.version, generation=event.generation)
        return replace(learned, admission=event.admission, admission_at=at), ()
    if event.version <= state.version:
        return state, ()
    # A record ahead of us: the commits between are in the stream too, but nothing waits for them.
    change = Change.CANCEL if event.admission is Admission.CANCELLED else Change.SUPERSEDE
    seen = VersionObserved(
        change, event.version, event.sequence, generation=event.generation, gates=event.gates
    )
    return _learn(state, seen, Contract())


def _requested(state: ScopeState, event: ChangeRequested) -> _Moved:
    known = any(p.call == event.call for p in state.pending)
    if state.version is None or known or event.change is Change.REBUILD:
        raise illegal(state, event)
    if state.registry is RegistryLink.LOST:
        return state, (Refuse(event.call, Refusal.UNAVAILABLE, state.version),)
    # Stale and repeated requests go too: only the registry tells a replay from a conflict.
    pending = Pending(event.call, event.change, event.expected, event.contract)
    order = CommitToRegistry(
        event.call, event.change, event.expected, event.idempotency_key, event.body_digest
    )
    return replace(state, pending=(*state.pending, pending)), (order,)


def _refused(state: ScopeState, event: CommitRefused) -> _Moved:
    if state.version is None:
        raise illegal(state, event)
    after, pending = _take_pending(state, event.call)
    if pending is None:  # a rebuild has refused it already
        return state, ()
    return after, (Refuse(event.call, event.refusal, event.current or state.version),)


def _committed(state: ScopeState, event: Committed) -> _Moved:
    if state.version is not None and event.to_version.term < state.version.term:
        after, pending = _take_pending(state, event.call)
        refuse = Refuse(event.call, Refusal.TERM_MISMATCH, state.version)
        return after, (refuse,) if pending else ()
    after, pending = _take_pending(state, event.call)
    target = event.from_version.next_epoch() if event.change.moves_version else event.from_version
    if pending is None or event.change is not pending.change or event.to_version != target:
        raise illegal(state, event)
    answer = AnswerCommitted(
        event.call,
        event.change,
        event.from_version,
        event.to_version,
        event.generation,
        event.replayed,
    )
    after, effects = _learn(after, event, pending.contract)
    if not event.change.moves_version:
        return after, (*effects, answer)
    after, watches = _coordinate(after, event)
    return after, (*effects, answer, *watches)


def _learn(state: ScopeState, event: Committed | VersionObserved, contract: Contract) -> _Moved:
    """Take in a commit, whoever made it. Versions and the admission's position only rise."""
    version = event.to_version if isinstance(event, Committed) else event.version
    effects: tuple[Effect, ...] = ()
    local = tuple(g for g in event.gates if g.is_local)
    if state.version is None:
        state = replace(state, version=version, generation=event.generation)
    elif version > state.version:
        if state.admission is Admission.CANCELLED and version.term == state.version.term:
            raise illegal(state, event)
        change = event.change if event.change.moves_version else Change.SUPERSEDE
        moved = replace(state, version=version, generation=event.generation)
        after = _Open(change, contract, local)
        state, effects = _advance(moved, state.version, after)
    at, admission = (version.term, event.sequence), _ADMISSION.get(event.change)
    if admission is None or state.admission is Admission.CANCELLED or at <= state.admission_at:
        return state, effects
    if not event.change.moves_version and local:
        effects += (SwitchGates(version, event.change, local),)
    return replace(state, admission=admission, admission_at=at), effects


_ADMISSION = {
    Change.PAUSE: Admission.PAUSED,
    Change.RESUME: Admission.OPEN,
    Change.CANCEL: Admission.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class _Open:
    change: Change
    contract: Contract
    local: tuple[Gate, ...]


def _advance(state: ScopeState, from_version: Version, opened: _Open) -> _Moved:
    """Revoke first: the mailbox word is the first effect, whatever else follows."""
    assert state.version is not None
    terminal = opened.change is Change.CANCEL or state.admission is Admission.CANCELLED
    transition = Transition(
        from_version,
        state.version,
        opened.change,
        opened.contract,
        gates=opened.local,
        nodes=frozenset((state.node,)),
        unreclaimed=frozenset((state.node,)),
        successor=Successor.NONE if terminal else Successor.AWAITED,
    )
    effects: tuple[Effect, ...] = (StoreVersion(state.version, state.generation),)
    if opened.local:
        effects += (SwitchGates(state.version, opened.change, opened.local),)
    effects += (FenceEngine(state.version, opened.contract, terminal), WatchFence(state.version))
    return replace(state, transitions=(*state.transitions, transition)), effects


def _coordinate(state: ScopeState, event: Committed) -> _Moved:
    """Make this node answer for the commit: wait for every gate and every node that joined."""
    remote = tuple(g for g in event.gates if not g.is_local)
    # A replay answers for memory that the first call's coordinator looks after.
    others = frozenset(g.node for g in remote) if not event.replayed else frozenset[str]()
    known = state.transition_to(event.to_version)
    effects: tuple[Effect, ...] = ()
    if known is None:
        known = _late(state, event)
        local = tuple(g for g in event.gates if g.is_local)
        # Their acks may be forgotten by now: another barrier at the current version costs nothing.
        effects = (SwitchGates(state.version or event.to_version, event.change, local),)
    names = {g.name for g in known.gates}
    watched = replace(
        known,
        from_version=event.from_version,
        calls=(*known.calls, event.call),
        gates=known.gates + tuple(g for g in event.gates if g.name not in names),
        nodes=known.nodes | others,
        unreclaimed=known.unreclaimed | others,
        acknowledged=False,
        fenced=False,
    )
    rest = [t for t in state.transitions if t.to_version != event.to_version]
    chain = tuple(sorted((*rest, watched), key=_by_target))
    leases = tuple(WatchLease(g.name, event.to_version, g.lease_left_s or 0.0) for g in remote)
    return replace(state, transitions=chain), (*effects, *leases, WatchFence(event.to_version))


def _late(state: ScopeState, event: Committed) -> Transition:
    """A commit of ours that later ones have overtaken, or that an earlier call had made."""
    own = frozenset[str]() if event.replayed else frozenset((state.node,))
    # A replay never brings a successor: the first call did, or left that to a later request.
    none = event.replayed or state.admission is Admission.CANCELLED
    return Transition(
        event.from_version,
        event.to_version,
        event.change,
        nodes=own,
        unreclaimed=own,
        successor=Successor.NONE if none else Successor.AWAITED,
    )


def _rebuilt(state: ScopeState, event: Rebuilt) -> _Moved:
    if state.version is not None and event.version.term <= state.version.term:
        raise illegal(state, event)
    refusals = tuple(Refuse(p.call, Refusal.TERM_MISMATCH, event.version) for p in state.pending)
    synced = replace(state, pending=(), registry=RegistryLink.SYNCED)
    seen = VersionObserved(
        Change.REBUILD, event.version, 0, generation=event.generation, gates=event.gates
    )
    after, effects = _learn(synced, seen, Contract())
    return after, (*effects, *refusals)


def _take_pending(state: ScopeState, call: str) -> tuple[ScopeState, Pending | None]:
    taken = next((p for p in state.pending if p.call == call), None)
    rest = tuple(p for p in state.pending if p.call != call)
    return replace(state, pending=rest), taken


def _by_target(transition: Transition) -> Version:
    return transition.to_version

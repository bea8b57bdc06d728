"""The state machine's edges, read off ``step`` itself: for tables and diagrams that cannot lie.

Must never import anything outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from retire.protocol.contract import Participant, StopReason
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Certified,
    Change,
    ChangeRequested,
    CommitRefused,
    Committed,
    Event,
    FenceReceipt,
    FenceTimedOut,
    Gate,
    GateAcked,
    GateLeaseEnded,
    NodeLost,
    Rebuilt,
    Reclaimed,
    Refusal,
    Registered,
    RegistryFound,
    RegistryLost,
    RetentionEnded,
    SuccessorAdmitted,
    VersionObserved,
)
from retire.protocol.state import Phase, ScopeState
from retire.protocol.transitions import step
from retire.protocol.versions import ScopeKey, Version

_V0: Final = Version(1, 0)
_V1: Final = Version(1, 1)
_V2: Final = Version(2, 1)  # after a rebuild
_LOCAL: Final = Gate("a/api", "a")
_REMOTE: Final = Gate("b", "b", 1.0)
_WRITTEN: Final = (Participant("a", "boot", 0, 0, 0, 64, True),)
_STATES_MAX: Final = 20_000


_STORIES: Final = ((Change.SUPERSEDE,), (Change.CANCEL,), (Change.PAUSE, Change.RESUME))


def _alphabet(story: tuple[Change, ...]) -> Iterator[Event]:
    """These changes of V0, by this node or by another, and everything that may follow."""
    yield Registered(_V0)
    for sequence, change in enumerate(story, start=1):
        to = _V1 if change.moves_version else _V0
        yield ChangeRequested("call", change, _V0, "key")
        yield Committed("call", change, _V0, to, sequence, gates=(_LOCAL, _REMOTE))
        yield VersionObserved(change, to, sequence, gates=(_LOCAL,))
    yield CommitRefused("call", Refusal.VERSION_CONFLICT, _V1)
    yield GateAcked("a/api", _V1)
    yield GateLeaseEnded("b", _V1)
    yield FenceReceipt("a", _V1, _WRITTEN)
    yield FenceReceipt("b", _V1)
    yield FenceTimedOut(_V1)
    yield Certified(_V1, 64, StopReason.FIRST_DIFFERENCE)
    yield SuccessorAdmitted(_V1, "request")
    yield RetentionEnded(_V1)
    yield Reclaimed("a", _V1)
    yield Reclaimed("b", _V1)
    yield NodeLost("b")
    yield RegistryLost()
    yield RegistryFound()
    yield Rebuilt(_V2, gates=(_LOCAL,))


def edges() -> frozenset[tuple[Phase, str, Phase]]:
    """Every (phase, event, phase after) that one change of a scope on two nodes can show.

    Event names carry the change where one decides, as ``Committed supersede``. Pairs that are
    absent are illegal, or leave no trace in the alphabet above.
    """
    return frozenset(edge for story in _STORIES for edge in _explore(tuple(_alphabet(story))))


def _explore(alphabet: tuple[Event, ...]) -> Iterator[tuple[Phase, str, Phase]]:
    start = ScopeState(ScopeKey("tenant", "scope"), "a")
    seen, queue = {start}, [start]
    while queue:
        state = queue.pop()
        for event in alphabet:
            if isinstance(event, ChangeRequested) and state.transitions:
                continue  # the same call again would only repeat the story
            try:
                after = step(state, event).state
            except IllegalTransition:
                continue
            yield state.phase, _name(event), after.phase
            if after not in seen and after.version != _V2:
                seen.add(after)
                queue.append(after)
        assert len(seen) < _STATES_MAX, "the alphabet is not finite any more"


def _name(event: Event) -> str:
    change = getattr(event, "change", None)
    suffix = f" {change.value}" if isinstance(change, Change) else ""
    return type(event).__name__ + suffix

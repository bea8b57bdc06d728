"""The state machine's tables: illegal pairs, late events, idempotence, edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol_story import LOCAL, REMOTE, V0, V1, V2, Story

from retire.protocol import effects as do
from retire.protocol.contract import Contract, StopReason
from retire.protocol.edges import edges
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Certified,
    Change,
    ChangeRequested,
    Committed,
    FenceReceipt,
    FenceTimedOut,
    GateAcked,
    NodeLost,
    Reclaimed,
    Registered,
    RetentionEnded,
    SuccessorAdmitted,
)
from retire.protocol.stages import settle
from retire.protocol.state import Phase
from retire.protocol.transitions import step

ILLEGAL = [
    ("unknown", ChangeRequested("c", Change.SUPERSEDE, V0, "k")),
    ("unknown", GateAcked("a/api", V1)),
    ("unknown", Committed("c", Change.SUPERSEDE, V0, V1, 1)),
    ("unknown", NodeLost("b")),
    ("current", Committed("nobody", Change.SUPERSEDE, V0, V1, 1)),
    ("current", ChangeRequested("c", Change.REBUILD, V0, "k")),
    ("current", Certified(V1, 0, StopReason.FRONTIER)),
    ("current", SuccessorAdmitted(V1, "r")),
    ("current", FenceTimedOut(V1)),
    ("asked", ChangeRequested("c", Change.SUPERSEDE, V0, "k")),
    ("asked", Committed("c", Change.SUPERSEDE, V0, V2, 1)),
    ("asked", Committed("c", Change.CANCEL, V0, V1, 1)),
    ("advancing", Certified(V1, 0, StopReason.FRONTIER)),
    ("advancing", SuccessorAdmitted(V1, "r")),
    ("advancing", Reclaimed("a", V1)),
    ("aligning", SuccessorAdmitted(V1, "r")),
    ("aligning", Reclaimed("a", V1)),
    ("retained", Certified(V1, 0, StopReason.FRONTIER)),
    ("retained", SuccessorAdmitted(V1, "r")),
]


def scene(name: str) -> Story:
    """A story told up to the named point."""
    s = Story()
    match name:
        case "unknown":
            s.state = replace(s.state, version=None)
        case "asked":
            s.ask("c", Change.SUPERSEDE, V0)
        case "advancing" | "aligning" | "retained":
            s.commit("c", Change.SUPERSEDE, V0)
    if name in ("aligning", "retained"):
        s.fence(V1)
    if name == "retained":
        s.feed(RetentionEnded(V1))
    return s


@pytest.mark.parametrize(("where", "event"), ILLEGAL, ids=lambda x: str(x)[:40])
def test_illegal_pairs_raise_and_change_nothing(where: str, event) -> None:
    """The error names the event, the phase and the version."""
    state = scene(where).state
    copy = replace(state)
    with pytest.raises(IllegalTransition, match=type(event).__name__):
        step(state, event)
    assert state == copy


def test_events_of_what_is_over_have_no_effect() -> None:
    """Duplicates that arrive when the transition is gone."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    s.resume(V1)
    s.reclaim(V1)
    before = s.state
    late = [
        GateAcked("b", V1),
        FenceReceipt("b", V1),
        FenceTimedOut(V1),
        Certified(V1, 64, StopReason.FRONTIER),
        SuccessorAdmitted(V1, "successor"),
        RetentionEnded(V1),
        Reclaimed("b", V1),
        Registered(V1),
    ]
    for event in late:
        assert s.feed(event) == [] and s.state == before


def test_settling_twice_orders_nothing_twice() -> None:
    """``settle`` is idempotent in every state of a long story."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    for act in (s.fence, s.resume):
        act(V1)
        assert settle(s.state) == (s.state, ())


def test_a_record_ahead_of_us_is_taken_like_a_commit() -> None:
    """A join or snapshot shows a later version than the stream has brought."""
    s = Story()
    effects = s.feed(Registered(V2, 7, gates=(LOCAL,)))
    assert s.kinds(effects)[0] == "StoreVersion" and s.state.version == V2


def test_the_contract_travels_to_the_fence() -> None:
    """The caller's ttl is what the retention timer gets."""
    s = Story()
    s.ask("c", Change.SUPERSEDE, V0, Contract(ttl_s=7))
    s.feed(Committed("c", Change.SUPERSEDE, V0, V1, 1, gates=(LOCAL, REMOTE)))
    assert do.WatchRetention(V1, 7) in s.fence(V1)


def test_the_edges_are_the_tables() -> None:
    """What step really does, phase by phase, against the tables at the top of transitions.py."""
    found = edges()
    moves = {(a, e) for a, e, b in found if a is not b}
    assert {a for a, _, _ in found} == set(Phase)
    assert {b for a, e, b in found if e == "SuccessorAdmitted"} >= {Phase.RECLAIMING}
    assert {a for a, e in moves if e == "Certified"} == {Phase.ALIGNING}
    assert {a for a, e in moves if e == "SuccessorAdmitted"} == {Phase.RESUMING}
    assert {a for a, e in moves if e in ("GateAcked", "GateLeaseEnded")} == {Phase.ADVANCING}
    assert {a for a, e in moves if e in ("FenceReceipt", "FenceTimedOut")} == {Phase.FENCING}
    assert {a for a, e in moves if e == "Reclaimed"} == {Phase.RECLAIMING}
    assert {b for a, e, b in found if a is Phase.CANCELLED and e.startswith("Observed")} == set()
    assert not {e for _, e in moves if e in ("RegistryLost", "RegistryFound", "CommitRefused")}

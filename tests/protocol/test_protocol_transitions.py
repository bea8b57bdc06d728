"""The state machine, told as stories: who is answered what, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol_story import BOTH, LOCAL, V0, V1, V2, V3, Story, part

from retire.protocol import effects as do
from retire.protocol.contract import GateOutcome, StopReason
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Admission,
    Certified,
    Change,
    CommitRefused,
    Committed,
    FenceReceipt,
    FenceTimedOut,
    GateAcked,
    GateLeaseEnded,
    NodeLost,
    Rebuilt,
    Refusal,
    RegistryFound,
    RegistryLost,
    RetentionEnded,
    SuccessorAdmitted,
    VersionObserved,
)
from retire.protocol.stages import RETIRED_MAX
from retire.protocol.state import Phase
from retire.protocol.transitions import step
from retire.protocol.versions import Version


def test_one_supersede_from_end_to_end() -> None:
    """Every phase in order, the effects of each step, and nothing left at the end."""
    s = Story()
    ask = s.ask("c", Change.SUPERSEDE, V0)
    assert ask == [do.CommitToRegistry("c", Change.SUPERSEDE, V0, "key-c", "")]
    committed = s.feed(Committed("c", Change.SUPERSEDE, V0, V1, 1, generation=5, gates=BOTH))
    assert s.kinds(committed) == [
        "StoreVersion",
        "SwitchGates",
        "FenceEngine",
        "WatchFence",
        "AnswerCommitted",
        "WatchLease",
        "WatchFence",
    ]
    assert s.state.phase is Phase.ADVANCING
    assert s.feed(GateAcked("a/api", V1)) == [do.ReportAck(V1)]
    last = s.feed(GateAcked("b", V1))
    outcomes = (("a/api", GateOutcome.ACKED), ("b", GateOutcome.ACKED))
    assert last == [do.Acknowledge(("c",), V0, V1, outcomes)]
    assert s.state.phase is Phase.FENCING
    assert s.feed(FenceReceipt("a", V1, (part(),))) == []
    fenced = s.feed(FenceReceipt("b", V1))
    assert fenced == [do.AnswerFenced(("c",), V1, (part(),), ()), do.WatchRetention(V1, 30.0)]
    assert s.state.phase is Phase.ALIGNING
    assert s.feed(Certified(V1, 64, StopReason.FIRST_DIFFERENCE)) == []
    assert s.state.phase is Phase.RESUMING
    resumed = s.feed(SuccessorAdmitted(V1, "r"))
    assert resumed == [do.ReclaimNode("a", V1), do.ReclaimNode("b", V1)]
    assert s.state.phase is Phase.RECLAIMING
    assert s.reclaim(V1) == []
    assert s.state.phase is Phase.CURRENT
    assert not s.state.transitions and not s.state.accounts and not s.state.receipts


def test_fence_receipts_before_the_last_gate_are_answered_after_it() -> None:
    """The caller hears committed, unpublishable, fenced, each once, in this order."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    early = s.feed(FenceReceipt("a", V1), FenceReceipt("b", V1), GateAcked("a/api", V1))
    assert s.kinds(early) == ["ReportAck"]
    last = s.feed(GateLeaseEnded("b", V1))
    assert s.kinds(last) == ["Acknowledge", "AnswerFenced", "WatchRetention"]


def test_a_lease_that_ended_accounts_for_its_gate() -> None:
    """And the answer says so."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    effects = s.feed(GateAcked("a/api", V1), GateLeaseEnded("b", V1))
    ack = next(e for e in effects if isinstance(e, do.Acknowledge))
    assert dict(ack.gates) == {"a/api": GateOutcome.ACKED, "b": GateOutcome.LEASE_ENDED}


def test_an_ack_of_a_lower_version_does_not_count() -> None:
    """Only what a gate can no longer publish below matters; a higher one counts."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    assert s.feed(GateAcked("b", V0), GateAcked("a/api", V1)) == [do.ReportAck(V1)]
    assert s.kinds(s.feed(GateAcked("b", V3))) == ["Acknowledge"]


def test_a_single_node_without_gates_is_unpublishable_at_once() -> None:
    """No API process, no other node: nobody could publish."""
    s = Story()
    effects = s.commit("c", Change.SUPERSEDE, V0, gates=())
    assert "Acknowledge" in s.kinds(effects)


def test_refusals_reach_their_caller_and_change_nothing() -> None:
    """A stale expected version, an unknown key, no answer: as the registry said."""
    s = Story()
    for refusal in Refusal:
        s.ask("c", Change.SUPERSEDE, V0)
        before = replace(s.state, pending=())
        assert s.feed(CommitRefused("c", refusal, V2)) == [do.Refuse("c", refusal, V2)]
        assert s.state == before


def test_while_the_registry_is_lost_commits_are_refused_and_current_stays_current() -> None:
    """503 at once; when it is found again, the next call goes through (C5)."""
    s = Story()
    s.feed(RegistryLost())
    refused = [do.Refuse("c", Refusal.UNAVAILABLE, V0)]
    assert s.ask("c", Change.SUPERSEDE, V0) == refused
    assert (s.state.version, s.state.phase) == (V0, Phase.CURRENT)
    s.feed(RegistryFound())
    assert s.kinds(s.ask("c", Change.SUPERSEDE, V0)) == ["CommitToRegistry"]


def test_a_rebuild_raises_the_term_and_refuses_what_was_pending() -> None:
    """Callers retry; a late answer of the old registry is ignored; lower terms stay out."""
    s = Story()
    s.ask("c", Change.SUPERSEDE, V0)
    s.feed(RegistryLost())
    rebuilt = Version(2, 0)
    effects = s.feed(Rebuilt(rebuilt, gates=(LOCAL,)))
    assert s.kinds(effects)[:2] == ["StoreVersion", "SwitchGates"]
    assert do.Refuse("c", Refusal.TERM_MISMATCH, rebuilt) in effects
    assert s.state.version == rebuilt and s.state.phase is Phase.ADVANCING
    before = s.state
    assert s.feed(Committed("c", Change.SUPERSEDE, V0, V1, 1, gates=BOTH)) == []
    assert s.feed(VersionObserved(Change.SUPERSEDE, Version(1, 9), 9)) == []
    assert s.state == before
    for term in (1, 2):
        with pytest.raises(IllegalTransition):
            step(s.state, Rebuilt(Version(term, 99)))


def test_pause_and_resume_keep_the_version() -> None:
    """Same authority; one answer; the newest of late and repeated events wins."""
    s = Story()
    s.ask("p", Change.PAUSE, V0)
    effects = s.feed(Committed("p", Change.PAUSE, V0, V0, 1, gates=BOTH))
    assert s.kinds(effects) == ["SwitchGates", "AnswerCommitted"]
    assert (s.state.version, s.state.phase) == (V0, Phase.PAUSED)
    s.feed(VersionObserved(Change.RESUME, V0, 2, gates=(LOCAL,)))
    assert s.feed(VersionObserved(Change.PAUSE, V0, 1, gates=(LOCAL,))) == []
    assert s.state.phase is Phase.CURRENT


def test_a_supersede_keeps_a_pause() -> None:
    """What is paused stays paused until it is resumed; the new version is current all the same."""
    s = Story()
    s.commit("p", Change.PAUSE, V0)
    s.commit("c", Change.SUPERSEDE, V0)
    assert s.state.admission is Admission.PAUSED and s.state.version == V1


def test_cancel_is_terminal_and_has_no_successor() -> None:
    """The version moves once more; then nothing can be certified, admitted or committed."""
    s = Story()
    effects = s.commit("c", Change.CANCEL, V0)
    fence = next(e for e in effects if isinstance(e, do.FenceEngine))
    assert fence.terminal
    s.fence(V1)
    for event in (Certified(V1, 0, StopReason.CONTRACT), SuccessorAdmitted(V1, "r")):
        with pytest.raises(IllegalTransition):
            step(s.state, event)
    s.reclaim(V1)
    assert s.state.phase is Phase.CANCELLED
    with pytest.raises(IllegalTransition):
        step(s.state, VersionObserved(Change.SUPERSEDE, V2, 9))
    assert s.kinds(s.ask("d", Change.SUPERSEDE, V1)) == ["CommitToRegistry"]  # to be refused there


def test_a_second_supersede_before_cleanup_keeps_the_first_ones_memory() -> None:
    """A chain: the intermediate version never emitted; its predecessor's pins wait with it."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    s.commit("d", Change.SUPERSEDE, V1)
    assert [t.to_version for t in s.state.transitions] == [V1, V2]
    assert s.feed(RetentionEnded(V1)) == []  # V2's successor may still want what V0 left
    assert "ReclaimNode" not in s.kinds(s.fence(V2))
    resumed = s.resume(V2)
    targets = [(e.node, e.version) for e in resumed if isinstance(e, do.ReclaimNode)]
    assert targets == [("a", V1), ("b", V1), ("a", V2), ("b", V2)]
    s.reclaim(V2)
    assert s.state.phase is Phase.CURRENT


def test_a_commit_overtaken_by_a_later_one_is_still_answered() -> None:
    """Our answer arrives when the next version is already known from the stream."""
    s = Story()
    s.ask("c", Change.SUPERSEDE, V0)
    s.feed(VersionObserved(Change.SUPERSEDE, V2, 2, gates=(LOCAL,)))
    effects = s.feed(Committed("c", Change.SUPERSEDE, V0, V1, 1, gates=BOTH))
    assert "StoreVersion" not in s.kinds(effects) and s.state.version == V2
    acks = s.feed(GateAcked("a/api", V2), GateAcked("b", V2))
    assert [(e.calls, e.to_version) for e in acks if isinstance(e, do.Acknowledge)] == [
        (("c",), V1)
    ]


def test_observed_versions_only_rise() -> None:
    """Late, repeated and reordered events of other committers."""
    s = Story()
    for epoch, expected in [(2, V2), (1, V2), (2, V2), (3, V3)]:
        s.feed(VersionObserved(Change.SUPERSEDE, Version(1, epoch), epoch, gates=(LOCAL,)))
        assert s.state.version == expected


def test_an_observer_acks_and_fences_but_answers_nobody() -> None:
    """A node that did not commit: revoke, switch, fence, report."""
    s = Story()
    observed = s.feed(VersionObserved(Change.SUPERSEDE, V1, 1, gates=(LOCAL,)))
    assert s.kinds(observed) == ["StoreVersion", "SwitchGates", "FenceEngine", "WatchFence"]
    rest = s.feed(GateAcked("a/api", V1), FenceReceipt("a", V1), RetentionEnded(V1))
    assert s.kinds(rest) == ["ReportAck", "AnswerFenced", "WatchRetention", "ReclaimNode"]
    fenced = next(effect for effect in rest if isinstance(effect, do.AnswerFenced))
    assert fenced.calls == (), "for the receipt of a scope that another one's commit moved"


def test_a_replay_is_answered_when_its_gates_are_accounted_for_again() -> None:
    """Long after the first call: the local gates are asked again, nobody fences twice."""
    s = Story(V1)
    s.ask("again", Change.SUPERSEDE, V0)
    replay = Committed("again", Change.SUPERSEDE, V0, V1, 1, gates=BOTH, replayed=True)
    effects = s.feed(replay)
    assert s.kinds(effects) == ["AnswerCommitted", "SwitchGates", "WatchLease", "WatchFence"]
    done = s.feed(GateAcked("a/api", V1), GateLeaseEnded("b", V1))
    assert "Acknowledge" in s.kinds(done) and "AnswerFenced" in s.kinds(done)


def test_two_calls_with_one_key_share_a_transition() -> None:
    """The second joins the first: both are answered, one fence."""
    s = Story()
    s.ask("c", Change.SUPERSEDE, V0)
    s.ask("d", Change.SUPERSEDE, V0)
    s.feed(Committed("c", Change.SUPERSEDE, V0, V1, 1, gates=BOTH))
    second = s.feed(Committed("d", Change.SUPERSEDE, V0, V1, 1, gates=BOTH, replayed=True))
    assert "FenceEngine" not in s.kinds(second)
    acks = [e for e in s.fence(V1) if isinstance(e, do.Acknowledge)]
    assert [a.calls for a in acks] == [("c", "d")]


def test_a_node_whose_receipt_is_late_is_missing_not_forgotten() -> None:
    """The successor starts without it; this node's own memory waits for its writers."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.feed(GateAcked("a/api", V1), GateAcked("b", V1))
    answered = s.feed(FenceTimedOut(V1))
    assert do.AnswerFenced(("c",), V1, (), ("a", "b")) in answered
    with pytest.raises(IllegalTransition):
        step(s.state, Certified(V1, 64, StopReason.FRONTIER))
    assert s.resume(V1, tokens=0) == []
    assert s.feed(FenceReceipt("a", V1, (part(),))) == [do.ReclaimNode("a", V1)]


def test_a_lost_node_voids_its_memory_but_not_its_gates() -> None:
    """UNPUBLISHABLE still waits for the lease; the certificate may come from the others."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.feed(GateAcked("a/api", V1), FenceReceipt("a", V1, (part(),)))
    assert s.feed(NodeLost("b")) == []
    assert s.state.phase is Phase.ADVANCING
    assert s.kinds(s.feed(GateLeaseEnded("b", V1)))[:2] == ["Acknowledge", "AnswerFenced"]
    assert s.kinds(s.resume(V1)) == ["ReclaimNode"]


def test_what_a_lost_node_had_reported_certifies_nothing() -> None:
    """Its receipt came, then its engine went: cold, or from the others."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    s.feed(NodeLost("b"))
    with pytest.raises(IllegalTransition):
        step(s.state, Certified(V1, 64, StopReason.FRONTIER, node="b"))
    s.feed(Certified(V1, 64, StopReason.FRONTIER, node="a"))
    assert s.state.phase is Phase.RESUMING


def test_an_open_writer_certifies_nothing() -> None:
    """A receipt that is not closed allows a cold successor only."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0, gates=())
    s.feed(FenceReceipt("a", V1, (part(closed=False),)))
    with pytest.raises(IllegalTransition):
        step(s.state, Certified(V1, 64, StopReason.FRONTIER))
    s.feed(Certified(V1, 0, StopReason.FRONTIER))
    assert s.state.phase is Phase.RESUMING


def test_a_burst_of_revisions_stays_bounded() -> None:
    """100 versions whose memory is never reported free: the chain does not grow with them."""
    s = Story()
    version = V0
    for n in range(100):
        s.commit(f"c{n}", Change.SUPERSEDE, version)
        version = version.next_epoch()
        s.fence(version)
        s.resume(version)
    assert s.state.version == Version(1, 100) and len(s.state.transitions) <= RETIRED_MAX + 1
    s.reclaim(version)
    assert s.state.phase is Phase.CURRENT


def test_a_burst_without_successors_stays_bounded() -> None:
    """100 versions that nobody ran under: none waits in the chain for a successor of its own."""
    s = Story()
    version = V0
    for n in range(100):
        s.commit(f"c{n}", Change.SUPERSEDE, version)
        version = version.next_epoch()
        s.fence(version)
    assert s.state.version == Version(1, 100) and len(s.state.transitions) <= RETIRED_MAX + 1
    s.resume(version)
    s.reclaim(version)
    assert s.state.phase is Phase.CURRENT

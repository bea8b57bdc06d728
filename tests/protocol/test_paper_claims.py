"""One test per claim of the paper's sections 5 and 6 that the core decides, in its order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol_certificates import FACTS, KEY_BYTES, PART, certificate
from protocol_story import V0, V1, V2, Story, part

from retire.protocol import effects as do
from retire.protocol.alignment import KvGroup, align, cold, frontier_tokens
from retire.protocol.certificates import certify, verify
from retire.protocol.contract import Contract, Equivalence, Inherit, StopReason
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Certified,
    Change,
    FenceReceipt,
    GateAcked,
    RetentionEnded,
    SuccessorAdmitted,
    VersionObserved,
)
from retire.protocol.gate import may_publish
from retire.protocol.state import Phase
from retire.protocol.transitions import step
from retire.protocol.versions import Version

GOOD = certify(certificate(), KEY_BYTES)


def test_5_revoke_first_preserve_second() -> None:
    """Section 5: "revoke first, preserve second": the mailbox is written before anything else."""
    s = Story()
    committed = s.commit("c", Change.SUPERSEDE, V0)
    assert isinstance(committed[0], do.StoreVersion)
    preserving = [e for e in committed if isinstance(e, do.FenceEngine)]
    assert committed.index(preserving[0]) > 0


def test_5_one_current_version_per_scope_monotonically_increasing() -> None:
    """Section 5: "one current version per runtime-selected scope", a monotonic epoch."""
    s = Story(V1)
    for version in (V2, V0, V1, V2):
        s.feed(VersionObserved(Change.SUPERSEDE, version, version.epoch))
    assert s.state.version == V2


def test_5_publication_checks_the_current_epoch() -> None:
    """Section 5: every frame carries the identity and is checked against the current epoch."""
    for frame, allowed in ((V0, False), (V1, True), (V2, False)):
        assert may_publish(known=V1, frame=frame, now_ns=0, deadline_ns=1) is allowed


def test_5_installation_checks_the_generation() -> None:
    """Section 5: KV records carry a generation; "installation checks that generation"."""
    assert verify(GOOD, FACTS, signing_key=KEY_BYTES) is None
    other = replace(FACTS, generation=FACTS.generation + 1)
    assert verify(GOOD, other, signing_key=KEY_BYTES) is StopReason.GENERATION


def test_5_1_current_version_publication() -> None:
    """Section 5.1: acknowledged only when no gate can publish the old version any more."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    first = s.feed(GateAcked("a/api", V1))
    assert not any(isinstance(e, do.Acknowledge) for e in first)
    assert any(isinstance(e, do.Acknowledge) for e in s.feed(GateAcked("b", V1)))


@pytest.mark.parametrize(
    "facts",
    [
        {"prompt": (9, *FACTS.prompt[1:])},
        {"fingerprint": "another model"},
        {"generation": 0},
        {"numerical_mode": "batch-invariant"},
    ],
)
def test_5_1_versioned_handoff_or_recompute(facts: dict) -> None:
    """Section 5.1: prefix, configuration and generation must match; "otherwise [it] recomputes"."""
    assert verify(GOOD, replace(FACTS, **facts), signing_key=KEY_BYTES) is not None


def test_5_1_versioned_handoff_needs_a_closed_writer() -> None:
    """Section 5.1: "its old writer is closed"."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0, gates=())
    s.feed(FenceReceipt("a", V1, (part(closed=False),)))
    with pytest.raises(IllegalTransition):
        step(s.state, Certified(V1, 64, StopReason.FRONTIER))


def test_5_1_retired_state_isolation() -> None:
    """Section 5.1: nothing is recycled on a node whose old writers are not known to be closed."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0, gates=())
    early = s.feed(RetentionEnded(V1))
    assert early == []
    late = s.feed(FenceReceipt("a", V1, (part(),)))
    assert any(isinstance(e, do.ReclaimNode) for e in late)


def test_5_1_the_contract_selects_the_comparison() -> None:
    """Section 5.1: "the execution contract selects the required output comparison"."""
    s = Story()
    contract = Contract(equivalence=Equivalence.BATCH_INVARIANT, inherit=Inherit.NEVER)
    s.ask("c", Change.SUPERSEDE, V0, contract)
    assert s.state.pending[0].contract == contract


def test_5_1_a_cold_successor_bypasses_pinning() -> None:
    """Section 5.1: "if no reuse is profitable, a cold successor": zero certified tokens resume."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    assert s.kinds(s.resume(V1, tokens=0)) == ["ReclaimNode", "ReclaimNode"]


def test_5_2_the_five_stages_in_their_order() -> None:
    """Section 5.2: ADVANCE, FENCE, ALIGN, RESUME, RECLAIM."""
    s, phases = Story(), []
    s.commit("c", Change.SUPERSEDE, V0)
    phases.append(s.state.phase)
    s.feed(GateAcked("a/api", V1), GateAcked("b", V1))
    phases.append(s.state.phase)
    s.feed(FenceReceipt("a", V1, (part(),)), FenceReceipt("b", V1))
    phases.append(s.state.phase)
    s.feed(Certified(V1, 64, StopReason.FRONTIER))
    phases.append(s.state.phase)
    s.feed(SuccessorAdmitted(V1, "r"))
    phases.append(s.state.phase)
    assert phases == [
        Phase.ADVANCING,
        Phase.FENCING,
        Phase.ALIGNING,
        Phase.RESUMING,
        Phase.RECLAIMING,
    ]


def test_5_2_close_writers_before_inheritance() -> None:
    """Section 5.2: "revoke before publication, close writers before inheritance"."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    for act in (lambda: None, lambda: s.feed(GateAcked("a/api", V1), GateAcked("b", V1))):
        act()
        with pytest.raises(IllegalTransition):
            step(s.state, Certified(V1, 64, StopReason.FRONTIER))
    s.feed(FenceReceipt("a", V1, (part(),)), FenceReceipt("b", V1))
    s.feed(Certified(V1, 64, StopReason.FRONTIER))


def test_5_3_resume_before_reclamation() -> None:
    """Section 5.3: the successor runs, and is revised again, while old owners drain."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    s.resume(V1)  # nothing is reclaimed yet
    s.commit("d", Change.SUPERSEDE, V1)
    s.fence(V2)
    s.resume(V2)
    assert s.state.version == V2 and s.state.phase is Phase.RECLAIMING


def test_5_3_the_prefix_stays_pinned_until_adoption() -> None:
    """Section 5.3: no reclaim order before the successor was admitted or none will come."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    certified = s.feed(Certified(V1, 64, StopReason.FRONTIER))
    assert not any(isinstance(e, do.ReclaimNode) for e in certified)
    assert any(isinstance(e, do.ReclaimNode) for e in s.feed(SuccessorAdmitted(V1, "r")))


def test_6_1_the_delivery_check_rejects_a_superseded_frame() -> None:
    """Section 6.1: a frame superseded "while it waited in the queue" fails the last check."""
    checked_when_queued = may_publish(known=V0, frame=V0, now_ns=0, deadline_ns=1)
    checked_when_delivered = may_publish(known=V1, frame=V0, now_ns=0, deadline_ns=1)
    assert checked_when_queued and not checked_when_delivered


def test_6_1_minimum_frontier_across_participants() -> None:
    """Section 6.1: limited "to the minimum writer-complete frontier across participants"."""
    parts = [part("a", 96), part("b", 64), part("c", 80)]
    expected = [(p.node, 0, 0, 0) for p in parts]
    assert frontier_tokens(parts, expected) == 64
    assert frontier_tokens(parts, [*expected, ("d", 0, 0, 0)]) == 0


def test_6_1_rounded_to_a_boundary_of_every_group() -> None:
    """Section 6.1: "rounds it to a block boundary shared by every KV group"."""
    groups = [KvGroup(16, ((0, 9),)), KvGroup(24, ((0, 9),))]
    old = list(range(140))
    assert align(old, [*old, 0], frontier=140, groups=groups).certified_tokens == 96


def test_6_1_the_papers_prefixes() -> None:
    """Appendix A.3: common prefixes of 4080 and 4095 tokens both certify 4080 at blocks of 16."""
    old = list(range(4200))
    for common in (4080, 4095):
        new = [*old[:common], *([7] * 100)]
        result = align(old, new, frontier=4200, groups=[KvGroup(16, ((0, 262),))])
        assert (result.inheritable_tokens, result.certified_tokens) == (common, 4080)


def test_6_1_a_transfer_for_a_retired_execution_is_rejected() -> None:
    """Section 6.1: installed "only if its target version and generation still match"."""
    later = replace(FACTS, version=FACTS.version.next_epoch())
    assert verify(GOOD, later, signing_key=KEY_BYTES) is StopReason.GENERATION
    rebuilt = replace(FACTS, version=Version(2, FACTS.version.epoch))
    assert verify(GOOD, rebuilt, signing_key=KEY_BYTES) is StopReason.GENERATION


def test_6_1_a_failed_certificate_selects_a_cold_successor() -> None:
    """Section 6.1: "a failed certificate selects a cold, fresh-generation successor"."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.fence(V1)
    s.feed(Certified(V1, 0, StopReason.GENERATION), SuccessorAdmitted(V1, "cold"))
    assert s.state.phase is Phase.RECLAIMING


def test_a_3_a_zero_quota_selects_cold_recovery() -> None:
    """Appendix A.3: "every case selects cold recovery with zero inherited tokens"."""
    old = list(range(64))
    matched = align(old, [*old, 1], frontier=64, groups=[KvGroup(16, ((0, 4),))])
    refused = cold(matched, StopReason.QUOTA)
    assert (matched.certified_tokens, refused.certified_tokens) == (64, 0)


def test_a_1_complete_participant_agreement() -> None:
    """Appendix A.1: "complete participant agreement for distributed transitions"."""
    s = Story()
    s.commit("c", Change.SUPERSEDE, V0)
    s.feed(GateAcked("a/api", V1), GateAcked("b", V1), FenceReceipt("a", V1, (part(),)))
    assert s.state.phase is Phase.FENCING
    answered = s.feed(FenceReceipt("b", V1, (part("b"),)))
    fenced = next(e for e in answered if isinstance(e, do.AnswerFenced))
    assert [p.node for p in fenced.participants] == ["a", "b"]
    assert PART.closed


def test_3_pause_keeps_authority_and_cancel_has_no_successor() -> None:
    """Section 3.1: a pause "retains the same authority"; a cancellation "has no successor"."""
    paused, cancelled = Story(), Story()
    paused.commit("p", Change.PAUSE, V0)
    assert paused.state.version == V0
    cancelled.commit("c", Change.CANCEL, V0)
    cancelled.fence(V1)
    with pytest.raises(IllegalTransition):
        step(cancelled.state, SuccessorAdmitted(V1, "r"))

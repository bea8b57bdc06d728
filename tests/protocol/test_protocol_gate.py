"""The gate and the lease: property tests with real times, which the model leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retire.protocol.errors import IllegalTransition, InvalidField
from retire.protocol.gate import (
    DRIFT_MARGIN,
    Applied,
    LeaseDropped,
    LeaseState,
    RenewalSent,
    Renewed,
    TenantJoined,
    TenantLeft,
    deadline_ns,
    may_publish,
    wait_s,
)
from retire.protocol.versions import Version

NS = 1_000_000_000
versions = st.builds(Version, st.integers(0, 2), st.integers(0, 2))


@given(st.none() | versions, versions, st.integers(0, 10), st.integers(0, 10))
def test_publish_means_current_and_in_time(known, frame, now, deadline) -> None:
    """Both conditions, and nothing else."""
    allowed = may_publish(known=known, frame=frame, now_ns=now, deadline_ns=deadline)
    assert allowed == (known is not None and known == frame and now < deadline)


@given(
    lease_s=st.floats(0.1, 60),
    travel_s=st.floats(0, 5),
    rate=st.floats(1 - DRIFT_MARGIN / 2, 1 + DRIFT_MARGIN / 2),
    commit_share=st.floats(0, 1),
)
def test_a_committer_outwaits_every_gate(lease_s, travel_s, rate, commit_share) -> None:
    """Whatever the travel time and within the drift: the gate closes before the committer goes on.

    Real time is the committer's clock. The node sends at 0, the registry grants at ``travel_s`` and
    commits at some moment of the lease; the node's clock runs at ``rate``.
    """
    closes_at = deadline_ns(0, lease_s) / NS / rate
    committed_at = travel_s + commit_share * lease_s
    left_s = travel_s + lease_s - committed_at
    assert committed_at + wait_s(left_s) >= min(closes_at, travel_s + lease_s) - 1e-6
    assert closes_at <= travel_s + lease_s + 1e-6


def test_without_the_margin_a_slow_clock_publishes_too_long() -> None:
    """Negative control of the property above: no margin, and a node 2 % slow is past the lease."""
    assert deadline_ns(0, 10, drift=0.0) / NS / 0.98 > 10
    assert deadline_ns(0, 10) / NS / 0.98 <= 10


@pytest.mark.parametrize(("lease_s", "drift"), [(-1, 0.05), (1, 1.0), (1, -0.1)])
def test_impossible_leases_are_refused(lease_s: float, drift: float) -> None:
    """Bad configuration does not become a deadline."""
    with pytest.raises(InvalidField):
        deadline_ns(0, lease_s, drift=drift)


def held(*tenants: str) -> LeaseState:
    """A node that joined these tenants at sequence 0 and holds its first lease."""
    state = LeaseState()
    for tenant in tenants:
        state = state.step(TenantJoined(tenant, 0))
    return renew(state, 1, dict.fromkeys(tenants, 0))


def renew(state: LeaseState, at_s: int, sequences: dict[str, int]) -> LeaseState:
    return state.step(RenewalSent(at_s * NS)).step(Renewed(at_s * NS, 2.0, sequences))


def test_a_deadline_waits_until_every_commit_is_applied() -> None:
    """C5: caught up first, then stored; in every tenant."""
    state = renew(held("a", "b"), 2, {"a": 3, "b": 1})
    assert state.deadline_ns == deadline_ns(1 * NS, 2.0)
    state = state.step(Applied("a", 3))
    assert state.deadline_ns == deadline_ns(1 * NS, 2.0)
    assert state.step(Applied("b", 1)).deadline_ns == deadline_ns(2 * NS, 2.0)


def test_the_deadline_counts_from_before_sending() -> None:
    """The answer's arrival does not matter."""
    assert held("a").deadline_ns == deadline_ns(1 * NS, 2.0)


def test_a_tenant_that_joined_later_is_not_open_before_its_own_lease() -> None:
    """A committer of that tenant sees no lease of ours yet and would not wait for us."""
    state = held("a").step(TenantJoined("b", 5))
    assert state.can_open("a") and not state.can_open("b")
    state = renew(state, 2, {"a": 0})  # sent before the join reached the request
    assert not state.can_open("b")
    assert renew(state, 3, {"a": 0, "b": 5}).can_open("b")


def test_tenants_that_keep_joining_do_not_end_the_lease() -> None:
    """Every renewal is overtaken by a join; the open tenant's deadline rises all the same."""
    state = held("a")
    for second, tenant in enumerate("bcdefg", start=2):
        asked = dict.fromkeys(dict(state.applied), 0)
        sent = state.step(RenewalSent(second * NS)).step(TenantJoined(tenant, 0))
        state = sent.step(Renewed(second * NS, 2.0, asked))
        assert state.deadline_ns == deadline_ns(second * NS, 2.0)
        assert state.can_open("a") and not state.can_open(tenant)


def test_a_grant_without_an_open_tenant_is_not_taken() -> None:
    """A tenant with open scopes needs a lease of its own behind every deadline."""
    state = renew(held("a", "b"), 2, {"a": 0})
    assert state.deadline_ns == deadline_ns(1 * NS, 2.0)


def test_an_answer_to_a_dropped_renewal_opens_nothing() -> None:
    """After shutdown or a lost registry, late answers are ignored."""
    state = held("a").step(RenewalSent(2 * NS)).step(LeaseDropped())
    assert state.deadline_ns == 0 and not state.can_open("a")
    assert state.step(Renewed(2 * NS, 2.0, {"a": 0})).deadline_ns == 0


def test_answers_out_of_order_do_not_bring_back_an_older_deadline() -> None:
    """Only the newest answered renewal counts."""
    state = held("a").step(RenewalSent(2 * NS)).step(RenewalSent(3 * NS))
    state = state.step(Renewed(3 * NS, 2.0, {"a": 0})).step(Renewed(2 * NS, 2.0, {"a": 0}))
    assert state.deadline_ns == deadline_ns(3 * NS, 2.0)


def test_a_shorter_lease_binds_at_once() -> None:
    """The registry counts by it already, caught up or not."""
    state = held("a").step(RenewalSent(int(1.1 * NS)))
    state = state.step(Renewed(int(1.1 * NS), 0.5, {"a": 9}))
    assert state.deadline_ns == deadline_ns(int(1.1 * NS), 0.5)


def test_a_tenant_that_left_is_waited_for_no_more() -> None:
    """Its commits have no gate here."""
    state = renew(held("a", "b"), 2, {"a": 0, "b": 9}).step(TenantLeft("b"))
    assert state.deadline_ns == deadline_ns(2 * NS, 2.0) and not state.can_open("b")
    assert state.step(Applied("b", 9)) == state


def test_what_is_no_lease_event_is_refused() -> None:
    """The machine is closed."""
    with pytest.raises(IllegalTransition):
        held("a").step("renew")  # type: ignore[arg-type]


events = st.one_of(
    st.builds(TenantJoined, st.sampled_from("ab"), st.integers(0, 5)),
    st.builds(TenantLeft, st.sampled_from("ab")),
    st.builds(RenewalSent, st.integers(1, 9)),
    st.builds(
        Renewed,
        st.integers(1, 9),
        st.just(2.0),
        st.dictionaries(st.sampled_from("ab"), st.integers(0, 5)),
    ),
    st.builds(Applied, st.sampled_from("ab"), st.integers(0, 5)),
    st.just(LeaseDropped()),
)


@given(st.lists(events, max_size=25))
@settings(max_examples=300, deadline=None)
def test_any_order_of_events_keeps_the_rule(sequence: list) -> None:
    """A raised deadline was sent and granted, and every open tenant has a lease in it and had
    caught up with it."""
    state, granted = LeaseState(), {}
    for event in sequence:
        before, state = state, state.step(event)
        if isinstance(event, Renewed) and event.sent_ns in before.in_flight:
            granted[deadline_ns(event.sent_ns, 2.0)] = event.sequences
        if state.deadline_ns > before.deadline_ns:
            needed = granted[state.deadline_ns]
            applied = dict(state.applied)
            assert state.covered == applied.keys() & needed.keys()
            assert all(applied[tenant] >= needed[tenant] for tenant in state.covered)
            assert before.covered & applied.keys() <= needed.keys()

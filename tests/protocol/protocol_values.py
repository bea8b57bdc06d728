"""Hypothesis strategies for the protocol's values."""

from __future__ import annotations

from hypothesis import strategies as st

from retire.protocol.certificates import Certificate
from retire.protocol.contract import (
    Contract,
    Equivalence,
    Fence,
    FenceBranch,
    GateOutcome,
    GateResult,
    Inherit,
    Participant,
    PinLease,
    Receipt,
    RetiredRequest,
    StopReason,
    Tier,
)
from retire.protocol.versions import EPOCH_MAX, TERM_MAX, ScopeKey, Version

counts = st.integers(0, 2**40)
names = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12)
times = st.floats(0, 1e6, allow_nan=False)
versions = st.builds(Version, st.integers(0, TERM_MAX), st.integers(0, EPOCH_MAX))
keys = st.builds(
    ScopeKey, st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True), names
)
contracts = st.builds(
    Contract,
    st.sampled_from(Equivalence),
    st.sampled_from(Inherit),
    st.sampled_from(Tier),
    st.floats(0.001, 3600),
    st.none() | st.floats(0.001, 1e4),
)
participants = st.builds(Participant, names, names, counts, counts, counts, counts, st.booleans())
requests = st.builds(
    RetiredRequest,
    names,
    st.sampled_from(["queued", "prefill", "decode", "finished"]),
    counts,
    counts,
    st.none() | counts,
)
receipts = st.builds(
    Receipt,
    key=keys,
    from_version=versions,
    to_version=versions,
    stages_ms=st.dictionaries(names, times, max_size=3),
    gates=st.lists(
        st.builds(GateResult, names, st.sampled_from(GateOutcome), times), max_size=3
    ).map(tuple),
    participants=st.lists(participants, max_size=3).map(tuple),
    requests=st.lists(requests, max_size=3).map(tuple),
    residual_ms=st.none() | times,
    fence=st.none()
    | st.builds(Fence, branch=st.sampled_from(FenceBranch), predicted_ms=st.none() | times),
    frontier_tokens=counts,
    inheritable_tokens=counts,
    certified_tokens=counts,
    first_difference=st.none() | counts,
    stop_reason=st.none() | st.sampled_from(StopReason),
    pin=st.none() | st.builds(PinLease, counts, st.sampled_from(Tier), times, st.none() | counts),
    successor_request_id=st.none() | names,
    error=st.none() | st.dictionaries(names, names, max_size=2),
    trace_id=st.none() | names,
    replayed=st.booleans(),
    extra=st.dictionaries(names, counts, max_size=2),
)
digests = st.binary(min_size=32, max_size=32)
certificates = st.builds(
    Certificate,
    keys,
    versions,
    versions,
    counts,
    names,
    names,
    counts,
    digests,
    st.lists(st.lists(counts, max_size=4).map(tuple), max_size=2).map(tuple),
    st.lists(participants, max_size=2).map(tuple),
    counts,
    digests,
)

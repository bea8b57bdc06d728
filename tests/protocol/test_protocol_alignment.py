"""ALIGN against a dumb oracle, its reasons, its speed, and the bugs that the oracle must see."""

from __future__ import annotations

import time

import alignment_oracle as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_mutants import ALIGNMENT_MUTANTS, Mutant

from retire.protocol.alignment import (
    KvGroup,
    align,
    boundary_tokens,
    cold,
    common_prefix,
    frontier_tokens,
)
from retire.protocol.contract import Participant, StopReason
from retire.protocol.errors import InvalidField

FULL = KvGroup(4, ((0, 100),))


def part(frontier: int, *, tp: int = 0, group: int = 0, closed: bool = True) -> Participant:
    return Participant("n", "b", 0, tp, group, frontier, closed)


@st.composite
def groups_of(draw: st.DrawFn) -> KvGroup:
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    edges = sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
    held = tuple(zip(edges[::2], edges[1::2], strict=False))
    return KvGroup(size, held, draw(st.none() | st.integers(1, 20)))


@given(
    st.lists(st.integers(0, 1), max_size=60),
    st.lists(st.integers(0, 1), min_size=1, max_size=60),
    st.integers(0, 60),
    st.lists(groups_of(), min_size=1, max_size=3),
    st.integers(0, 60),
)
@settings(max_examples=300, deadline=None)
def test_align_agrees_with_the_oracle(old, new, frontier, groups, shared) -> None:
    """Prefix and certified length equal what trying every token and boundary gives."""
    new = old[:shared] + new
    result = align(old, new, frontier=frontier, groups=groups)
    assert result.inheritable_tokens == oracle.prefix(old, new)
    assert result.certified_tokens == oracle.certified(old, new, frontier, groups)
    differs = result.inheritable_tokens < min(len(old), len(new))
    assert result.first_difference == (result.inheritable_tokens if differs else None)


def test_the_grid_of_cases_has_no_disagreement() -> None:
    """The sound functions pass the grid that the planted bugs must fail."""
    assert oracle.disagreements() == 0
    assert check_frontier() and check_tamper()


def check_frontier() -> bool:
    """The minimum over participants; one that is missing or not closed makes it 0."""
    expected = {("n", 0, 0, 0), ("n", 0, 1, 0)}
    low = frontier_of(part(64), part(32, tp=1), expected) == 32
    missing = frontier_of(part(64), part(64), expected) == 0
    unclosed = frontier_of(part(64), part(64, tp=1, closed=False), expected) == 0
    return low and missing and unclosed


def frontier_of(a: Participant, b: Participant, expected: set) -> int:
    from retire.protocol import alignment

    return alignment.frontier_tokens([a, b], expected)


def check_tamper() -> bool:
    """A certificate signed under another boot's key is refused."""
    from protocol_certificates import FACTS, KEY_BYTES, OTHER_KEY, certificate

    from retire.protocol import certificates

    good = certificate()
    alien = certificates.certify(good, OTHER_KEY)
    return certificates.verify(alien, FACTS, signing_key=KEY_BYTES) is StopReason.GENERATION


@pytest.mark.parametrize("mutant", ALIGNMENT_MUTANTS, ids=lambda m: m.name)
def test_the_planted_bug_is_seen(mutant: Mutant) -> None:
    """Each bug makes the check that it is filed under fail."""
    with mutant.planted():
        sound = {
            "oracle": lambda: oracle.disagreements() == 0,
            "frontier": check_frontier,
            "tamper": check_tamper,
        }[mutant.rule]()
    assert not sound


@pytest.mark.parametrize(
    ("old", "new", "frontier", "groups", "tokens", "reason"),
    [
        (range(16), range(17), 16, [FULL], 16, StopReason.WHOLE_PROMPT),
        (range(16), range(16), 16, [FULL], 12, StopReason.BLOCK_BOUNDARY),
        (range(16), [*range(9), 99, 98], 16, [FULL], 8, StopReason.FIRST_DIFFERENCE),
        (range(16), range(17), 9, [FULL], 8, StopReason.FRONTIER),
        (range(16), range(30), 16, [FULL], 16, StopReason.FRONTIER),
        (range(16), range(17), 16, [FULL, KvGroup(4, ((0, 3),), 8)], 12, StopReason.WINDOW),
        ([], range(9), 0, [FULL], 0, StopReason.NO_PREDECESSOR),
        (range(16), range(17), 16, [], 0, StopReason.NO_PREDECESSOR),
    ],
)
def test_the_reason_names_what_bounds_the_result(old, new, frontier, groups, tokens, reason):
    """The first limit that decides the certified length is the one reported."""
    result = align(list(old), list(new), frontier=frontier, groups=groups)
    assert (result.certified_tokens, result.stop_reason) == (tokens, reason)


def test_two_groups_meet_at_their_least_common_multiple() -> None:
    """Block sizes 16 and 24 share boundaries every 48 tokens."""
    assert boundary_tokens([KvGroup(16, ()), KvGroup(24, ())]) == 48


def test_the_sliding_tail_of_a_real_predecessor() -> None:
    """A full and a 128-token sliding group, blocks of 32: of 300 written tokens 288, or none."""
    sliding = KvGroup(32, ((5, 9),), window=128)
    old = list(range(300))
    result = align(old, [*old, 1], frontier=300, groups=[KvGroup(32, ((0, 9),)), sliding])
    assert (result.certified_tokens, result.stop_reason) == (288, StopReason.BLOCK_BOUNDARY)
    short = KvGroup(32, ((6, 9),), window=128)
    result = align(old, [*old, 1], frontier=300, groups=[KvGroup(32, ((0, 9),)), short])
    assert (result.certified_tokens, result.stop_reason) == (0, StopReason.WINDOW)


def test_cold_keeps_the_match_and_certifies_nothing() -> None:
    """A quota or contract refusal still tells how much could have been inherited."""
    result = cold(align([1] * 8, [1] * 9, frontier=8, groups=[FULL]), StopReason.QUOTA)
    assert (result.inheritable_tokens, result.certified_tokens) == (8, 0)
    assert result.stop_reason is StopReason.QUOTA


def test_a_hundred_thousand_tokens_are_matched_by_slices() -> None:
    """Ten prefix searches over 100K tokens take less than one loop over every token would."""
    old = list(range(100_000))
    new = [*old[:99_990], *range(10)]
    start = time.process_time()
    for _ in range(10):
        assert common_prefix(old, new) == 99_990
    fast = time.process_time() - start
    start = time.process_time()
    oracle.prefix(old, new)
    assert fast / 10 < (time.process_time() - start) / 2


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: KvGroup(0, ()), "kv_group.block_size"),
        (lambda: KvGroup(4, (), 0), "kv_group.window"),
        (lambda: KvGroup(4, ((2, 1),)), "kv_group.held"),
        (lambda: KvGroup(4, ((0, 3), (2, 5))), "kv_group.held"),
    ],
)
def test_a_malformed_group_names_its_field(make, field: str) -> None:
    """A group that cannot exist is refused where it is made."""
    with pytest.raises(InvalidField, match=field.replace(".", r"\.")):
        make()


def test_frontier_of_nobody_is_zero() -> None:
    """No expected participant: nothing is known to be written."""
    assert frontier_tokens([part(10)], []) == 0

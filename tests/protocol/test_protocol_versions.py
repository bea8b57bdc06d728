"""Versions and names: order, words, text, limits."""

from __future__ import annotations

import protocol_values as values
import pytest
from hypothesis import given

from retire.protocol.errors import InvalidField
from retire.protocol.versions import EPOCH_MAX, TERM_MAX, ScopeKey, Version


@given(values.versions, values.versions)
def test_words_are_ordered_like_versions(a: Version, b: Version) -> None:
    """Comparing mailbox words is comparing versions; a higher term beats any epoch."""
    assert (a < b) == (a.packed() < b.packed()) == ((a.term, a.epoch) < (b.term, b.epoch))
    assert Version.unpack(a.packed()) == a and a.packed() < 2**64
    if a.term < b.term:
        assert a < b


def test_a_supersede_raises_the_epoch_only() -> None:
    """``next_epoch`` keeps the term."""
    assert Version(3, 4).next_epoch() == Version(3, 5)


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (TERM_MAX + 1, 0), (0, EPOCH_MAX + 1)])
def test_versions_outside_one_word_do_not_exist(pair: tuple[int, int]) -> None:
    """24 bits of term, 40 of epoch."""
    with pytest.raises(InvalidField, match=r"version\.(term|epoch)"):
        Version(*pair)


@pytest.mark.parametrize(
    ("tenant", "scope", "field"),
    [
        ("", "s", "tenant"),
        ("Acme", "s", "tenant"),
        ("a" * 64, "s", "tenant"),
        ("-a", "s", "tenant"),
        ("t", "", "scope"),
        ("t", "x" * 256, "scope"),
        ("t", "é" * 128, "scope"),
        ("t", "a\nb", "scope"),
        ("t", "\ud800", "scope"),
    ],
)
def test_bad_names_are_refused(tenant: str, scope: str, field: str) -> None:
    """A tenant is a DNS label, a scope 255 printable bytes."""
    with pytest.raises(InvalidField) as caught:
        ScopeKey(tenant, scope)
    assert caught.value.field == field and len(str(caught.value)) < 400

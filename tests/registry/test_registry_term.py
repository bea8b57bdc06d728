"""The term file: only forward, only by compare-and-set, never a guess."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from retire.protocol.errors import TermMismatch
from retire.protocol.versions import TERM_MAX
from retire.registry.term import TermFile, TermFileError, claim_term


def test_it_counts_and_persists(tmp_path):
    """0 before the first term; each advance is there for the next process."""
    path = tmp_path / "state" / "term"
    assert TermFile(path).current() == 0
    assert TermFile(path).advance(0) == 1
    assert TermFile(path).advance(1) == 2
    assert TermFile(path).current() == 2
    assert path.read_text() == "retire-term 1 2\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_it_moves_only_from_the_expected_term(tmp_path, expected):
    """A caller with another view changes nothing."""
    term = TermFile(tmp_path / "term")
    term.advance(0)
    term.advance(1)
    with pytest.raises(TermMismatch, match=f"the term is 2, not {expected}"):
        term.advance(expected)
    assert term.current() == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"2", b"retire-term 1 2", b"retire-term 1 -2\n", b"retire-term 2 2\n", b"\0" * 16,
     b"retire-term 1 2\nretire-term 1 3\n", b"retire-term 1 " + b"9" * 8 + b"\n", b"\xff\xfe"],
)  # fmt: skip
def test_a_corrupt_file_is_refused(tmp_path, content):
    """A torn, foreign or oversized file stops everything and is left as it is."""
    path = tmp_path / "term"
    TermFile(path).advance(0)
    path.write_bytes(content)
    for action in (TermFile(path).current, lambda: TermFile(path).advance(1)):
        with pytest.raises(TermFileError, match=r"is corrupt: .* plus one"):
            action()
    assert path.read_bytes() == content


def test_a_lost_file_is_not_a_new_one(tmp_path):
    """When the file is gone but had been there, the term is unknown, not 0."""
    path = tmp_path / "term"
    TermFile(path).advance(0)
    path.unlink()
    with pytest.raises(TermFileError, match="is missing, but .* shows there was one"):
        TermFile(path).current()
    with pytest.raises(TermFileError):
        claim_term(TermFile(path))


def test_an_unusable_path_is_named(tmp_path):
    """A directory in the way, or a parent that is a file."""
    (tmp_path / "term").mkdir()
    with pytest.raises(TermFileError, match="cannot be read"):
        TermFile(tmp_path / "term").current()
    (tmp_path / "file").write_text("")
    with pytest.raises(TermFileError, match="cannot be"):
        TermFile(tmp_path / "file" / "term").advance(0)


def test_claiming_the_first_term_happens_once(tmp_path):
    """Only the caller that made the first term may open an empty registry."""
    term = TermFile(tmp_path / "term")
    assert claim_term(term) == (1, True)
    assert claim_term(term) == (1, False)
    term.advance(1)
    assert claim_term(term) == (2, False)


def test_the_last_term_has_no_successor(tmp_path):
    """The limit is refused in words."""
    path = tmp_path / "term"
    TermFile(path).advance(0)
    path.write_text(f"retire-term 1 {TERM_MAX}\n")
    with pytest.raises(Exception, match="term must be at most"):
        TermFile(path).advance(TERM_MAX)


def race(path: Path, won) -> None:
    for _ in range(20):
        term = TermFile(path)
        current = term.current()
        try:
            won.append(term.advance(current))
        except TermMismatch:
            continue


def test_processes_that_race_get_different_terms(tmp_path):
    """Every successful advance of four processes returns another term, without a gap."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        won = manager.list()
        racers = [context.Process(target=race, args=(tmp_path / "term", won)) for _ in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        terms = sorted(won)
    assert terms == list(range(1, len(terms) + 1))
    assert TermFile(tmp_path / "term").current() == len(terms)

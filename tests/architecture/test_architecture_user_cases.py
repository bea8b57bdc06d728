"""``docs/user-cases.md``: every test it names exists, and every row names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = "docs/user-cases.md"
NAMED = re.compile(r"`(test_\w+(?:\.py)?|nothing_left|settled)`")


def rows(text: str) -> list[str]:
    """The rows of the page's tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| reported", "| ---"))]


def missing(text: str, files: list[Path]) -> set[str]:
    """Names on the page that no file defines."""
    defined: set[str] = set()
    for path in files:
        if path.suffix == ".py":
            defined.add(path.name)
            defined |= set(re.findall(r"def (\w+)\(", path.read_text()))
    return set(NAMED.findall(text)) - defined


def test_every_named_test_exists(files: list[Path], root: Path) -> None:
    """A renamed test must not leave a promise behind."""
    assert missing((root / PAGE).read_text(), files) == set()


def test_every_row_names_a_test(root: Path) -> None:
    """A kind without a test is not covered, and the page must not say that it is."""
    found = rows((root / PAGE).read_text())
    assert len(found) > 30
    assert [row for row in found if not NAMED.search(row)] == []


@pytest.mark.parametrize(
    ("text", "gone"),
    [("| x | y | `test_that_nobody_wrote` |", {"test_that_nobody_wrote"}), ("`other`", set())],
)
def test_a_missing_test_would_be_seen(files: list[Path], text: str, gone: set[str]) -> None:
    """Control of the first one."""
    assert missing(text, files) == gone

"""Overlap words: advice that names the stamp it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from retire.mailbox import MailboxView, MailboxWriter, Overlaps, SlotRef
from retire.protocol.versions import ScopeKey, Version


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mailbox"


def test_what_one_process_says_another_reads(path: Path) -> None:
    """Tokens come back for the stamp that they were said of, and for no other."""
    writer = MailboxWriter.create(path, capacity=8)
    slot = writer.open(ScopeKey("acme", "plan"), Version(1, 0), generation=1)
    said, read = Overlaps.attach(path, writable=True), Overlaps.attach(path)
    assert read.get(slot) is None
    said.put(slot, 0)
    assert read.get(slot) == 0
    said.put(slot, 7168)
    assert read.get(slot) == 7168
    assert read.get(SlotRef(slot.index, slot.tenure, slot.stamp + 1)) is None
    writer.detach()


def test_an_overlap_word_never_touches_a_gate(path: Path) -> None:
    """Writing every word of the region changes no stamp, and a gate stays as it was."""
    writer = MailboxWriter.create(path, capacity=8)
    slot = writer.open(ScopeKey("acme", "plan"), Version(1, 0), generation=1)
    writer.renew(2**62)
    view = MailboxView.attach(path)
    assert view.check(slot.index, slot.stamp)
    overlaps = Overlaps.attach(path, writable=True)
    for index in range(8):
        overlaps.put(SlotRef(index, 1, 2**64 - 1), 2**40)
    assert view.check(slot.index, slot.stamp)
    assert writer.find(ScopeKey("acme", "plan")) is not None
    with pytest.raises(IndexError):
        overlaps.put(SlotRef(8, 1, 1), 1)
    writer.detach()


def test_a_reader_cannot_write(path: Path) -> None:
    """The region is mapped read-only unless asked for."""
    writer = MailboxWriter.create(path, capacity=8)
    with pytest.raises(TypeError):
        Overlaps.attach(path).put(SlotRef(0, 1, 1), 1)
    writer.detach()

"""The gate check: who publishes, who does not, and in which order a check looks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from retire.mailbox import GateState, MailboxView, MailboxWriter, ProgressLines, SlotFlags, SlotRef
from retire.mailbox.progress import P_LAYER_DONE, RANKS_MAX
from retire.protocol.errors import CapacityExceeded, InvalidField, VersionConflict
from retire.protocol.versions import ScopeKey, Version

KEY = ScopeKey("acme", "plan")
V1, V2, V3 = Version(1, 1), Version(1, 2), Version(1, 3)


@pytest.fixture
def writer(path: Path, lease):
    """A mailbox of 128 slots whose lease is held."""
    writer = MailboxWriter.create(path, capacity=128)
    lease(writer)
    yield writer
    writer.detach()


@pytest.fixture
def view(writer: MailboxWriter):
    """A reader of that mailbox."""
    view = MailboxView.attach(str(writer.path))
    yield view
    view.detach()


def test_current_stamp_publishes_and_nothing_else_does(writer, view):
    """An open slot passes its own stamp; a neighbour's stamp, 0 and a guess fail."""
    ref, other = writer.open(KEY, V1), writer.open(ScopeKey("acme", "other"), V1)
    assert view.check(ref.index, ref.stamp)
    assert view.gate(ref) is GateState.OPEN
    for stamp in (0, other.stamp, ref.stamp + 1, ref.tenure):
        assert not view.check(ref.index, stamp)
    assert not view.check(other.index + 1, 0), "an empty slot holds 0, and 0 must not pass"


def test_advance_revokes_the_old_stamp_at_once(writer, view):
    """After advance returns, the old stamp is refused; the new one passes under the same tenure."""
    old = writer.open(KEY, V1)
    new = writer.advance(old.index, V2)
    assert view.gate(old) is GateState.STALE
    assert not view.check(old.index, old.stamp)
    assert view.check(new.index, new.stamp)
    assert (new.index, new.tenure) == (old.index, old.tenure)


def test_advance_to_the_same_version_changes_nothing(writer):
    """A duplicate of a commit must not close the successor's own gates."""
    ref = writer.open(KEY, V2)
    assert writer.advance(ref.index, V2) == ref
    assert writer.open(KEY, V2) == ref


def test_versions_never_go_down(writer):
    """advance asserts, open answers with a conflict; both leave the slot as it was."""
    ref = writer.open(KEY, V2)
    with pytest.raises(AssertionError, match=r"is at 1\.2, cannot go back to 1\.1"):
        writer.advance(ref.index, V1)
    with pytest.raises(VersionConflict, match=r"expected version 1\.1 is stale; current is 1\.2"):
        writer.open(KEY, V1)
    assert writer.find(KEY) == ref


def test_a_higher_term_with_a_lower_epoch_is_higher(writer, view):
    """After a rebuild 2.1 revokes 1.9 (lexicographic order in the packed word)."""
    old = writer.open(KEY, Version(1, 9))
    new = writer.advance(old.index, Version(2, 1))
    assert view.gate(old) is GateState.STALE
    assert view.gate(new) is GateState.OPEN


def test_close_and_reopen_takes_a_new_stamp(writer, view):
    """A closed slot publishes nothing; opened again, old refs stay refused."""
    old = writer.open(KEY, V1)
    writer.close(old.index)
    assert view.gate(old) is GateState.STALE
    assert writer.find(KEY) == SlotRef(old.index, old.tenure, 0)
    assert view.gate(SlotRef(old.index, old.tenure, 0)) is GateState.STALE
    assert view.current(old.index, old.tenure) is None
    new = writer.open(KEY, V1)
    assert view.gate(old) is GateState.STALE
    assert view.gate(new) is GateState.OPEN


def test_reused_slot_never_aliases(path: Path, lease):
    """100,000 reuses of one slot: no former ref passes, and no stamp or tenure comes twice."""
    writer = MailboxWriter.create(path, capacity=1)
    lease(writer)
    view = MailboxView.attach(path)
    stamps, tenures, first = set(), set(), writer.open(KEY, V1)
    previous = first
    for _ in range(100_000):
        writer.free(0)
        ref = writer.open(KEY, V1)
        assert not view.check(0, previous.stamp)
        assert view.check(0, ref.stamp)
        stamps.add(ref.stamp)
        tenures.add(ref.tenure)
        previous = ref
    assert len(stamps) == len(tenures) == 100_000
    assert not stamps & tenures
    assert view.gate(first) is GateState.STALE
    assert view.current(0, first.tenure) is None
    writer.detach()


def test_lease_closes_every_gate_and_a_renewal_opens_them(writer, view):
    """Past the deadline a current stamp is LEASE_EXPIRED, a stale one stays STALE."""
    old = writer.open(KEY, V1)
    new = writer.advance(old.index, V2)
    writer.renew(time.monotonic_ns())
    assert view.gate(new) is GateState.LEASE_EXPIRED
    assert view.gate(old) is GateState.STALE
    assert not view.check(new.index, new.stamp)
    assert view.lease_left_ns() <= 0
    writer.renew(time.monotonic_ns() + 10**12)
    assert view.check(new.index, new.stamp)
    assert 0 < view.lease_left_ns() <= 10**12


def test_a_check_that_stalls_over_commit_and_renewal_is_refused(writer):
    """The deadline is read before the stamp and the clock: no mix of an old stamp and a new lease.

    The clock is the last thing a check reads, so a stall is simulated there: while the check hangs,
    the lease ends, the commit is applied and the lease renewed.
    """
    ref = writer.open(KEY, V1)
    old_deadline = writer.deadline_ns

    def stalled_clock() -> int:
        writer.advance(ref.index, V2)
        writer.renew(old_deadline + 10**12)
        return old_deadline + 1

    view = MailboxView.attach(writer.path, now_ns=stalled_clock)
    assert not view.check(ref.index, ref.stamp)
    writer.renew(old_deadline)
    current = writer.find(KEY)
    assert current is not None
    writer.renew(old_deadline)
    assert view.gate(current) is GateState.LEASE_EXPIRED


def test_the_order_matters(writer):
    """Control for the stall above: a check that reads the deadline last lets the old stamp pass."""
    ref = writer.open(KEY, V1)
    old_deadline = writer.deadline_ns
    view = MailboxView.attach(writer.path)

    def stalled_clock() -> int:
        writer.advance(ref.index, V2)
        writer.renew(old_deadline + 10**12)
        return old_deadline + 1

    def wrong_check(index: int, stamp: int) -> bool:
        return view._stamps[index] == stamp and stalled_clock() < view._deadline[0]

    assert wrong_check(ref.index, ref.stamp)


def test_current_tells_version_flags_and_generation(writer, view):
    """w1..w5 as written, for the tenure that asks; nothing for another tenure."""
    ref = writer.open(KEY, V1, generation=7, flags=SlotFlags.PAUSED)
    now = view.current(ref.index, ref.tenure)
    assert now is not None
    assert (now.ref, now.version, now.generation, now.flags) == (ref, V1, 7, SlotFlags.PAUSED)
    writer.set_flags(ref.index, 0)
    writer.arm(ref.index, 12)
    moved = writer.advance(ref.index, V2, generation=8)
    now = view.current(ref.index, ref.tenure)
    assert now is not None
    assert (now.ref, now.version, now.generation) == (moved, V2, 8)
    assert (now.flags, now.stop_index) == (SlotFlags.ARMED, 12)
    assert view.current(ref.index, ref.tenure + 1) is None
    assert writer.advance(ref.index, V3).stamp != moved.stamp
    assert [slot.generation for slot in writer.slots()] == [8], "kept when not given"


def test_changed_tells_when_the_stamp_changed(writer, view):
    """Issue and close leave the time of the store; a duplicate commit and flags do not."""
    assert view.changed_ns(0) == 0
    before = time.monotonic_ns()
    ref = writer.open(KEY, V1)
    opened = view.changed_ns(ref.index)
    assert before <= opened <= time.monotonic_ns()
    writer.advance(ref.index, V1)
    writer.set_flags(ref.index, SlotFlags.PAUSED)
    assert view.changed_ns(ref.index) == opened
    writer.advance(ref.index, V2)
    advanced = view.changed_ns(ref.index)
    assert advanced > opened
    writer.close(ref.index)
    assert view.changed_ns(ref.index) > advanced


def test_flags_never_close_a_gate(writer, view):
    """Pause keeps authority (design, section 3)."""
    ref = writer.open(KEY, V1)
    for flags in (SlotFlags.PAUSED, SlotFlags.ARMED, SlotFlags.CANCELLED):
        writer.set_flags(ref.index, flags)
        assert view.check(ref.index, ref.stamp)
    with pytest.raises(InvalidField, match="flags must be a combination of the bits 0b111; got 8"):
        writer.set_flags(ref.index, 8)


def test_full_mailbox_says_what_to_do(path: Path, lease):
    """CapacityExceeded names the limit and the fix; a freed slot makes room."""
    writer = MailboxWriter.create(path, capacity=2)
    refs = [writer.open(ScopeKey("acme", f"s{n}"), V1) for n in range(2)]
    assert writer.free_count == 0
    with pytest.raises(CapacityExceeded, match=r"is full: 2 scopes are open.*larger .*capacity"):
        writer.open(ScopeKey("acme", "s2"), V1)
    assert writer.open(ScopeKey("acme", "s1"), V1) == refs[1], "a scope that has a slot keeps it"
    writer.free(refs[0].index)
    assert writer.free_count == 1
    assert writer.open(ScopeKey("acme", "s2"), V1).index == refs[0].index
    writer.detach()


def test_names_of_any_legal_length_come_back(writer):
    """Tenant and scope names of extreme lengths and scripts survive in the names region."""
    keys = {
        ScopeKey("a", "x"),
        ScopeKey("a" * 63, "s" * 255),
        ScopeKey("acme", "лес/плані 计划"),
        ScopeKey("acme", "é" * 127),
    }
    for key in keys:
        writer.open(key, V1)
    assert {slot.key for slot in writer.slots()} == keys


def test_progress_lines_are_shared_and_apart_from_the_gates(writer, view):
    """A rank's words reach a reader; filling the whole region leaves stamps and deadline alone."""
    ref = writer.open(KEY, V1)
    worker, scheduler = ProgressLines.attach(writer.path), ProgressLines.attach(writer.path)
    worker.line(3)[P_LAYER_DONE] = 17
    assert scheduler.line(3)[P_LAYER_DONE] == 17
    assert scheduler.line(4)[P_LAYER_DONE] == 0
    for rank in range(RANKS_MAX):
        for word in range(8):
            worker.line(rank)[word] = 2**64 - 1
    assert view.check(ref.index, ref.stamp)
    assert writer.deadline_ns < 2**63
    assert [slot.ref for slot in writer.slots()] == [ref]
    with pytest.raises(InvalidField, match="rank must be an integer in 0..1023"):
        worker.line(RANKS_MAX)
    worker.detach()
    scheduler.detach()


def test_a_reader_cannot_write(view):
    """The view is a read-only mapping."""
    with pytest.raises(TypeError, match="cannot modify read-only memory"):
        view._words[0] = 1


def test_a_detached_view_is_closed(writer):
    """After detach, check answers False."""
    ref = writer.open(KEY, V1)
    view = MailboxView.attach(writer.path)
    assert view.check(ref.index, ref.stamp)
    view.detach()
    assert not view.check(ref.index, ref.stamp)

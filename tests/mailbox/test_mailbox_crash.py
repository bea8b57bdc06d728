"""Death of the writer, for real: SIGKILL between any two stores, and what the next writer finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retire.mailbox import GateState, MailboxView, MailboxWriter, layout
from retire.protocol.versions import ScopeKey, Version

KEY, OTHER = ScopeKey("acme", "plan"), ScopeKey("zeta", "other")
V1, V2 = Version(1, 1), Version(1, 2)


class DyingWriter(MailboxWriter):
    """Kills its own process right before store number ``budget``."""

    budget = 10**9

    def _spend(self) -> None:
        if self.budget == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.budget -= 1

    def _store(self, word: int, value: int) -> None:
        self._spend()
        super()._store(word, value)

    def _changed(self) -> None:
        """Not a cut: the stamp is out by now. What a death here loses has its own test below."""
        budget, self.budget = self.budget, 10**9
        super()._changed()
        self.budget = budget

    def _store_name(self, index: int, record: bytes) -> None:
        self._spend()
        super()._store_name(index, record)


def operate(writer: MailboxWriter, operation: str) -> None:
    """One operation on a mailbox where OTHER holds slot 0 and KEY, once prepared, slot 1."""
    if operation == "open":
        writer.open(KEY, V1)
    elif operation == "reuse":
        writer.open(ScopeKey("acme", "successor-in-the-same-slot"), V1)
    elif operation == "advance":
        writer.advance(1, V2)
    elif operation == "close":
        writer.close(1)
    else:
        writer.free(1)


def prepare(writer: MailboxWriter, operation: str) -> None:
    """OTHER in slot 0 and, unless KEY itself is to be opened, KEY in slot 1."""
    writer.open(OTHER, V1)
    if operation != "open":
        writer.open(KEY, V1)
    if operation == "reuse":
        writer.free(1)


def die_after(path: Path, operation: str, stores: int) -> bool:
    """Run ``operation`` in a child that dies after ``stores`` stores; False when it got through."""
    child = os.fork()
    if child == 0:
        writer = DyingWriter.create(path, capacity=64)
        writer.budget = stores
        operate(writer, operation)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return False
    assert os.WTERMSIG(status) == signal.SIGKILL
    return True


@pytest.mark.parametrize("operation", ["open", "reuse", "advance", "close", "free"])
def test_killed_between_any_two_stores_it_is_closed_never_open(path: Path, lease, operation: str):
    """At every cut: no stamp that was never handed out opens a gate, and bystanders are intact.

    A cut advance or free may leave the *old* ref valid (nothing was acknowledged); it may not leave
    a stamp in the file under a version it was not issued for, neither before nor after recovery.
    """
    cuts = 0
    for stores in range(100):
        path.unlink(missing_ok=True)
        writer = MailboxWriter.create(path, capacity=64)
        prepare(writer, operation)
        known = {slot.ref.stamp: (slot.key, slot.version) for slot in writer.slots()}
        bystander = writer.find(OTHER)
        writer.detach()
        if not die_after(path, operation, stores):
            break
        cuts += 1
        view = MailboxView.attach(path)
        words = [view._words[layout.slot_word(slot, layout.W_STAMP)] for slot in (0, 1, 2)]
        assert set(words) <= {0, *known}, f"after {stores} stores an unissued stamp is in the file"
        again = MailboxWriter.create(path, capacity=64)
        lease(again)
        assert bystander is not None
        assert view.gate(bystander) is GateState.OPEN
        for slot in again.slots():
            if slot.ref.stamp:
                assert known[slot.ref.stamp] == (slot.key, slot.version)
        fresh = again.open(KEY, V2)
        assert fresh.stamp not in known
        assert view.check(fresh.index, fresh.stamp)
        for stamp in known.keys() - {bystander.stamp}:
            assert not view.check(1, stamp), "once V2 is open, nothing of V1 passes"
        again.detach()
    else:
        pytest.fail("the operation never finished")
    assert cuts >= {"close": 1, "free": 2}.get(operation, 5)


def test_a_death_before_the_change_was_announced_is_announced_by_the_next_writer(
    path: Path, monkeypatch
):
    """Readers skip what has not changed, so a stamp may not change for good without a word."""
    writer = MailboxWriter.create(path, capacity=64)
    writer.open(KEY, V1)
    view = MailboxView.attach(path)
    seen = view.changes()
    monkeypatch.setattr(MailboxWriter, "_changed", lambda self: None)  # it dies right before
    writer.advance(0, V2)
    assert view.changes() == seen
    writer.detach()
    monkeypatch.undo()
    MailboxWriter.create(path, capacity=64).detach()
    assert view.changes() != seen


@pytest.mark.parametrize("change", ["open", "advance", "close"])
def test_every_change_of_a_stamp_is_announced_after_it(path: Path, change: str):
    """The changes word moves with each stamp; renewing the lease or setting flags leaves it."""
    writer = MailboxWriter.create(path, capacity=64)
    writer.open(OTHER, V1)
    view = MailboxView.attach(path)
    seen = view.changes()
    writer.renew(time.monotonic_ns())
    writer.set_flags(0, 1)
    assert view.changes() == seen
    match change:
        case "open":
            writer.open(KEY, V1)
        case "advance":
            writer.advance(0, V2)
        case _:
            writer.close(0)
    assert view.changes() == seen + 1
    writer.detach()


def test_a_writer_that_stores_the_stamp_first_is_caught(path: Path, monkeypatch):
    """Control: with the stamp stored before the rest, the check above finds an unissued stamp."""

    def stamp_first(self: MailboxWriter, index: int, version: Version, *_: object, **__: object):
        self._store(layout.slot_word(index, layout.W_STAMP), self._serial())
        self._store(layout.slot_word(index, layout.W_VERSION), version.packed())
        return self._ref(index)

    monkeypatch.setattr(MailboxWriter, "_restamp", stamp_first)
    with pytest.raises(AssertionError, match="an unissued stamp is in the file"):
        test_killed_between_any_two_stores_it_is_closed_never_open(
            path, lambda writer: writer.renew(time.monotonic_ns() + 10**12), "open"
        )


SIDECAR = """
import sys, time
from retire.mailbox import MailboxWriter
from retire.protocol.versions import ScopeKey, Version
writer = MailboxWriter.create(sys.argv[1])
refs = [writer.open(ScopeKey("acme", f"s{n}"), Version(1, n)) for n in range(100)]
writer.free(50)
writer.close(51)
print(refs[7].index, refs[7].stamp, flush=True)
while True:
    writer.renew(time.monotonic_ns() + 300_000_000)
    time.sleep(0.05)
"""


def test_sigkill_of_the_sidecar_closes_the_gates_within_the_lease(path: Path, lease):
    """Killed: open until the deadline, then LEASE_EXPIRED; a new writer finds every slot again."""
    sidecar = subprocess.Popen([sys.executable, "-c", SIDECAR, str(path)], stdout=subprocess.PIPE)
    try:
        assert sidecar.stdout is not None
        index, stamp = map(int, sidecar.stdout.readline().split())
        view = MailboxView.attach(path)
        time.sleep(0.5)
        assert view.check(index, stamp), "renewals keep it open past the first deadline"
    finally:
        sidecar.kill()
        killed = time.monotonic()
        sidecar.wait()
        sidecar.stdout.close()
    while True:
        asked = time.monotonic()
        if not view.check(index, stamp):
            break
        assert asked < killed + 0.35, "a gate outlived the lease"
    again = MailboxWriter.create(path)
    assert not view.check(index, stamp), "a reopened file does not renew by itself"
    lease(again)
    assert view.check(index, stamp)
    assert again.boot_id == view.boot_id
    assert not view.replaced()
    found = {slot.key.scope: slot for slot in again.slots()}
    assert set(found) == {f"s{n}" for n in range(100)} - {"s50"}
    assert all(found[f"s{n}"].version == Version(1, n) for n in range(100) if n != 50)
    assert found["s51"].ref.stamp == 0
    moved = again.advance(index, Version(1, 99))
    assert not view.check(index, stamp)
    assert view.check(index, moved.stamp)
    assert again.open(ScopeKey("acme", "new"), V1).index == 50, "the freed slot is found again"
    again.detach()


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (layout.slot_word(1, layout.W_SEAL), 1),
        (layout.slot_word(1, layout.W_FLAGS), 2**40),
        (layout.slot_word(1, layout.W_STAMP), 2**64 - 1),
        (layout.slot_word(1, layout.W_TENURE), 2**63),
        (layout.name_offset(64, 1) // 8, 0),
        (layout.name_offset(64, 1) // 8 + 8, 2**64 - 1),
    ],
)
def test_recovery_closes_a_damaged_slot_and_keeps_its_neighbours(path: Path, lease, word, value):
    """A slot whose words or name do not fit together is closed and free; the others stay."""
    writer = MailboxWriter.create(path, capacity=64)
    keys = [ScopeKey("acme", f"s{n}") for n in range(3)]
    refs = [writer.open(key, V1) for key in keys]
    writer.detach()
    with path.open("r+b") as file:
        file.seek(word * 8)
        file.write(value.to_bytes(8, "little"))
    again = MailboxWriter.create(path, capacity=64)
    lease(again)
    view = MailboxView.attach(path)
    assert [slot.key for slot in again.slots()] == [keys[0], keys[2]]
    assert [view.gate(ref) for ref in refs] == [GateState.OPEN, GateState.STALE, GateState.OPEN]
    assert again.free_count == 62
    assert again.open(keys[1], V1).stamp > refs[2].stamp
    again.detach()


def test_the_same_scope_in_two_slots_keeps_one(path: Path, lease):
    """Two slots with one name would give one scope two authorities: the second is closed."""
    writer = MailboxWriter.create(path, capacity=64)
    first, second = writer.open(KEY, V1), writer.open(OTHER, V1)
    record = layout.encode_name(KEY)
    writer._store_name(second.index, record)
    writer._store(layout.slot_word(second.index, layout.W_SEAL), layout.seal(record, second.tenure))
    writer.detach()
    again = MailboxWriter.create(path, capacity=64)
    lease(again)
    view = MailboxView.attach(path)
    assert view.gate(first) is GateState.OPEN
    assert view.gate(second) is GateState.STALE
    again.detach()

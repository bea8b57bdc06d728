"""Random histories against an oracle: a dict of what was handed out and what has revoked it."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retire.mailbox import GateState, MailboxView, MailboxWriter, SlotRef
from retire.protocol.errors import CapacityExceeded, VersionConflict
from retire.protocol.versions import ScopeKey, Version

CAPACITY = 3
KEYS = [ScopeKey(tenant, scope) for tenant in ("a", "b") for scope in ("x", "y", "é" * 127)]
keys = st.sampled_from(KEYS)
steps = st.integers(0, 2)


class Mailbox(RuleBasedStateMachine):
    """``live`` is the oracle: scope -> (version, ref, generation); ``dead`` every revoked ref."""

    def __init__(self) -> None:
        super().__init__()
        name = f"retire-model-{os.getpid()}-{secrets.token_hex(4)}"
        self.path = Path("/dev/shm") / name
        self.live: dict[ScopeKey, tuple[Version, SlotRef, int]] = {}
        self.dead: set[SlotRef] = set()
        self.held = True

    @initialize()
    def start(self) -> None:
        self.writer = MailboxWriter.create(self.path, capacity=CAPACITY)
        self.view = MailboxView.attach(self.path)
        self.renew()

    def teardown(self) -> None:
        self.writer.detach(remove=True)

    def _revoke(self, key: ScopeKey) -> tuple[Version, SlotRef, int]:
        version, ref, generation = self.live[key]
        if ref.stamp:
            self.dead.add(ref)
        return version, ref, generation

    @rule(key=keys, up=steps, generation=st.integers(0, 5))
    def open(self, key: ScopeKey, up: int, generation: int) -> None:
        if key not in self.live:
            if len(self.live) == CAPACITY:
                try:
                    self.writer.open(key, Version(1, up))
                except CapacityExceeded:
                    return
                raise AssertionError("a full mailbox took another scope")
            ref = self.writer.open(key, Version(1, up), generation=generation)
            self.live[key] = (Version(1, up), ref, generation)
            return
        version, ref, _ = self.live[key]
        target = Version(version.term, version.epoch + up)
        again = self.writer.open(key, target, generation=generation)
        if up == 0 and ref.stamp:
            assert again == ref
            return
        self._revoke(key)
        self.live[key] = (target, again, generation)

    @rule(key=keys)
    def open_in_the_past(self, key: ScopeKey) -> None:
        if key in self.live and self.live[key][0].epoch:
            version = self.live[key][0]
            try:
                self.writer.open(key, Version(version.term, version.epoch - 1))
            except VersionConflict:
                return
            raise AssertionError("a version went down")

    @rule(key=keys, up=steps, term=st.booleans())
    def advance(self, key: ScopeKey, up: int, term: bool) -> None:
        if key not in self.live:
            return
        version, ref, generation = self.live[key]
        higher_term = Version(version.term + 1, up)
        target = higher_term if term else Version(version.term, version.epoch + up)
        moved = self.writer.advance(ref.index, target)
        if target == version:
            assert moved == ref
            return
        self._revoke(key)
        self.live[key] = (target, moved, generation)

    @rule(key=keys)
    def close(self, key: ScopeKey) -> None:
        if key in self.live:
            version, ref, generation = self._revoke(key)
            self.writer.close(ref.index)
            self.live[key] = (version, SlotRef(ref.index, ref.tenure, 0), generation)

    @rule(key=keys)
    def free(self, key: ScopeKey) -> None:
        if key in self.live:
            _, ref, _ = self._revoke(key)
            self.writer.free(ref.index)
            del self.live[key]

    @rule()
    def renew(self) -> None:
        self.held = True
        self.writer.renew(time.monotonic_ns() + 10**12)

    @rule()
    def expire(self) -> None:
        self.held = False
        self.writer.renew(0)

    @precondition(lambda self: self.path.exists())
    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        """A new writer on the same file; after a crash the deadline stays as it was."""
        if crash:
            os.close(self.writer._fd)  # the lock goes as with the process, nothing is tidied up
            self.writer._words.release()
        else:
            self.writer.detach()
            self.held = False
        self.writer = MailboxWriter.create(self.path, capacity=CAPACITY)

    @invariant()
    def only_live_refs_pass(self) -> None:
        if not hasattr(self, "view"):
            return
        open_state = GateState.OPEN if self.held else GateState.LEASE_EXPIRED
        for version, ref, generation in self.live.values():
            assert self.view.gate(ref) is (open_state if ref.stamp else GateState.STALE)
            assert self.view.check(ref.index, ref.stamp) is bool(self.held and ref.stamp)
            now = self.view.current(ref.index, ref.tenure)
            if ref.stamp:
                assert now is not None
                assert (now.ref, now.version, now.generation) == (ref, version, generation)
            else:
                assert now is None
        for ref in self.dead:
            assert self.view.gate(ref) is GateState.STALE
            assert not self.view.check(ref.index, ref.stamp)

    @invariant()
    def the_writer_agrees(self) -> None:
        if not hasattr(self, "view"):
            return
        slots = self.writer.slots()
        found = {slot.key: (slot.version, slot.ref, slot.generation) for slot in slots}
        assert found == self.live
        assert self.writer.free_count == CAPACITY - len(self.live)
        assert all(self.writer.find(key) == ref for key, (_, ref, _) in self.live.items())


TestMailboxModel = Mailbox.TestCase
TestMailboxModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

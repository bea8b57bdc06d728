"""Whatever happens while a copy is on its way: nothing leaks, and the next successor is exact.

Every phase of a copy's life with every event that can meet it (user cases I30, I33, I36).
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

from dram_scene import (
    DRAM,
    NEW,
    TOLERANCE,
    at_rest,
    clean_run,
    distance,
    held,
    offload,
    retire_decoding,
    settle,
    succeed,
    tick_until,
    tier_of,
    wipe,
)

from bench.lab import prompt_tokens
from retire.engine.tier.devices import Way
from retire.engine.tier.restores import Restores
from retire.protocol import history
from retire.protocol.events import Change
from retire.protocol.invariants import check
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
PHASES = ("moving out", "at rest", "lacking room", "moving in", "in place")
EVENTS = ("abort", "release", "cancel", "supersede", "reset", "leases end", "preempt")
INTERLEAVINGS = 60


@pytest.fixture(scope="module")
def expected(engine: Lab) -> Stream:
    """What the successor says without any predecessor."""
    return clean_run(engine, NEW)


@pytest.fixture
def dram(lab: Lab) -> Iterator[Lab]:
    """A lab that gives everything back afterwards."""
    lab.core.retire_tick()
    yield lab
    assert settle(lab) == []


@contextlib.contextmanager
def in_phase(lab: Lab, phase: str) -> Iterator[threading.Event]:
    """The lab with a copy in that phase; the event lets held transfers go."""
    if phase == "moving out":
        with held(lab, Way.OUT) as gate:
            retire_decoding(lab, lab.key)
            lab.core.retire_tick()
            yield gate
        return
    offload(lab, lab.key)
    if phase == "at rest":
        yield threading.Event()
        return
    if phase == "lacking room":
        lab.limit_free_blocks(4)
        lab.submit("waits", NEW, lab.tag(lab.key))
        lab.step()
        assert tier_of(lab).restores.lacking_room
        yield threading.Event()
        lab.limit_free_blocks(None)
        return
    with held(lab, Way.IN) as gate:
        lab.submit("waits", NEW, lab.tag(lab.key))
        lab.step()
        assert tier_of(lab).restores.owners()
        if phase == "in place":
            lab.core.retire_pause(lab.key.tenant, lab.key.scope, True)
            gate.set()
            tick_until(lab, lambda: not tier_of(lab).busy)
            assert lab.request("waits").num_computed_tokens == 0
        yield gate


def happen(lab: Lab, event: str, gate: threading.Event) -> None:
    """One event meets the copy."""
    match event:
        case "abort":
            if lab.request("waits") is None:  # queued, never scheduled
                lab.submit("waits", NEW, lab.tag(lab.key))
            lab.engine.abort_request(["waits"])
        case "release":
            lab.core.retire_release(lab.key.tenant, lab.key.scope)
        case "cancel":
            lab.advance(lab.key)
            lab.fence(lab.key, terminal=True)
        case "supersede":
            lab.advance(lab.key)
            lab.fence(lab.key, DRAM)
        case "reset":
            threading.Timer(0.05, gate.set).start()  # a reset waits for what is in flight
            lab.limit_free_blocks(None)
            lab.scheduler.inheritance.forget_all()
        case "leases end":
            lab.scheduler.inheritance.expire(float("inf"))
        case "preempt":
            while lab.scheduler.inheritance.yield_oldest():
                pass
        case _:
            raise ValueError(event)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_event_in_every_phase(dram: Lab, expected: Stream, phase: str, event: str) -> None:
    """All bytes and blocks come back, the ledger is sound, the next successor is exact."""
    lab = dram
    with in_phase(lab, phase) as gate:
        happen(lab, event, gate)
        assert lab.scheduler.inheritance.audit() == []
        lab.core.retire_tick()
        lab.core.retire_pause(lab.key.tenant, lab.key.scope, False)
        assert lab.scheduler.inheritance.audit() == []
    lab.run()
    waited = lab.streams.pop("waits", None)
    if waited is not None and waited.finish_reason == "length":
        assert distance(waited, expected) < TOLERANCE
    wipe(lab)
    stream, told = succeed(lab, lab.key)
    assert distance(stream, expected) < TOLERANCE, told


def test_blocks_are_not_given_back_under_a_transfer(dram: Lab) -> None:
    """NEGATIVE CONTROL: freeing them at the abort would let a late transfer write another's KV."""
    lab = dram
    bystander = prompt_tokens(280, 31)
    alone = clean_run(lab, bystander)

    def race(early: bool) -> Stream:
        lab.key = ScopeKey("acme", f"race-{early}")
        offload(lab, lab.key)
        lab.limit_free_blocks(9)
        with held(lab, Way.IN):
            waits = lab.submit(f"waits-{early}", NEW, lab.tag(lab.key))
            lab.step()
            (owner,) = tier_of(lab).restores.owners()
            lab.engine.abort_request([waits.request_id])
            if early:
                lab.scheduler.inheritance.retained.unpin(owner)
            else:
                lab.limit_free_blocks(None)
            beside = lab.submit(f"beside-{early}", bystander, max_tokens=8)
            lab.run(lambda: len(beside.tokens) >= 1)
        tick_until(lab, lambda: not lab.core.retire_inspect(None, None)["host"]["jobs"])
        lab.limit_free_blocks(None)
        lab.run()
        return beside

    assert distance(race(early=False), alone) < TOLERANCE
    assert distance(race(early=True), alone) > 100 * TOLERANCE


class Agents:
    """Random scopes under ``tier: dram``; every record of the engine, and their commits."""

    def __init__(self, lab: Lab, rng: random.Random) -> None:
        self.lab, self.rng = lab, rng
        self.records: list[history.Record] = []
        self.keys = [ScopeKey(f"tenant-{i % 2}", f"{lab.key.scope}-{i}") for i in range(4)]
        self.live: dict[ScopeKey, str] = {}
        self.context = prompt_tokens(160, 4001)
        self.number = 0

    def submit(self, key: ScopeKey) -> None:
        """New work of the current version."""
        self.number += 1
        self.live[key] = f"r{self.number}-"
        cut = self.rng.choice([40, 100, 160])
        prompt = self.context[:cut] + prompt_tokens(self.rng.randint(1, 30), self.number)
        self.lab.submit(self.live[key], prompt, self.lab.tag(key), max_tokens=30)

    def supersede(self, key: ScopeKey) -> None:
        """COMMIT, FENCE under the DRAM tier."""
        old = self.lab.versions[key]
        new = self.lab.advance(key)
        self.number += 1
        at_ns = time.monotonic_ns()
        self.records.append(
            history.CommitMade(at_ns, key, Change.SUPERSEDE, old, new, str(self.number))
        )
        self.live.pop(key, None)
        self.lab.fence(key, DRAM)

    def act(self) -> None:
        """One thing happens to one scope."""
        key = self.rng.choice(self.keys)
        choice = self.rng.random()
        if key not in self.live and choice < 0.5:
            self.submit(key)
        elif key in self.lab.versions and choice < 0.6:
            self.supersede(key)
        elif key in self.live and choice < 0.7:
            self.lab.engine.abort_request([self.live.pop(key)])
        elif choice < 0.75:
            self.lab.core.retire_release(key.tenant, key.scope)
        elif choice < 0.85:
            time.sleep(0.002)
            wipe(self.lab)
        else:
            for _ in range(self.rng.randint(1, 4)):
                self.lab.step()


def test_random_interleavings_with_copies_break_no_promise(
    dram: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histories of both tiers keep every memory rule; copies were really made and used."""
    agents = Agents(dram, random.Random(20261201))
    tier = tier_of(dram)
    monkeypatch.setattr(dram.scheduler.chronicle, "write", agents.records.append)
    monkeypatch.setattr(tier, "_chronicle", None)
    restored = Counter[str]()
    tell = Restores._tell
    monkeypatch.setattr(
        Restores,
        "_tell",
        lambda self, r, result: (restored.update([result.value]), tell(self, r, result))[1],
    )
    for _ in range(INTERLEAVINGS):
        for _ in range(10):
            agents.act()
        dram.core.retire_tick()
        assert dram.scheduler.inheritance.audit() == []
    assert settle(dram) == []
    for node in (dram.scheduler.chronicle.node, tier.chronicle.node):
        agents.records.append(history.Idle(time.monotonic_ns(), node))
    print(f"{len(agents.records)} records, restores {dict(restored)}")
    at_host = [r for r in agents.records if getattr(r, "node", "").endswith("/dram")]
    assert any(isinstance(r, history.PinTaken) for r in at_host) and restored["restored"] > 3
    memory = [v for v in check(agents.records) if v.name != "C4.no_progress"]
    assert not memory, f"{Counter(v.name for v in memory)}: {memory[0]}"


def test_the_history_of_the_host_shows_a_leak(dram: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: a copy that is still there when the engine is idle breaks C6."""
    records: list[history.Record] = []
    tier = tier_of(dram)
    monkeypatch.setattr(dram.scheduler.chronicle, "write", records.append)
    monkeypatch.setattr(tier, "_chronicle", None)
    retire_decoding(dram, dram.key)
    tick_until(dram, lambda: at_rest(dram, dram.key))
    records.append(history.Idle(time.monotonic_ns(), tier.chronicle.node))
    assert "C6.idle" in {violation.name for violation in check(records)}
    assert settle(dram) == []

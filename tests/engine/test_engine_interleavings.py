"""Random interleavings of supersede, abort, cancel and finish: the history keeps every promise."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.engine.seams import runner, safe_point
from retire.protocol import history
from retire.protocol.events import Change
from retire.protocol.invariants import check
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab, Stream
    from retire.protocol.versions import Version

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
INTERLEAVINGS = int(os.environ.get("RETIRE_INTERLEAVINGS", "500"))
SEED = int(os.environ.get("RETIRE_SEED", "20261130"))
TENANTS = ("acme", "globex", "initech")
SCOPES = 16
CONTEXTS = [prompt_tokens(160, 1000 + i) for i in range(4)]
BYSTANDER = prompt_tokens(70, 4242)


@dataclass
class Scope:
    """One scope as its agent sees it: its live request and what that request has delivered."""

    key: ScopeKey
    version: Version | None = None
    request_id: str | None = None
    delivered: int = 0
    expected: bool = False  # the current version has a request that must speak or be aborted


@dataclass
class World:
    """The lab, its agents, and the history of everything."""

    lab: Lab
    rng: random.Random
    records: list[history.Record] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    requests: int = 0
    cancelled: int = 0

    def note(self, kind: Callable[..., history.Record], **fields: object) -> None:
        """Record something that the agent, the sidecar or a gate did."""
        self.records.append(kind(at_ns=time.monotonic_ns(), **fields))

    def prompt(self) -> list[int]:
        """One of four shared contexts, cut somewhere, then something of its own."""
        context = self.rng.choice(CONTEXTS)[: self.rng.choice([31, 32, 64, 100, 160])]
        return context + prompt_tokens(self.rng.randint(1, 40), self.rng.randrange(10**6))

    def submit(self, scope: Scope) -> None:
        """The agent sends work under the current version."""
        self.requests += 1
        tag = self.lab.tag(scope.key)
        scope.version, scope.delivered, scope.expected = tag.version, 0, True
        scope.request_id = f"{scope.key.tenant}-{scope.key.scope}-r{self.requests}"
        self.lab.submit(scope.request_id, self.prompt(), tag, max_tokens=self.rng.randint(1, 6))

    def supersede(self, scope: Scope) -> None:
        """ADVANCE and acknowledge; the old request is on its own now."""
        old = self.lab.versions[scope.key]
        new = self.lab.advance(scope.key)
        self.requests += 1
        self.note(
            history.CommitMade,
            key=scope.key,
            change=Change.SUPERSEDE,
            from_version=old,
            to_version=new,
            idempotency_key=str(self.requests),
        )
        self.note(history.Acknowledged, key=scope.key, version=new)
        scope.expected = False

    def step(self) -> None:
        """One engine step, and what its consumers got."""
        streams = dict(self.lab.streams)
        before = {name: len(stream.tokens) for name, stream in streams.items()}
        self.lab.step()
        for name, stream in streams.items():
            if len(stream.tokens) > before[name]:
                self.deliver(name, len(stream.tokens))

    def deliver(self, request_id: str, count: int) -> None:
        """A frame of some version reached the application."""
        tag = self.tags.get(request_id)
        if tag is None:
            return
        fields = {"key": tag[0], "version": tag[1], "request_id": request_id, "index": count - 1}
        self.note(history.Published, gate="lab", **fields)
        self.note(history.Delivered, consumer="app", **fields)

    @property
    def tags(self) -> dict[str, tuple[ScopeKey, Version]]:
        """Which scope and version each request was sent under."""
        return self._tags

    def __post_init__(self) -> None:
        self._tags: dict[str, tuple[ScopeKey, Version]] = {}
        submit = self.lab.submit

        def tagged(request_id: str, prompt: list[int], tag=None, **sampling):
            if tag is not None:
                self._tags[request_id] = (tag.key, tag.version)
            return submit(request_id, prompt, tag, **sampling)

        self.lab.submit = tagged

    def act(self, scope: Scope) -> None:
        """One random thing happens to one scope."""
        match self.rng.choices(ACTIONS, WEIGHTS)[0]:
            case "supersede" if scope.version is not None:
                self.supersede(scope)
                if self.rng.random() < 0.5:
                    self.lab.fence(scope.key)
                if self.rng.random() < 0.8:
                    self.submit(scope)
            case "abort" if scope.request_id is not None:
                self.lab.engine.abort_request([scope.request_id])
                scope.expected = False
            case "cancel" if scope.version is not None:
                self.cancel(scope)
            case "submit":
                self.submit(scope)
            case _:
                for _ in range(self.rng.randint(1, 4)):
                    self.step()

    def cancel(self, scope: Scope) -> None:
        """Terminal: the agent goes on under another scope name."""
        self.supersede(scope)
        self.lab.fence(scope.key, terminal=True)
        self.cancelled += 1
        scope.key = ScopeKey(scope.key.tenant, f"{scope.key.scope}.{self.cancelled}")
        scope.version = scope.request_id = None

    def settle(self) -> None:
        """Run to the end, give every final version its chance, end the leases."""
        for scope in self.scopes:
            if scope.version is not None and not scope.expected:
                self.submit(scope)
        while self.lab.engine.has_unfinished_requests() or self.lab.scheduler.has_requests():
            self.step()
        self.lab.scheduler.inheritance.expire(float("inf"))
        self.note(history.Idle, node=self.lab.scheduler.chronicle.node)


ACTIONS = ("supersede", "submit", "abort", "cancel", "step")
WEIGHTS = (5, 3, 1, 1, 5)


@pytest.fixture
def world(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world that records; the lab forgets it afterwards."""
    monkeypatch.setattr(lab, "submit", lab.submit)
    world = World(lab, random.Random(SEED))
    monkeypatch.setattr(lab.scheduler.chronicle, "write", world.records.append)
    world.scopes = [
        Scope(ScopeKey(TENANTS[i % len(TENANTS)], f"{lab.key.scope}-s{i}")) for i in range(SCOPES)
    ]
    return world


def interleave(world: World, bystander_tokens: list[int], number: int) -> None:
    """One interleaving: eight random actions among sixteen scopes, then everything settles."""
    bystander: Stream = world.lab.submit(f"bystander-{number}", BYSTANDER, max_tokens=6)
    for _ in range(8):
        world.act(world.rng.choice(world.scopes))
    world.settle()
    assert bystander.tokens == bystander_tokens, f"another tenant's output changed in {number}"
    assert world.lab.settled() == [], f"something was left behind by interleaving {number}"
    world.lab.streams.clear()


def test_random_interleavings_break_no_promise(world: World) -> None:
    """500 interleavings, 16 scopes, 3 tenants: no violation, every final version progresses."""
    print(f"seed {SEED}, {INTERLEAVINGS} interleavings")
    alone = world.lab.submit("bystander-alone", BYSTANDER, max_tokens=6)
    world.lab.run()
    for number in range(INTERLEAVINGS):
        interleave(world, alone.tokens, number)
    commits = sum(isinstance(r, history.CommitMade) for r in world.records)
    adoptions = sum(isinstance(r, history.Adopted) for r in world.records)
    print(f"{len(world.records)} records, {commits} commits, {adoptions} adoptions")
    assert commits > INTERLEAVINGS and adoptions > INTERLEAVINGS / 10
    violations = check(world.records)
    assert not violations, f"{Counter(v.name for v in violations)}: {violations[0]}"


def test_the_history_shows_what_is_broken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: with the sweep off, the same run breaks C1 and the checker says so."""
    monkeypatch.setattr(world.lab.scheduler, "retire_stale", lambda: None)
    monkeypatch.setattr(safe_point.SafePoints, "_decide", lambda self, plan: None)
    monkeypatch.setattr(runner.Done, "_closed", lambda self, output: output)
    for _ in range(60):
        world.act(world.rng.choice(world.scopes))
    world.settle()
    world.lab.streams.clear()
    broken = {violation.name for violation in check(world.records)}
    assert "C1.published_after_acknowledge" in broken

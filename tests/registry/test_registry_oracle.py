"""Random operations against a small model in Python: the real servers answer the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from retire.protocol.contract import Policy
from retire.protocol.errors import RetireError
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import SyncRegistry
from retire.registry.interface import CommitKind, ScopeRecord
from retire.registry.settings import RegistrySettings

NAMES = ("a", "b", "c", "d")
NODES = ("n1", "n2")
OPERATIONS = ("register", "join", "leave", "commit", "reserve", "release", "set_quota", "configure")
OPERATIONS += ("rebuild",)
STEPS = 250


@dataclass
class Scope:
    epoch: int
    parent: str | None
    cancelled: bool = False
    paused: bool = False
    policy: Policy | None = None
    nodes: set[str] = field(default_factory=set)


class Oracle:
    """One tenant, without leases. Each operation returns what the registry must answer."""

    def __init__(self) -> None:
        self.term, self.sequence = 1, 0
        self.scopes: dict[str, Scope] = {}
        self.made: dict[str, tuple[tuple, tuple]] = {}
        self.quota: int | None = None
        self.pins: dict[str, int] = {}

    def register(self, term, name, epoch, parent):
        if term != self.term:
            return "term_mismatch"
        if name not in self.scopes:
            if parent and parent not in self.scopes:
                return "need_register"
            if parent and self.scopes[parent].cancelled:
                return "scope_cancelled"
            self.scopes[name] = Scope(epoch, parent)
            return (True, epoch)
        return (False, self.scopes[name].epoch)

    def configure(self, term, name, policy, parent):
        if parent == name:
            return "invalid_field"
        if term != self.term or name not in self.scopes:
            return "term_mismatch" if term != self.term else "need_register"
        scope = self.scopes[name]
        if parent and parent != scope.parent:
            if scope.parent:
                return "invalid_field"
            if parent not in self.scopes:
                return "need_register"
            if self.scopes[parent].cancelled:
                return "scope_cancelled"
            if name in self._above(parent):
                return "invalid_field"
            scope.parent = parent
        scope.policy = policy
        return (scope.policy, scope.parent)

    def _above(self, name):
        parent = self.scopes[name].parent
        return [] if parent is None else [parent, *self._above(parent)]

    def join(self, term, name, node):
        if term != self.term or name not in self.scopes:
            return "term_mismatch" if term != self.term else "need_register"
        if self.scopes[name].cancelled:
            return "scope_cancelled"
        self.scopes[name].nodes.add(node)
        return tuple(sorted(self.scopes[name].nodes))

    def leave(self, term, name, node):
        if term != self.term:
            return "term_mismatch"
        if name in self.scopes:
            self.scopes[name].nodes.discard(node)
        return None

    def commit(self, term, kind, name, epoch, key, digest):
        asked = (kind, name, digest)
        if term != self.term:
            return "term_mismatch"
        if key in self.made:
            return self.made[key][1] if self.made[key][0] == asked else "idempotency"
        if name not in self.scopes:
            return "need_register"
        scope = self.scopes[name]
        if scope.cancelled or scope.epoch != epoch:
            return "scope_cancelled" if scope.cancelled else "version_conflict"
        moves = kind in (CommitKind.SUPERSEDE, CommitKind.CANCEL)
        moved = [name, *self._descendants(name)] if moves else []
        for each in moved:
            self.scopes[each].epoch += 1
            self.scopes[each].cancelled = kind is CommitKind.CANCEL
        if not moves:
            scope.paused = kind is CommitKind.PAUSE
        self.sequence += 1
        nodes = set().union(*(self.scopes[each].nodes for each in moved or [name]))
        children = frozenset((each, self.scopes[each].epoch) for each in moved[1:])
        self.made[key] = (asked, (scope.epoch, self.sequence, tuple(sorted(nodes)), children))
        return self.made[key][1]

    def _descendants(self, name):
        below = [n for n, s in self.scopes.items() if s.parent == name and not s.cancelled]
        return below + [deeper for each in below for deeper in self._descendants(each)]

    def reserve(self, term, owner, blocks):
        if term != self.term:
            return "term_mismatch"
        own, total = self.pins.get(owner, 0), sum(self.pins.values())
        if self.quota is not None and blocks > own and total - own + blocks > self.quota:
            return "quota_exceeded"
        self.pins[owner] = blocks
        return None if self.quota is None else max(0, self.quota - total + own - blocks)

    def release(self, term, owner):
        if term != self.term:
            return "term_mismatch"
        self.pins.pop(owner, None)
        return None

    def set_quota(self, term, blocks):
        if term != self.term:
            return "term_mismatch"
        self.quota = blocks
        return None

    def rebuild(self, term, name, epoch):
        if term <= self.term:
            return "term_mismatch"
        self.term, self.quota = term, 50
        scope = self.scopes.setdefault(name, Scope(0, None))
        scope.epoch, scope.paused = max(scope.epoch, epoch), False
        return "rebuilt"


class Real:
    """The same operations on a real registry, with answers in the oracle's form."""

    def __init__(self, url, settings) -> None:
        self.registry = SyncRegistry(url, settings)
        self.registry.hello("acme", term=1)

    def register(self, term, name, epoch, parent):
        made = self.registry.register(key(name), term=term, epoch=epoch, parent=parent)
        return (made.created, made.version.epoch)

    def configure(self, term, name, policy, parent):
        made = self.registry.configure(key(name), term=term, policy=policy, parent=parent)
        return (made.policy, made.parent)

    def join(self, term, name, node):
        return self.registry.join(key(name), term=term, node=node, boot_id="b").nodes

    def leave(self, term, name, node):
        return self.registry.leave(key(name), term=term, node=node)

    def commit(self, term, kind, name, epoch, idempotency_key, digest):
        made = self.registry.commit(
            kind,
            key(name),
            term=term,
            expected=Version(term, epoch),
            idempotency_key=idempotency_key,
            body_digest=digest,
            by="t",
        )
        nodes = tuple(sorted({gate.node for gate in made.gates}))
        children = frozenset((child.scope, version.epoch) for child, version in made.children)
        return (made.to_version.epoch, made.sequence, nodes, children)

    def reserve(self, term, owner, blocks):
        return self.registry.reserve(
            "acme", term=term, owner=owner, blocks=blocks, lease_s=600
        ).left

    def release(self, term, owner):
        return self.registry.release("acme", term=term, owner=owner)

    def set_quota(self, term, blocks):
        return self.registry.set_quota("acme", term=term, blocks=blocks)

    def rebuild(self, term, name, epoch):
        record = ScopeRecord(
            key(name), Version(term, epoch), 1, False, False, None, parent=None, nodes=()
        )
        self.registry.rebuild("acme", term=term, scopes=[record], quota_blocks=50, settle_s=0)
        return "rebuilt"


def key(name):
    return ScopeKey("acme", name)


def arguments(operation, draw: random.Random, oracle: Oracle):
    term = oracle.term if draw.random() < 0.95 else draw.choice((oracle.term - 1, oracle.term + 1))
    name = draw.choice(NAMES)
    known = oracle.scopes.get(name, Scope(0, None)).epoch
    epoch = known if draw.random() < 0.7 else draw.randrange(5)
    match operation:
        case "register":
            return term, name, draw.randrange(3), draw.choice((None, *NAMES[: NAMES.index(name)]))
        case "configure":
            return term, name, draw.choice((None, *Policy)), draw.choice((None, None, *NAMES))
        case "join" | "leave":
            return term, name, draw.choice(NODES)
        case "commit":
            kinds = [CommitKind.SUPERSEDE] * 8 + [CommitKind.CANCEL, *CommitKind]
            key_name = f"k{draw.randrange(60)}"
            return term, draw.choice(kinds), name, epoch, key_name, draw.choice("de")
        case "reserve":
            return term, draw.choice(NAMES), draw.randrange(40)
        case "release":
            return term, draw.choice(NAMES)
        case "set_quota":
            return term, draw.choice((None, 0, 30, 60))
        case _:
            return draw.choice((oracle.term, oracle.term + 1)), name, draw.randrange(9)


def answer(target, operation, given):
    try:
        return getattr(target, operation)(*given)
    except RetireError as error:
        return error.code


def state_of_oracle(oracle: Oracle):
    scopes = {
        name: (
            Version(oracle.term, s.epoch),
            *(s.policy, s.parent, s.cancelled, s.paused),
            tuple(sorted(s.nodes)),
        )
        for name, s in oracle.scopes.items()
    }
    return oracle.term, oracle.sequence, oracle.quota, oracle.pins, scopes


def state_of_registry(registry: SyncRegistry):
    held = registry.snapshot("acme")
    scopes = {
        r.key.scope: (r.version, r.policy, r.parent, r.cancelled, r.paused, r.nodes)
        for r in held.scopes
    }
    pins = {r.owner: r.blocks for r in held.reservations}
    return held.term, held.sequence, held.quota_blocks, pins, scopes


def walk(url, settings, seed: int) -> set[object]:
    """Run one random history on both; returns the kinds of answers that occurred."""
    draw, oracle, real = random.Random(seed), Oracle(), Real(url, settings)
    seen: set[object] = set()
    for step in range(STEPS):
        weights = (3, 3, 1, 12, 3, 1, 1, 2, 0.15)
        operation = draw.choices(OPERATIONS, weights)[0]
        given = arguments(operation, draw, oracle)
        expected = answer(oracle, operation, given)
        found = answer(real, operation, given)
        assert found == expected, f"seed {seed}, step {step}: {operation}{given}"
        seen.add(expected if isinstance(expected, str) else operation)
    assert state_of_registry(real.registry) == state_of_oracle(oracle), f"seed {seed}"
    real.registry.close()
    return seen


def test_random_histories_are_answered_as_the_model_says(store, settings):
    """The same answers and the same state at the end; the seeds meet every refusal of the model."""
    seen: set[object] = set()
    for seed in range(6):
        seen |= walk(store.url, RegistrySettings(f"{settings.prefix}{seed}:"), seed)
    refusals = {"term_mismatch", "need_register", "scope_cancelled", "version_conflict"}
    refusals |= {"idempotency", "quota_exceeded", "invalid_field"}
    assert seen >= refusals | {"rebuilt", *OPERATIONS[:8]}


def test_control_a_wrong_model_is_caught(store, settings, monkeypatch):
    """Negative control: a model that moves the epoch by two disagrees at once."""
    right = Oracle.commit

    def wrong(self, *given):
        result = right(self, *given)
        return (result[0] + 1, *result[1:]) if isinstance(result, tuple) else result

    monkeypatch.setattr(Oracle, "commit", wrong)
    with pytest.raises(AssertionError, match="seed 0, step"):
        walk(store.url, settings, 0)

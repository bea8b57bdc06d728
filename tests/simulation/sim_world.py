"""The joint state of clients, sidecars, registry, gates, engines and messages, and how it moves.

Sidecars are ``transitions.step`` and ``gate.LeaseState``; gates are ``gate.may_publish``; ALIGN is
``alignment`` and ``certificates``: the production functions. The rest (registry, network, engine)
is the environment, as nasty as its bounds allow. Rules are ``invariants.Facts`` on every record.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from sim_explore import Interner

from retire.protocol import gate, transitions
from retire.protocol.events import Admission, Change, CommitRefused, Committed, Event
from retire.protocol.invariants import Facts
from retire.protocol.state import ScopeState
from retire.protocol.versions import ScopeKey, Version

KEY = ScopeKey("t", "s")
V0 = Version(1, 0)
NOW = 1000  # the time of every record: only leases have a clock, one step a lease


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the environment may do, and how often."""

    calls: tuple[tuple[Change, int], ...]  # (what, at which node), each by its own client
    losses: int = 0  # requests or answers of the registry
    duplicates: int = 0
    lease_ends: int = 0
    crashes: int = 0  # of a sidecar
    registry_losses: int = 0
    node_losses: int = 0  # of an engine's memory
    fence_timeouts: int = 0
    nodes: int = 2
    engine: bool = False  # blocks, writers and pins; else every engine is empty
    frames: bool = False  # a frame stays between check and transport; else that is one moment
    same_term: bool = False  # a planted bug of the operator, for the mutants


@dataclass(frozen=True, slots=True)
class Request:
    """To the registry."""

    node: int
    call: str
    change: Change
    expected: Version
    idempotency: str


@dataclass(frozen=True, slots=True)
class Answer:
    """From the registry. ``leases``: which lease of each node the commit saw."""

    node: int
    event: Committed | CommitRefused
    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Streamed:
    """An entry of the tenant's stream on its way to ``node``."""

    node: int
    change: Change
    version: Version
    sequence: int


@dataclass(frozen=True, slots=True)
class Reported:
    """Gate acks and the fence receipt of another node."""

    node: int
    events: tuple[Event, ...]


Message = Request | Answer | Streamed | Reported


@dataclass(frozen=True, slots=True)
class Client:
    change: Change
    node: int
    status: str = "todo"  # todo | waiting | fenced | certified | done
    attempt: int = 0
    expected: Version | None = None  # as first asked: a retry has the same body
    key: int = 0  # of idempotency
    to_version: Version | None = None
    tokens: int = 0  # certified for it


@dataclass(frozen=True, slots=True)
class Engine:
    """Blocks: each version has a prefix block 2e and a suffix block 2e + 1 unless it adopted."""

    tables: tuple[tuple[Version, tuple[int, ...]], ...] = ()  # oldest first
    written: frozenset[Version] = frozenset()  # its blocks are completely written
    writing: Version | None = None  # a step of this version is on the device
    fence: Version | None = None  # asked for, not reached
    pinned: frozenset[Version] = frozenset()


@dataclass(frozen=True, slots=True)
class Node:
    scope: ScopeState
    lease: gate.LeaseState
    word: Version = V0  # the mailbox
    checked: Version | None = None  # a frame past the check, not handed to the transport yet
    switch: Version | None = None  # the API process has not run this barrier yet
    served: frozenset[Version] = frozenset((V0,))  # versions whose frames may lie in buffers here
    lease_no: int = 1  # of the newest lease that the registry granted
    expired: int = 0  # leases up to this number have run out: the node's clock
    watches: frozenset[tuple[int, Version, int]] = frozenset()  # node, version, its lease_no then
    engine: Engine = field(default=Engine())


@dataclass(frozen=True, slots=True)
class Registry:
    version: Version = V0
    sequence: int = 0
    admission: Admission = Admission.OPEN
    up: bool = True
    done: tuple[tuple[str, Committed], ...] = ()
    leased: tuple[bool, ...] = (True, True)


class Memory:
    """What one exploration remembers: numbers of values, and answers of the pure core."""

    def __init__(self) -> None:
        self.number = Interner()
        self.steps: dict[tuple[int, Event], transitions.Step] = {}

    def step(self, scope: ScopeState, event: Event) -> transitions.Step:
        """``transitions.step``: a pure function, so an answer may be used again."""
        asked = (self.number(scope), event)
        if asked not in self.steps:
            self.steps[asked] = transitions.step(scope, event)
        return self.steps[asked]


@dataclass(frozen=True, eq=False, slots=True)
class World:
    bounds: Bounds
    memory: Memory
    nodes: tuple[Node, ...]
    clients: tuple[Client, ...]
    registry: Registry
    messages: frozenset[Message]
    left: tuple[int, ...]  # losses, duplicates, lease ends, crashes, registry, node, timeouts
    facts: Facts
    known: int  # the number of the facts
    key: Hashable = None


LOSS, DUPLICATE, LEASE_END, CRASH, REGISTRY, NODE, TIMEOUT = range(7)

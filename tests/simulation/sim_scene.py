"""One action in the making: a mutable copy of a world that executes the core's effects.

The shell of the sidecar, a compare-and-set registry, and an engine of blocks, writers and pins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim_world import KEY, NOW, Answer, Node, Registry, Reported, Request, Streamed, World

from retire.protocol import gate, transitions
from retire.protocol.contract import Contract, Participant
from retire.protocol.effects import (
    Acknowledge,
    AnswerCommitted,
    AnswerFenced,
    CommitToRegistry,
    Effect,
    FenceEngine,
    ReclaimNode,
    Refuse,
    ReportAck,
    StoreVersion,
    SwitchGates,
    WatchLease,
)
from retire.protocol.events import (
    Admission,
    Change,
    CommitRefused,
    Committed,
    Event,
    FenceReceipt,
    Gate,
    GateAcked,
    Reclaimed,
    Refusal,
    Registered,
)
from retire.protocol.history import (
    Acknowledged,
    CommitMade,
    Freed,
    PinReleased,
    PinTaken,
    Record,
    VersionSeen,
    WritersClosed,
)
from retire.protocol.state import ScopeState
from retire.protocol.versions import Version

Act = tuple[str, Callable[["Scene"], None]]


class Scene:
    """One action in the making: a mutable world, and the rules its records broke."""

    def __init__(self, world: World) -> None:
        self.bounds = world.bounds
        self.memory = world.memory
        self.nodes = list(world.nodes)
        self.clients = list(world.clients)
        self.registry = world.registry
        self.messages = set(world.messages)
        self.left = list(world.left)
        self.facts = world.facts
        self._base = world
        self._changed = False
        self.broken: list[str] = []
        self.leases_seen: tuple[int, ...] = ()  # by the commit that is being answered

    def record(self, record: Record) -> None:
        if not self._changed:
            self.facts, self._changed = self.facts.copy(), True
        self.broken += self.facts.observe(record)

    def world(self) -> World:
        number = self.memory.number
        known = number(self.facts.frozen()) if self._changed else self._base.known
        nodes, clients, left = tuple(self.nodes), tuple(self.clients), tuple(self.left)
        parts = (*nodes, *clients, self.registry, left)
        messages = frozenset(number(m) for m in self.messages)
        return World(
            self.bounds,
            self.memory,
            nodes,
            clients,
            self.registry,
            frozenset(self.messages),
            left,
            self.facts,
            known,
            (*(number(p) for p in parts), messages, known),
        )

    def set(self, i: int, **changes: object) -> None:
        self.nodes[i] = replace(self.nodes[i], **changes)  # type: ignore[arg-type]

    def engine(self, i: int, **changes: object) -> None:
        self.set(i, engine=replace(self.nodes[i].engine, **changes))  # type: ignore[arg-type]

    def feed(self, i: int, event: Event) -> None:
        """The sidecar's shell: step, then execute the effects in order."""
        done = self.memory.step(self.nodes[i].scope, event)
        self.set(i, scope=done.state)
        for effect in done.effects:
            self.execute(i, effect)

    def execute(self, i: int, effect: Effect) -> None:  # noqa: C901 (one line an effect)
        match effect:
            case CommitToRegistry(call, change, expected, idempotency, _):
                self.messages.add(Request(i, call, change, expected, idempotency))
            case StoreVersion(version):
                self.set(i, word=version)
                self.record(VersionSeen(NOW, f"n{i}", KEY, version))
            case SwitchGates(version):
                self.set(i, switch=version)
            case WatchLease(name, version):
                peer = int(name[1:])
                watch = (peer, version, self.leases_seen[peer])
                self.set(i, watches=self.nodes[i].watches | {watch})
            case FenceEngine(version):
                self.fence(i, version)
            case ReportAck(version):
                self._report(i, version)
            case Acknowledge(calls, _, to_version):
                self.record(Acknowledged(NOW, KEY, to_version))
            case AnswerFenced(calls, to_version):
                self._answered(calls, to_version)
            case ReclaimNode(name, version):
                self.reclaim(i, int(name[1:]), version)
            case Refuse(call, refusal):
                self._refused(call, refusal)
            case AnswerCommitted(call, change) if not change.moves_version:
                self.client(call, status="done", expected=None)
            case _:
                pass  # answers and timers that the model replaces by actions

    def _refused(self, call: str, refusal: Refusal) -> None:
        if refusal is Refusal.UNAVAILABLE:
            self.client(call, status="todo")  # the same body, the same key
        elif refusal is Refusal.TERM_MISMATCH:
            self.client(call, status="todo", expected=None, key=1)  # reads the version again
        else:
            self.client(call, status="done", expected=None)

    def client(self, call: str, **changes: object) -> None:
        k = int(call.split("#", maxsplit=1)[0][1:])
        self.clients[k] = replace(self.clients[k], **changes)  # type: ignore[arg-type]

    def _answered(self, calls: tuple[str, ...], to_version: Version) -> None:
        for call in calls:
            self.client(call, status="fenced", to_version=to_version)

    def _report(self, i: int, version: Version) -> None:
        events: tuple[Event, ...] = (GateAcked(f"n{i}", version),)
        if not self.bounds.engine:  # an empty engine's receipt rides on the ack
            events += (FenceReceipt(f"n{i}", version),)
        for j in range(len(self.nodes)):
            if j != i:
                self.messages.add(Reported(j, events))

    # --- the engine

    def fence(self, i: int, version: Version) -> None:
        if self.bounds.engine:
            self.engine(i, fence=version)
        else:
            self._reached(i, FenceReceipt(f"n{i}", version))

    def _reached(self, i: int, receipt: FenceReceipt) -> None:
        self.feed(i, receipt)
        for j in range(len(self.nodes)):
            if j != i and self.bounds.engine:
                self.messages.add(Reported(j, (receipt,)))

    def safe_point(self, i: int) -> None:
        """No old step is on the device: close, pin what is written, give the receipt."""
        engine = self.nodes[i].engine
        assert engine.fence is not None
        fence = engine.fence
        self.record(WritersClosed(NOW, f"n{i}", KEY, fence))
        old = [(v, blocks) for v, blocks in engine.tables if v < fence]
        for v, blocks in old:
            if v in engine.written and v not in engine.pinned:
                self.record(PinTaken(NOW, f"n{i}", KEY, v, blocks))
        pinned = engine.pinned | {v for v, _ in old if v in engine.written}
        self.engine(i, fence=None, pinned=pinned)
        participants = tuple(
            Participant(f"n{i}", f"boot{i}", 0, 0, 0, 4 if v in engine.written else 0, True)
            for v, _ in old[-1:]
        )
        self._reached(i, FenceReceipt(f"n{i}", fence, participants))

    def reclaim(self, i: int, target: int, version: Version) -> None:
        """Free everything below ``version`` on the target; pins go before their blocks."""
        engine = self.nodes[target].engine
        name = f"n{target}"
        for v, blocks in engine.tables:
            if v < version:
                if v in engine.pinned:
                    self._check_pin(target, v)
                    self.record(PinReleased(NOW, name, KEY, v, blocks))
                self.record(Freed(NOW, name, KEY, v, blocks))
        self.engine(
            target,
            tables=tuple(t for t in engine.tables if t[0] >= version),
            pinned=frozenset(v for v in engine.pinned if v >= version),
            written=frozenset(v for v in engine.written if v >= version),
        )
        self.feed(i, Reclaimed(name, version))

    def _check_pin(self, i: int, version: Version) -> None:
        """Paper, section 5.3: pinned until a successor adopts it, or none will come."""
        node = self.nodes[i]
        newest = node.scope.transition_to(node.word)
        adopted = any(v > version for n in self.nodes for v in n.served)
        if self.bounds.fence_timeouts:  # a retention may be over before its receipt is there
            return
        if newest is not None and not newest.is_decided and not adopted:
            self.broken.append("5.3.pinned_until_adopted")

    # --- the registry

    def commit(self, request: Request) -> None:
        registry = self.registry
        replay = dict(registry.done).get(request.idempotency)
        refusal = None
        if request.expected.term != registry.version.term:
            refusal = Refusal.TERM_MISMATCH
        elif replay is None and registry.admission is Admission.CANCELLED:
            refusal = Refusal.CLOSED
        elif replay is None and request.expected != registry.version:
            refusal = Refusal.VERSION_CONFLICT
        held = zip(self.nodes, registry.leased, strict=True)
        leases = tuple(n.lease_no if leased else 0 for n, leased in held)
        if refusal is not None:
            event = CommitRefused(request.call, refusal, registry.version)
            self.messages.add(Answer(request.node, event, leases))
            return
        made = replay or self._make(request)
        remote = tuple(
            Gate(f"n{j}", f"n{j}", 1.0 if registry.leased[j] else 0.0)
            for j in range(len(self.nodes))
            if j != request.node
        )
        event = replace(
            made,
            call=request.call,
            gates=(*local_gates(request.node), *remote),
            replayed=bool(replay),
        )
        self.messages.add(Answer(request.node, event, leases))

    def _make(self, request: Request) -> Committed:
        registry, before = self.registry, self.registry.version
        after = before.next_epoch() if request.change.moves_version else before
        sequence = registry.sequence + 1
        made = Committed("", request.change, before, after, sequence, generation=after.epoch)
        admission = {
            Change.CANCEL: Admission.CANCELLED,
            Change.PAUSE: Admission.PAUSED,
            Change.RESUME: Admission.OPEN,
        }.get(request.change, registry.admission)
        self.registry = replace(
            registry,
            version=after,
            sequence=sequence,
            admission=admission,
            done=(*registry.done, (request.idempotency, made)),
        )
        k = int(request.call.split("#")[0][1:])
        meant = f"c{k}.{self.clients[k].key}"  # what the client asked to happen once
        self.record(CommitMade(NOW, KEY, request.change, before, after, meant))
        for j in range(len(self.nodes)):
            self.messages.add(Streamed(j, request.change, after, sequence))
        return made


def local_gates(i: int) -> tuple[Gate, ...]:
    return (Gate(f"n{i}/api", f"n{i}"),)


def fresh_scope(i: int, registry: Registry) -> ScopeState:
    record = Registered(
        registry.version, registry.version.epoch, registry.admission, registry.sequence
    )
    return transitions.step(ScopeState(KEY, f"n{i}"), record).state


def renewed(lease: gate.LeaseState, number: int, sequence: int) -> gate.LeaseState:
    """A renewal that was sent and granted, while the registry stood at ``sequence``."""
    sent = lease.step(gate.RenewalSent(number))
    return sent.step(gate.Renewed(number, 1.0, {KEY.tenant: sequence}))


CONTRACT = Contract()


def can_publish(node: Node, version: Version) -> bool:
    return gate.may_publish(
        known=node.word,
        frame=version,
        now_ns=gate.deadline_ns(node.expired, 1.0),
        deadline_ns=node.lease.deadline_ns,
    )


def buffered(node: Node) -> frozenset[Version]:
    """Versions whose frames may lie in this node's buffers: what it served, what it now admits."""
    if node.scope.admission is Admission.CANCELLED:
        return node.served
    return node.served | {node.word}


def unexpected(s: Scene | World, i: int) -> list[Version]:
    """Fenced versions of node i whose successor nobody is about to submit."""
    mine = [c for c in s.clients if c.node == i]
    if any(c.status == "waiting" for c in mine):
        return []  # a ttl is longer than an answer takes
    coming = {c.to_version for c in mine if c.status in ("fenced", "certified")}
    chain = s.nodes[i].scope.transitions
    return [
        t.to_version
        for t in chain
        if t.fenced
        and not t.is_decided
        and t.to_version not in coming
        and t.to_version == s.nodes[i].scope.version
    ]

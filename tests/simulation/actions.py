"""Every action that is possible in a world, and the worlds it leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from retire.protocol import alignment, certificates, gate
from retire.protocol.contract import Participant, StopReason
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Admission,
    Certified,
    Change,
    ChangeRequested,
    Committed,
    CommitRefused,
    FenceTimedOut,
    GateAcked,
    GateLeaseEnded,
    NodeLost,
    Rebuilt,
    Refusal,
    RegistryLost,
    RetentionEnded,
    SuccessorAdmitted,
    VersionObserved,
)
from retire.protocol.history import (
    Adopted,
    Allocated,
    CertificateIssued,
    Delivered,
    Idle,
    NodeRestarted,
    Published,
    RegistryRebuilt,
    Submitted,
    Wrote,
)
from retire.protocol.invariants import Facts
from retire.protocol.state import Phase
from retire.protocol.versions import Version
from world import (
    CRASH,
    DUPLICATE,
    KEY,
    LEASE_END,
    LOSS,
    NODE,
    NOW,
    REGISTRY,
    TIMEOUT,
    V0,
    Answer,
    Bounds,
    Client,
    Engine,
    Memory,
    Node,
    Registry,
    Reported,
    Request,
    Scene,
    Streamed,
    World,
    fresh_scope,
    local_gates,
    renewed,
)

SIGNING_KEY = bytes(32)
OLD_TOKENS, NEW_TOKENS, BLOCK = [0, 1, 2, 3], [0, 1, 8, 9], 2
LATER = NOW + 1

Act = tuple[str, Callable[[Scene], None]]


def initial(bounds: Bounds) -> World:
    """Two nodes serve V0 under held leases; nobody has called yet."""
    registry = Registry(leased=(True,) * bounds.nodes)
    nodes = []
    scene_records = []
    for i in range(bounds.nodes):
        engine = Engine()
        if bounds.engine:
            done = frozenset((V0,) if i else ())  # node 0 is still prefilling
            engine = Engine(tables=((V0, (0, 1)),), written=done)
            scene_records.append(Allocated(NOW, f"n{i}", KEY, V0, (0, 1)))
        lease = gate.LeaseState().step(gate.TenantJoined(KEY.tenant, 0))
        nodes.append(Node(fresh_scope(i, registry), renewed(lease, 1, 0), engine=engine))
    clients = tuple(Client(change, at) for change, at in bounds.calls)
    left = (
        bounds.losses,
        bounds.duplicates,
        bounds.lease_ends,
        bounds.crashes,
        bounds.registry_losses,
        bounds.node_losses,
        bounds.fence_timeouts,
    )
    facts = Facts()
    bare = World(bounds, Memory(), tuple(nodes), clients, registry, frozenset(), left, facts, 0)
    scene = Scene(bare)
    for record in (*scene_records, Submitted(NOW, KEY, V0, "r")):
        scene.record(record)
    return scene.world()


def successors(world: World) -> Iterator[tuple[str, World, list[str]]]:
    """Each possible action with the world after it and the rules it broke."""
    for name, act in _actions(world):
        scene = Scene(world)
        try:
            act(scene)
            _hurry(scene)
        except IllegalTransition:  # nothing of this world may be illegal to the core
            scene.broken.append("IllegalTransition")
        _check_idle(scene)
        _check_publication(scene)
        yield name, scene.world(), scene.broken


def is_goal(world: World) -> bool:
    """The newest version can publish somewhere, and nothing is left open."""
    newest = world.registry.version
    if not world.registry.up or any(c.status != "done" for c in world.clients):
        return False
    quiet = not any(n.scope.transitions or n.scope.pending for n in world.nodes)
    return quiet and any(_can_publish(n, newest) for n in world.nodes)


def _hurry(s: Scene) -> None:
    """Do at once what commutes with everything else: fewer states, the same behaviours.

    A stale commit event changes nothing now or later; acks that nobody waits for neither; a retention
    nobody will use may end at once, when there is no memory to lose by it.
    """
    for message in list(s.messages):
        match message:
            case Streamed(i, Change.SUPERSEDE, version) if s.nodes[i].scope.version >= version:
                _deliver(s, message, keep=False)
            case Reported(i):
                scope = s.nodes[i].scope
                if not scope.pending and not scope.transitions:
                    s.messages.discard(message)
    for i in range(len(s.nodes)):
        if s.nodes[i].switch is not None and not s.bounds.frames:
            _barrier(s, i)  # no frame can be in between
        if not s.bounds.engine:
            for version in _unexpected(s, i):
                s.feed(i, RetentionEnded(version))
        due = {t.to_version for t in s.nodes[i].scope.transitions if not t.acknowledged}
        watches = frozenset(w for w in s.nodes[i].watches if w[1] in due)
        if watches != s.nodes[i].watches:
            s.set(i, watches=watches)


def _unexpected(s: Scene | World, i: int) -> list[Version]:
    """Fenced versions of node i whose successor nobody is about to submit."""
    mine = [c for c in s.clients if c.node == i]
    if any(c.status == "waiting" for c in mine):
        return []  # a ttl is longer than an answer takes
    coming = {c.to_version for c in mine if c.status in ("fenced", "certified")}
    chain = s.nodes[i].scope.transitions
    return [
        t.to_version
        for t in chain
        if t.fenced and not t.is_decided and t.to_version not in coming
        and t.to_version == s.nodes[i].scope.version
    ]


def _check_publication(s: Scene) -> None:
    """In every state: whatever could be published now, from any buffer, must be allowed."""
    if s.bounds.frames:
        return
    for i, node in enumerate(s.nodes):
        for version in _buffered(node):
            if _can_publish(node, version):
                frame = Published(NOW, KEY, version, "r", f"n{i}/api", 0)
                s.broken += s.facts.judge(frame)


def _buffered(node: Node) -> frozenset[Version]:
    """Versions whose frames may lie in this node's buffers: what it served, what it now admits."""
    if node.scope.admission is Admission.CANCELLED:
        return node.served
    return node.served | {node.word}


def _check_idle(scene: Scene) -> None:
    """A node without open transitions keeps no pins, unless its successor is on its way."""
    if not scene.bounds.engine:
        return
    for i, node in enumerate(scene.nodes):
        waiting = any(c.node == i and c.status in ("fenced", "certified") for c in scene.clients)
        if not node.scope.transitions and node.engine.fence is None and not waiting:
            if node.engine.pinned:
                scene.record(Idle(NOW, f"n{i}"))


def _can_publish(node: Node, version: Version) -> bool:
    return gate.may_publish(
        known=node.word,
        frame=version,
        now_ns=gate.deadline_ns(node.expired, 1.0),
        deadline_ns=node.lease.deadline_ns,
    )


def _actions(world: World) -> Iterator[Act]:
    for k, client in enumerate(world.clients):
        yield from _client_actions(world, k, client)
    for message in world.messages:
        yield from _network_actions(world, message)
    for i, node in enumerate(world.nodes):
        yield from _gate_actions(world, i, node)
        yield from _sidecar_actions(world, i, node)
        if world.bounds.engine:
            yield from _engine_actions(world, i, node)
    yield from _registry_actions(world)


# --- clients


def _client_actions(world: World, k: int, client: Client) -> Iterator[Act]:
    if client.status == "todo" and world.registry.up:
        yield f"call{k}", lambda s: _call(s, k)
    node = world.nodes[client.node]
    if client.status == "fenced" and world.bounds.engine:
        yield f"submit{k}", lambda s: _align(s, k)
    if client.status == "fenced" and not world.bounds.engine:
        yield f"submit{k}", lambda s: (_align(s, k), _admit(s, k))
    if client.status == "certified":
        yield f"admit{k}", lambda s: _admit(s, k)
    if client.status == "waiting" and not _in_flight(world, k):
        yield f"timeout{k}", lambda s: _time_out(s, k, node)


def _call(s: Scene, k: int) -> None:
    client = s.clients[k]
    expected = client.expected or s.nodes[client.node].scope.version
    assert expected is not None
    attempt = client.attempt + 1
    s.clients[k] = replace(client, status="waiting", attempt=min(attempt, 2), expected=expected)
    call = f"c{k}#{attempt}"
    s.feed(client.node, ChangeRequested(call, client.change, expected, f"c{k}.{client.key}"))


def _in_flight(world: World, k: int) -> bool:
    prefix = f"c{k}#"
    for m in world.messages:
        call = m.call if isinstance(m, Request) else m.event.call if isinstance(m, Answer) else ""
        if call.startswith(prefix):
            return True
    scope = world.nodes[world.clients[k].node].scope
    calls = {c for t in scope.transitions for c in (*t.calls, *t.fence_calls)}
    return any(c.startswith(prefix) for c in calls)


def _time_out(s: Scene, k: int, node: Node) -> None:
    pending = [p.call for p in node.scope.pending if p.call.startswith(f"c{k}#")]
    for call in pending:
        s.feed(s.clients[k].node, CommitRefused(call, Refusal.UNAVAILABLE))
    if not pending:  # its sidecar crashed
        s.clients[k] = replace(s.clients[k], status="todo")


def _align(s: Scene, k: int) -> None:
    """The successor reaches the engine: admission check, then ALIGN."""
    client = s.clients[k]
    i, to_version = client.node, client.to_version
    assert to_version is not None
    node = s.nodes[i]
    target = node.scope.transition_to(to_version)
    if node.word != to_version or target is None or target.stage is not Phase.ALIGNING:
        _give_up(s, k)
        return
    tokens = _certify(s, i, to_version) if s.bounds.engine else 0
    if not tokens:
        s.feed(i, Certified(to_version, 0, StopReason.NO_PREDECESSOR))
    s.clients[k] = replace(client, status="certified", tokens=tokens)


def _give_up(s: Scene, k: int) -> None:
    client = s.clients[k]
    assert client.to_version is not None
    s.feed(client.node, RetentionEnded(client.to_version))
    s.clients[k] = replace(client, status="done", tokens=0, expected=None)


def _certify(s: Scene, i: int, to_version: Version) -> int:
    """A careless engine certifies whatever is written; the core must refuse what is not closed."""
    scope, engine = s.nodes[i].scope, s.nodes[i].engine
    old = [(v, b) for v, b in engine.tables if v in engine.written and v < to_version]
    if not old:
        return 0
    _, blocks = old[-1]
    receipt = scope.receipt(f"n{i}", to_version)
    frontier = len(OLD_TOKENS)
    if receipt is not None:
        frontier = alignment.frontier_tokens(receipt.participants, {(f"n{i}", 0, 0, 0)})
    groups = [alignment.KvGroup(BLOCK, ((0, len(blocks)),))]
    result = alignment.align(OLD_TOKENS, NEW_TOKENS, frontier=frontier, groups=groups)
    tokens = result.certified_tokens
    try:
        s.feed(i, Certified(to_version, tokens, result.stop_reason))
    except IllegalTransition:
        return 0
    if tokens:
        shared = blocks[: tokens // BLOCK]
        s.record(CertificateIssued(NOW, f"n{i}", KEY, to_version, 0, tokens, shared, LATER))
    return tokens


def _admit(s: Scene, k: int) -> None:
    client = s.clients[k]
    i, version = client.node, client.to_version
    if client.status != "certified" or version is None:
        return
    target = s.nodes[i].scope.transition_to(version)
    resuming = target is not None and target.stage is Phase.RESUMING
    if s.nodes[i].word != version or not resuming:
        _give_up(s, k)
        return
    if s.bounds.engine:
        _build_table(s, i, client, version)
    s.record(Submitted(NOW, KEY, version, "r"))
    s.set(i, served=s.nodes[i].served | {version})
    s.clients[k] = replace(client, status="done", tokens=0, expected=None)
    s.feed(i, SuccessorAdmitted(version, "r"))


def _issued(s: Scene, i: int, version: Version) -> CertificateIssued | None:
    return next(iter(s.facts.certificates.get((f"n{i}", KEY, version), ())), None)


def _build_table(s: Scene, i: int, client: Client, version: Version) -> None:
    engine = s.nodes[i].engine
    fresh = (20 * version.term + 2 * version.epoch, 20 * version.term + 2 * version.epoch + 1)
    shared = _issued(s, i, version)
    adopted: tuple[int, ...] = ()
    if client.tokens and shared is not None and _verified(client, version, shared):
        adopted = shared.blocks
        s.record(Adopted(NOW, f"n{i}", KEY, version, "r", 0, client.tokens, adopted))
    own = fresh[len(adopted) :]
    s.record(Allocated(NOW, f"n{i}", KEY, version, own))
    s.engine(i, tables=(*engine.tables, (version, (*adopted, *own))))


def _verified(client: Client, version: Version, issued: CertificateIssued) -> bool:
    """Sign and check the certificate as the engine does."""
    part = Participant(issued.node, "boot", 0, 0, 0, issued.tokens, True)
    draft = certificates.Certificate(
        key=KEY,
        from_version=Version(version.term, version.epoch - 1),
        to_version=issued.to_version,
        generation=issued.generation,
        fingerprint="f",
        numerical_mode="m",
        tokens=issued.tokens,
        token_digest=certificates.token_digest(OLD_TOKENS, issued.tokens),
        blocks=(issued.blocks,),
        participants=(part,),
        expires_ns=issued.expires_ns,
    )
    facts = certificates.AdoptionFacts(
        KEY, version, 0, "f", "m", NEW_TOKENS, frozenset(("boot",)), NOW
    )
    signed = certificates.certify(draft, SIGNING_KEY)
    return certificates.verify(signed, facts, signing_key=SIGNING_KEY) is None


# --- the network


def _network_actions(world: World, message: object) -> Iterator[Act]:
    name = type(message).__name__
    where = getattr(message, "node", "")
    if isinstance(message, Request):
        if world.registry.up:
            yield f"registry takes {message.call}", lambda s: _deliver(s, message, keep=False)
            yield from _twice(world, f"{name}{where}", message)
        if world.left[LOSS]:
            yield f"lose request {message.call}", lambda s: _lose(s, message)
        return
    if _behind_rebuild(world, message):
        return
    yield f"{name} to n{where}", lambda s: _deliver(s, message, keep=False)
    if not (isinstance(message, Streamed) and message.change is Change.REBUILD):
        yield from _twice(world, f"{name}{where}", message)
    if isinstance(message, Answer) and world.left[LOSS]:
        yield f"lose answer {message.event.call}", lambda s: _lose(s, message)


def _behind_rebuild(world: World, message: object) -> bool:
    """What the rebuilt registry says is read after the rebuild itself: a stream has an order."""
    where, term = getattr(message, "node", -1), 0
    if isinstance(message, Streamed) and message.change is not Change.REBUILD:
        term = message.version.term
    elif isinstance(message, Answer) and isinstance(message.event, Committed):
        term = message.event.to_version.term
    rebuilds = (m for m in world.messages if isinstance(m, Streamed) and m.change is Change.REBUILD)
    return any(m.node == where and m.version.term == term for m in rebuilds)


def _twice(world: World, name: str, message: object) -> Iterator[Act]:
    if world.left[DUPLICATE]:
        yield f"duplicate {name}", lambda s: _deliver(s, message, keep=True)


def _lose(s: Scene, message: object) -> None:
    s.messages.discard(message)  # type: ignore[arg-type]
    s.left[LOSS] -= 1


def _deliver(s: Scene, message: object, *, keep: bool) -> None:
    if keep:
        s.left[DUPLICATE] -= 1
    else:
        s.messages.discard(message)  # type: ignore[arg-type]
    match message:
        case Request():
            s.commit(message)
        case Answer(i, event, leases):
            if any(p.call == event.call for p in s.nodes[i].scope.pending):
                s.leases_seen = leases
                s.feed(i, event)
        case Streamed(i, change, version, sequence):
            if change is Change.REBUILD:
                s.feed(i, Rebuilt(version, version.epoch, local_gates(i)))
            else:
                s.feed(i, VersionObserved(change, version, sequence, version.epoch, local_gates(i)))
            applied = gate.Applied(KEY.tenant, sequence)
            s.set(i, lease=s.nodes[i].lease.step(applied))
        case Reported(i, events):
            for event in events:
                s.feed(i, event)


# --- gates


def _gate_actions(world: World, i: int, node: Node) -> Iterator[Act]:
    if node.checked is not None:
        yield f"n{i} hands on {node.checked}", lambda s: _hand(s, i)
    else:
        for version in _buffered(node) if world.bounds.frames else ():
            if _can_publish(node, version):
                yield f"n{i} checks {version}", lambda s, v=version: s.set(i, checked=v)
        if node.switch is not None:
            yield f"n{i} barrier", lambda s: _barrier(s, i)


def _hand(s: Scene, i: int) -> None:
    version = s.nodes[i].checked
    assert version is not None
    s.set(i, checked=None)
    s.record(Published(NOW, KEY, version, "r", f"n{i}/api", 0))
    s.record(Delivered(NOW, KEY, version, "r", f"reader of n{i}", 0))


def _barrier(s: Scene, i: int) -> None:
    version = s.nodes[i].switch
    assert version is not None
    s.set(i, switch=None)
    s.feed(i, GateAcked(f"n{i}/api", version))


# --- sidecars and their leases


def _sidecar_actions(world: World, i: int, node: Node) -> Iterator[Act]:
    for peer, version, lease_no in node.watches:
        over = world.nodes[peer].expired >= lease_no or world.nodes[peer].lease_no > lease_no
        if over and world.nodes[peer].checked is None:
            watch = (peer, version, lease_no)
            yield f"n{i} outwaits lease of n{peer}", lambda s, w=watch: _outwait(s, i, w)
    if world.left[LEASE_END] and i == 1 and world.registry.leased[i] and node.checked is None:
        yield f"lease of n{i} ends", lambda s: _lease_ends(s, i, LEASE_END)
    if world.left[CRASH] and node.checked is None and world.registry.up:
        yield f"crash n{i}", lambda s: _crash(s, i)
    awaited = any((i, node.lease_no) == (w[0], w[2]) for n in world.nodes for w in n.watches)
    lost = world.bounds.losses - world.left[LOSS] + world.bounds.crashes - world.left[CRASH]
    early = awaited and lost and node.lease_no <= len(world.clients) + lost  # acks may be gone
    if (early or not world.registry.leased[i]) and world.registry.up:
        yield f"renew n{i}", lambda s: _renew(s, i)
    for version in _unexpected(world, i):
        yield f"n{i} retention {version}", lambda s, v=version: s.feed(i, RetentionEnded(v))
    for t in node.scope.transitions:
        if (world.left[TIMEOUT] or _peer_lost(world)) and not t.fenced:
            yield f"n{i} fence timeout {t.to_version}", lambda s, v=t.to_version: _fence_out(s, i, v)


def _peer_lost(world: World) -> bool:
    """A receipt may never come: then the timer of the fence must end the wait."""
    b, left = world.bounds, world.left
    return left[CRASH] < b.crashes or left[NODE] < b.node_losses


def _outwait(s: Scene, i: int, watch: tuple[int, Version, int]) -> None:
    """The lease that the commit saw is over on the registry's clock, so on the node's as well."""
    peer, version, lease_no = watch
    s.set(peer, expired=max(lease_no, s.nodes[peer].expired))
    s.set(i, watches=s.nodes[i].watches - {watch})
    s.feed(i, GateLeaseEnded(f"n{peer}", version))


def _lease_ends(s: Scene, i: int, budget: int | None) -> None:
    if budget is not None:
        s.left[budget] -= 1
    s.set(i, expired=s.nodes[i].lease_no)
    leased = tuple(held and j != i for j, held in enumerate(s.registry.leased))
    s.registry = replace(s.registry, leased=leased)


def _renew(s: Scene, i: int) -> None:
    node = s.nodes[i]
    number = node.lease_no + 1
    s.set(i, lease=renewed(node.lease, number, s.registry.sequence), lease_no=number)
    leased = tuple(held or j == i for j, held in enumerate(s.registry.leased))
    s.registry = replace(s.registry, leased=leased)


def _crash(s: Scene, i: int) -> None:
    """The sidecar starts again: from the registry's record, gates closed, no call remembered."""
    s.left[CRASH] -= 1
    _lease_ends(s, i, None)
    scope = fresh_scope(i, s.registry)
    lease = gate.LeaseState().step(gate.TenantJoined(KEY.tenant, s.registry.sequence))
    s.set(i, scope=scope, lease=lease, word=s.registry.version, switch=None, watches=frozenset())
    for j in range(len(s.nodes)):
        if j != i:  # a lease under another boot id: the registry's stream shows it
            s.feed(j, NodeLost(f"n{i}"))
    for k, client in enumerate(s.clients):
        if client.node == i and client.status != "done":
            s.clients[k] = replace(client, status="todo", tokens=0)


def _fence_out(s: Scene, i: int, version: Version) -> None:
    s.left[TIMEOUT] = max(0, s.left[TIMEOUT] - 1)
    s.feed(i, FenceTimedOut(version))


# --- the registry


def _registry_actions(world: World) -> Iterator[Act]:
    if world.left[REGISTRY] and world.registry.up:
        yield "registry loses its data", _lose_registry
    closed = not any(_can_publish(n, n.word) for n in world.nodes)
    if not world.registry.up:
        if closed:
            yield "rebuild", _rebuild
        else:
            yield "every lease ends", lambda s: [_lease_ends(s, i, None) for i in range(len(s.nodes))]


def _lose_registry(s: Scene) -> None:
    """Back to an old snapshot: no commit is left, no lease, and nothing of the stream."""
    s.left[REGISTRY] -= 1
    s.registry = Registry(up=False, leased=(False,) * len(s.nodes), sequence=s.registry.sequence)
    for message in list(s.messages):
        if not isinstance(message, Answer):
            s.messages.discard(message)
    for i in range(len(s.nodes)):
        s.feed(i, RegistryLost())


def _rebuild(s: Scene) -> None:
    """Under a higher term, from what the nodes know, and only once every lease has ended."""
    term = V0.term if s.bounds.same_term else V0.term + 1
    known = [n.scope.version for n in s.nodes if n.scope.version is not None]
    epoch = V0.epoch if s.bounds.same_term else max(known).epoch
    version = Version(term, epoch)
    sequence = s.registry.sequence + 1
    s.registry = replace(s.registry, up=True, version=version, sequence=sequence)
    s.record(RegistryRebuilt(NOW, KEY.tenant, term))
    for i in range(len(s.nodes)):
        s.messages.add(Streamed(i, Change.REBUILD, version, sequence))


# --- engines


def _engine_actions(world: World, i: int, node: Node) -> Iterator[Act]:
    engine = node.engine
    if engine.writing is not None:
        yield f"n{i} step of {engine.writing} done", lambda s: _step_done(s, i)
    elif engine.fence is not None:
        yield f"n{i} safe point", lambda s: s.safe_point(i)
    else:
        newest = engine.tables[-1][0] if engine.tables else None
        if newest == node.word and newest not in engine.written:
            yield f"n{i} starts a step of {newest}", lambda s, v=newest: s.engine(i, writing=v)
    if world.left[NODE] and i == 1:
        yield f"engine of n{i} lost", lambda s: _lose_engine(s, i)


def _step_done(s: Scene, i: int) -> None:
    engine = s.nodes[i].engine
    version = engine.writing
    assert version is not None
    blocks = dict(engine.tables).get(version, ())
    shared = _issued(s, i, version)
    own = tuple(b for b in blocks if shared is None or b not in shared.blocks)
    s.record(Wrote(NOW, f"n{i}", KEY, version, own))
    s.engine(i, writing=None, written=engine.written | {version})


def _lose_engine(s: Scene, i: int) -> None:
    s.left[NODE] -= 1
    s.record(NodeRestarted(NOW, f"n{i}"))
    s.set(i, engine=Engine())
    for j in range(len(s.nodes)):
        s.feed(j, NodeLost(f"n{i}"))


"""What the network, the gates, the sidecars and the registry may do, and their adversary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim_scene import (
    Act,
    Scene,
    buffered,
    can_publish,
    fresh_scope,
    local_gates,
    renewed,
    unexpected,
)
from sim_world import (
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
    Node,
    Registry,
    Reported,
    Request,
    Streamed,
    World,
)

from retire.protocol import gate
from retire.protocol.events import (
    Change,
    Committed,
    FenceTimedOut,
    GateAcked,
    GateLeaseEnded,
    NodeLost,
    Rebuilt,
    RegistryLost,
    RetentionEnded,
    VersionObserved,
)
from retire.protocol.history import Delivered, Published, RegistryRebuilt
from retire.protocol.versions import Version

# --- the network


def network_actions(world: World, message: object) -> Iterator[Act]:
    name = type(message).__name__
    where = getattr(message, "node", "")
    if isinstance(message, Request):
        if world.registry.up:
            yield f"registry takes {message.call}", lambda s: deliver(s, message, keep=False)
            yield from _twice(world, f"{name}{where}", message)
        if world.left[LOSS]:
            yield f"lose request {message.call}", lambda s: _lose(s, message)
        return
    if _behind_rebuild(world, message):
        return
    yield f"{name} to n{where}", lambda s: deliver(s, message, keep=False)
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
        yield f"duplicate {name}", lambda s: deliver(s, message, keep=True)


def _lose(s: Scene, message: object) -> None:
    s.messages.discard(message)  # type: ignore[arg-type]
    s.left[LOSS] -= 1


def deliver(s: Scene, message: object, *, keep: bool) -> None:
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


def gate_actions(world: World, i: int, node: Node) -> Iterator[Act]:
    if node.checked is not None:
        yield f"n{i} hands on {node.checked}", lambda s: _hand(s, i)
    else:
        for version in buffered(node) if world.bounds.frames else ():
            if can_publish(node, version):
                yield f"n{i} checks {version}", lambda s, v=version: s.set(i, checked=v)
        if node.switch is not None:
            yield f"n{i} barrier", lambda s: barrier(s, i)


def _hand(s: Scene, i: int) -> None:
    version = s.nodes[i].checked
    assert version is not None
    s.set(i, checked=None)
    s.record(Published(NOW, KEY, version, "r", f"n{i}/api", 0))
    s.record(Delivered(NOW, KEY, version, "r", f"reader of n{i}", 0))


def barrier(s: Scene, i: int) -> None:
    version = s.nodes[i].switch
    assert version is not None
    s.set(i, switch=None)
    s.feed(i, GateAcked(f"n{i}/api", version))


# --- sidecars and their leases


def sidecar_actions(world: World, i: int, node: Node) -> Iterator[Act]:
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
    for version in unexpected(world, i):
        yield f"n{i} retention {version}", lambda s, v=version: s.feed(i, RetentionEnded(v))
    for t in node.scope.transitions:
        if (world.left[TIMEOUT] or _peer_lost(world)) and not t.fenced:
            yield (
                f"n{i} fence timeout {t.to_version}",
                lambda s, v=t.to_version: _fence_out(s, i, v),
            )


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


def registry_actions(world: World) -> Iterator[Act]:
    if world.left[REGISTRY] and world.registry.up:
        yield "registry loses its data", _lose_registry
    closed = not any(can_publish(n, n.word) for n in world.nodes)
    if not world.registry.up:
        if closed:
            yield "rebuild", _rebuild
        else:
            yield (
                "every lease ends",
                lambda s: [_lease_ends(s, i, None) for i in range(len(s.nodes))],
            )


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

"""Every action that is possible in a world, the worlds it leads to, and what is checked in each."""

from __future__ import annotations

from collections.abc import Iterator

from sim_control import (
    barrier,
    deliver,
    gate_actions,
    network_actions,
    registry_actions,
    sidecar_actions,
)
from sim_handoff import client_actions, engine_actions
from sim_scene import Act, Scene, buffered, can_publish, fresh_scope, renewed, unexpected
from sim_world import (
    KEY,
    NOW,
    V0,
    Bounds,
    Client,
    Engine,
    Memory,
    Node,
    Registry,
    Reported,
    Streamed,
    World,
)

from retire.protocol import gate
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import Change, RetentionEnded
from retire.protocol.history import Allocated, Idle, Published, Submitted
from retire.protocol.invariants import Facts


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
    return quiet and any(can_publish(n, newest) for n in world.nodes)


def _hurry(s: Scene) -> None:
    """Do at once what commutes with everything else: fewer states, the same behaviours.

    A stale commit event changes nothing now or later; acks that nobody waits for neither; a
    retention nobody will use may end at once, when there is no memory to lose by it.
    """
    for message in list(s.messages):
        match message:
            case Streamed(i, Change.SUPERSEDE, version) if s.nodes[i].scope.version >= version:
                deliver(s, message, keep=False)
            case Reported(i):
                scope = s.nodes[i].scope
                if not scope.pending and not scope.transitions:
                    s.messages.discard(message)
    for i in range(len(s.nodes)):
        if s.nodes[i].switch is not None and not s.bounds.frames:
            barrier(s, i)  # no frame can be in between
        if not s.bounds.engine:
            for version in unexpected(s, i):
                s.feed(i, RetentionEnded(version))
        due = {t.to_version for t in s.nodes[i].scope.transitions if not t.acknowledged}
        watches = frozenset(w for w in s.nodes[i].watches if w[1] in due)
        if watches != s.nodes[i].watches:
            s.set(i, watches=watches)


def _check_publication(s: Scene) -> None:
    """In every state: whatever could be published now, from any buffer, must be allowed."""
    if s.bounds.frames:
        return
    for i, node in enumerate(s.nodes):
        for version in buffered(node):
            if can_publish(node, version):
                frame = Published(NOW, KEY, version, "r", f"n{i}/api", 0)
                s.broken += s.facts.judge(frame)


def _check_idle(scene: Scene) -> None:
    """A node without open transitions keeps no pins, unless its successor is on its way."""
    if not scene.bounds.engine:
        return
    for i, node in enumerate(scene.nodes):
        waiting = any(c.node == i and c.status in ("fenced", "certified") for c in scene.clients)
        idle = not node.scope.transitions and node.engine.fence is None and not waiting
        if idle and node.engine.pinned:
            scene.record(Idle(NOW, f"n{i}"))


def _actions(world: World) -> Iterator[Act]:
    for k, client in enumerate(world.clients):
        yield from client_actions(world, k, client)
    for message in world.messages:
        yield from network_actions(world, message)
    for i, node in enumerate(world.nodes):
        yield from gate_actions(world, i, node)
        yield from sidecar_actions(world, i, node)
        if world.bounds.engine:
            yield from engine_actions(world, i, node)
    yield from registry_actions(world)

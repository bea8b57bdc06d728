"""What clients and engines may do: call, time out, align, adopt, write, stop, be lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim_scene import Act, Scene
from sim_world import KEY, NODE, NOW, Answer, Client, Engine, Node, Request, World

from retire.protocol import alignment, certificates
from retire.protocol.contract import Participant, StopReason
from retire.protocol.errors import IllegalTransition
from retire.protocol.events import (
    Certified,
    ChangeRequested,
    CommitRefused,
    NodeLost,
    Refusal,
    RetentionEnded,
    SuccessorAdmitted,
)
from retire.protocol.history import (
    Adopted,
    Allocated,
    CertificateIssued,
    NodeRestarted,
    Submitted,
    Wrote,
)
from retire.protocol.state import Phase
from retire.protocol.versions import Version

SIGNING_KEY = bytes(32)
OLD_TOKENS, NEW_TOKENS, BLOCK = [0, 1, 2, 3], [0, 1, 8, 9], 2
LATER = NOW + 1

# --- clients


def client_actions(world: World, k: int, client: Client) -> Iterator[Act]:
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
    return s.facts.certificates.get((f"n{i}", KEY, version))


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


# --- engines


def engine_actions(world: World, i: int, node: Node) -> Iterator[Act]:
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

"""Two nodes on one registry with a scope live on both: barriers, leases, kills and stops,
measured.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio
from sidecar_world import LEASE_S, Gate, Sidecar, Story, collected, eventually

from retire.mailbox import GateState
from retire.protocol.codec import receipt_from_dict
from retire.protocol.contract import Contract, Inherit
from retire.protocol.errors import InvalidField, UnknownScope
from retire.protocol.history import Acknowledged, CommitMade
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.sidecar import convert
from retire.sidecar.client import Joined
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry.history import read

FIRST = Version(1, 0)


@dataclass
class Pair:
    """A scope joined on two nodes."""

    a: Sidecar
    b: Sidecar
    gate_a: Gate
    gate_b: Gate
    on_a: Joined
    on_b: Joined
    key: ScopeKey

    @property
    def story(self) -> Story:
        return Story(self.gate_a.client, self.key)

    def scope(self, name: str) -> ScopeKey:
        return ScopeKey(self.key.tenant, name)


@asynccontextmanager
async def joined_on(a: Sidecar, b: Sidecar, key: ScopeKey) -> AsyncIterator[Pair]:
    await asyncio.gather(a.until_held(), b.until_held())
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        on_a = await gate_a.client.join(key)
        on_b = await gate_b.client.join(key)
        yield Pair(a, b, gate_a, gate_b, on_a, on_b, key)


@pytest_asyncio.fixture
async def pair(
    calm_nodes: tuple[EmbeddedServer, Sidecar, Sidecar], request: pytest.FixtureRequest
) -> AsyncIterator[Pair]:
    """On nodes that other tests use too, in a tenant of its own."""
    _, a, b = calm_nodes
    tenant = request.node.name.removeprefix("test_")[:40].strip("_").replace("_", "-")
    async with joined_on(a, b, ScopeKey(tenant, "shared")) as made:
        yield made


@pytest_asyncio.fixture
async def mortal_pair(start: Callable[..., Sidecar]) -> AsyncIterator[Pair]:
    """On nodes of its own, to be killed and stopped."""
    a, b = start("a", RETIRE_FENCE_WAIT_S="1"), start("b", RETIRE_FENCE_WAIT_S="1")
    async with joined_on(a, b, ScopeKey("acme", "shared")) as made:
        yield made


async def test_both_nodes_switch_and_send_receipts(pair: Pair):
    """Every gate of both nodes is closed at UNPUBLISHABLE; receipts of both engines are in."""
    for gate in (pair.gate_a, pair.gate_b):
        receipt = pb.Participant(boot_id=gate.sidecar.node, frontier_tokens=64, closed=True)
        gate.fence_reply = pb.Fenced(participants=[receipt])
    events = pair.story.events(FIRST)
    async for event in events:
        if event.WhichOneof("event") == "unpublishable":
            break
    assert not pair.gate_a.may_publish(pair.on_a.slot)
    assert not pair.gate_b.may_publish(pair.on_b.slot)
    assert {g.gate: g.outcome for g in event.unpublishable.gates} == {
        "a/g1": "acked",
        "b": "acked",
    }
    answers = await collected(events)
    assert {p.node for p in answers.fenced.participants} == {"a", "b"}
    assert not answers.fenced.missing
    assert [s.kind for s in pair.gate_b.switches] == ["supersede"]
    again = await pair.gate_b.client.join(pair.key)
    assert again.version == Version(1, 1) and pair.gate_b.may_publish(again.slot)


async def test_what_the_other_node_delivered_is_in_the_receipt(pair: Pair):
    """Also when its fence is over before its gates have answered: they know what was delivered."""
    retired = pb.RetiredRequest(request_id="r2", state="decode", frontier_tokens=64)
    pair.gate_b.fence_reply = pb.Fenced(requests=[retired])
    pair.gate_b.last_published = {"r2": 7}
    pair.gate_b.hold.clear()
    asyncio.get_running_loop().call_later(0.3, pair.gate_b.hold.set)
    answers = await collected(pair.story.events(FIRST))
    (request,) = answers.fenced.requests
    assert (request.request_id, request.state, request.last_published_index) == ("r2", "decode", 7)


async def test_the_other_node_holds_up_the_answer(pair: Pair):
    """UNPUBLISHABLE is not answered while a process of the other node has not passed its barrier,
    even when that node's fence is over."""
    pair.gate_b.hold.clear()
    asyncio.get_running_loop().call_later(0.6, pair.gate_b.hold.set)
    answers = await pair.story.supersede(FIRST)
    assert 0.6 <= answers.took_s("unpublishable") < LEASE_S
    assert answers.outcomes["b"] == "acked"
    assert pair.gate_b.fences


async def test_contract_reaches_the_other_engine(pair: Pair):
    """The other node fences under the committer's contract, not under the default one."""
    contract = Contract(inherit=Inherit.NEVER, ttl_s=7.0)
    mutation = pair.story.mutation(FIRST)
    await collected(pair.gate_a.client.supersede(pair.key, mutation, contract=contract))
    assert convert.contract_from(pair.gate_b.fences[0].contract) == contract


async def test_a_killed_node_is_waited_for_exactly_its_lease(mortal_pair: Pair):
    """A node killed mid-transition counts when its lease has ended: not before, and not much later;
    its gate is closed by then; its receipts are named missing."""
    mortal_pair.gate_b.hold.clear()
    mortal_pair.gate_b.fence = _never
    events = mortal_pair.story.events(FIRST)
    await anext(events)
    mortal_pair.b.kill()
    killed_s = time.monotonic()
    deadline_s = killed_s + mortal_pair.gate_b.view.lease_left_ns() / 1e9
    answers = await collected(events)
    acknowledged_s = answers.at_s["unpublishable"]
    print(
        f"lease ended {deadline_s - killed_s:.3f} s after the kill, "
        f"acknowledged {acknowledged_s - deadline_s:+.3f} s later"
    )
    assert answers.outcomes == {"a/g1": "acked", "b": "lease_ended"}
    assert deadline_s <= acknowledged_s < deadline_s + 0.7
    assert not mortal_pair.gate_b.may_publish(mortal_pair.on_b.slot)
    assert list(answers.fenced.missing) == ["b"]


async def test_a_node_dead_before_the_commit_still_has_its_lease(mortal_pair: Pair):
    """Killed before the commit: its processes may publish until the deadline, so it is waited
    for.
    """
    mortal_pair.b.kill()
    assert mortal_pair.gate_b.may_publish(mortal_pair.on_b.slot)
    events = mortal_pair.story.events(FIRST)
    await anext(events)
    answers = await collected(events)
    assert answers.outcomes["b"] == "lease_ended"
    assert not mortal_pair.gate_b.may_publish(mortal_pair.on_b.slot)


async def test_a_stopped_node_is_closed_before_and_after(mortal_pair: Pair):
    """SIGSTOP longer than the lease, a commit meanwhile, SIGCONT: the old slot publishes neither at
    the answer nor at any moment after the node has resumed, and then the new one does."""
    mortal_pair.b.send(signal.SIGSTOP)
    answers = await mortal_pair.story.supersede(FIRST)
    assert answers.outcomes["b"] == "lease_ended"
    assert mortal_pair.gate_b.state(mortal_pair.on_b.slot) is GateState.LEASE_EXPIRED
    mortal_pair.b.send(signal.SIGCONT)
    watching = asyncio.create_task(_ever_open(mortal_pair.gate_b, mortal_pair.on_b.slot, 2.5))
    status = await mortal_pair.b.until_held()
    assert status.term == 1
    assert not await watching
    assert mortal_pair.gate_b.state(mortal_pair.on_b.slot) is GateState.STALE
    joined = await mortal_pair.gate_b.client.join(mortal_pair.key)
    assert joined.version == Version(1, 1) and mortal_pair.gate_b.may_publish(joined.slot)


async def test_both_nodes_supersede_at_once(pair: Pair):
    """One of two nodes wins; both mailboxes end at the winner's version."""
    story_b = Story(pair.gate_b.client, pair.key)
    results = await asyncio.gather(
        pair.story.supersede(FIRST), story_b.supersede(FIRST), return_exceptions=True
    )
    assert sum(isinstance(r, Exception) for r in results) == 1
    for gate in (pair.gate_a, pair.gate_b):
        view = await gate.client.inspect(pair.key)
        assert convert.version_from(view.version) == Version(1, 1)


async def test_a_child_scope_on_the_other_node_moves_with_its_parent(
    pair: Pair, calm_nodes: tuple[EmbeddedServer, Sidecar, Sidecar]
):
    """A supersede of a parent waits for the gate of a child on a node that holds only the child."""
    parent, child = pair.scope("parent"), pair.scope("child")
    await pair.gate_a.client.join(parent)
    client = AsyncRegistry(calm_nodes[0].url)
    await client.register(child, term=1, parent=parent.scope)
    await client.close()
    on_b = await pair.gate_b.client.join(child)
    pair.gate_b.hold.clear()
    asyncio.get_running_loop().call_later(0.5, pair.gate_b.hold.set)
    answers = await Story(pair.gate_a.client, parent).supersede(FIRST)
    assert 0.5 <= answers.took_s("unpublishable") < LEASE_S
    assert answers.outcomes == {"a/g1": "acked", "b": "acked"}
    assert not pair.gate_b.may_publish(on_b.slot)
    view = await pair.gate_b.client.inspect(child)
    assert convert.version_from(view.version) == Version(1, 1)
    told = [one for one in read(pair.gate_a.sidecar.history) if isinstance(one, CommitMade)]
    moved = {one.key: (one.from_version, one.to_version) for one in told}
    assert moved[parent] == moved[child] == (FIRST, Version(1, 1))


async def test_a_child_on_the_same_host_holds_up_its_parent(
    pair: Pair, calm_nodes: tuple[EmbeddedServer, Sidecar, Sidecar]
):
    """A supersede of a parent is acknowledged after the child's barrier on the committer's host."""
    child = pair.scope("child")
    client = AsyncRegistry(calm_nodes[0].url)
    await client.register(child, term=1, parent=pair.key.scope)
    await client.close()
    on_a = await pair.gate_a.client.join(child)
    answers = await pair.story.supersede(FIRST)
    assert not pair.gate_a.may_publish(on_a.slot)
    assert {s.key.scope for s in pair.gate_a.switches} == {"child", "shared"}
    assert answers.outcomes == {"a/g1": "acked", "b": "acked"}


async def _never(command: pb.Fence) -> pb.Fenced:
    await asyncio.sleep(60)
    return pb.Fenced()


async def _ever_open(gate: Gate, slot: pb.SlotRef, for_s: float) -> bool:
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        if gate.may_publish(slot):
            return True
        await asyncio.sleep(0.001)
    return False


async def test_watchers_on_the_other_node_see_the_receipt(pair: Pair):
    """WatchTransitions on b shows a's supersede, and later its receipt."""
    seen: list[pb.TransitionRecord] = []

    async def follow() -> None:
        async for record in pair.gate_b.client.watch(pair.key.tenant):
            seen.append(record)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.1)
    await pair.story.supersede(FIRST)

    async def kinds() -> list[str]:
        return [record.kind for record in seen]

    await eventually(kinds, lambda k: k == ["supersede", "receipt"], 5)
    following.cancel()


async def test_a_scope_says_what_it_is_part_of(pair: Pair):
    """Joined with a parent: the registry knows it, a change of the parent moves it, and each has
    its own receipt; another parent, a circle or an unknown one is refused and changes nothing."""
    client, child = pair.gate_a.client, pair.scope("part")
    await client.join(child)  # an orphan so far
    for _ in range(2):  # asking twice is asking once
        await client.join(child, parent=pair.key.scope)
    assert (await client.inspect(child)).parent == pair.key.scope
    other = pair.scope("other")
    await client.join(other)
    for parent, error, said in (
        (other.scope, InvalidField, "a parent never changes"),
        ("nobody", UnknownScope, "no scope 'nobody'"),
    ):
        with pytest.raises(error, match=said):
            await client.join(child, parent=parent)
    with pytest.raises(InvalidField, match="x-retire-parent must be a scope that is not below"):
        await client.join(pair.key, parent=child.scope)
    await pair.story.supersede(FIRST)

    async def receipts() -> list[str]:
        return list((await client.inspect(child)).receipts_json)

    (own,) = await eventually(receipts, bool, 5)
    receipt = receipt_from_dict(json.loads(own))
    assert (receipt.key, receipt.from_version, receipt.to_version) == (child, FIRST, Version(1, 1))
    assert receipt.extra == {"ancestor": pair.key.scope}
    assert [gate.outcome.value for gate in receipt.gates] == ["acked"]
    assert list((await client.inspect(other)).receipts_json) == []
    told = {r.key for r in read(pair.gate_a.sidecar.history) if isinstance(r, Acknowledged)}
    assert {pair.key, child} <= told and other not in told

"""The term Lease in the hands of operators: lost, lowered, raced for; and after a rebuild."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from operator_registry_world import OVER, PLAN, SETTINGS, SIDE, FakeNode, World, cr, until

from retire.protocol.contract import Policy
from retire.protocol.errors import NeedRegister
from retire.protocol.versions import ScopeKey, Version
from retire.registry.embedded import EmbeddedServer
from retire.registry.interface import CommitKind
from retire_operator.errors import ApiUnavailable
from retire_operator.registry_guard import NO_TERM, REBUILDING, UNAVAILABLE
from retire_operator.registry_writer import NODE_TENANT


@pytest.mark.parametrize("knows", ["registry", "node", "cr"])
async def test_a_deleted_lease_is_recovered_above_every_term(world: World, knows: str):
    """Never reset to 1 while anything knows better."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    for _ in range(2):
        await world.flush()
        await world.synced(guard)
    await world.inform(node)
    assert world.lease.stored is not None and world.lease.stored.term == 3
    world.lease.stored = None
    if knows != "registry":
        await world.flush()
    if knows != "node":
        world.nodes.clear()
    if knows == "cr":
        world.crs = [cr(PLAN, "3.3")]
    assert (await world.synced(world.guard("later"))).term == 4
    if knows != "registry":
        assert (await world.registry.get(PLAN)).version == Version(4, 3)


async def test_without_a_lease_the_registry_is_waited_for(server: EmbeddedServer, world: World):
    """While the registry does not answer, nobody can say which terms it knows."""
    await world.inhabit()
    world.lease.stored = None
    server.stop()
    guard = world.guard()
    assert (await guard.check()).reason == UNAVAILABLE
    assert world.lease.stored is None
    server.start()
    assert (await world.synced(guard)).term == 2


async def test_a_lowered_lease_is_raised_again(world: World):
    """Somebody edited the term down: what is in use ends it."""
    await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    await world.flush()
    await world.synced(guard)
    assert world.lease.stored is not None
    world.lease.stored = replace(world.lease.stored, term=1)
    assert (await world.synced(guard)).term == 3
    assert await world.terms() == {3}


async def test_two_operators_one_wins(world: World):
    """Both see the loss; the Lease lets one through, the other follows it; each tenant is written
    once."""
    await world.inhabit()
    guards = [world.guard(name) for name in ("a", "b")]
    for guard in guards:
        await world.synced(guard)
    await world.flush()
    await asyncio.gather(*(guard.check() for guard in guards))
    states = [await world.synced(guard) for guard in guards]
    assert {state.term for state in states} == {2}
    assert sorted(world.written) == sorted((t, 2) for t in ("acme", "globex", NODE_TENANT))
    assert sorted(guard.rebuilds for guard in guards) == [0, 1]


async def test_two_operators_at_the_very_first_start(world: World):
    """One opens the registry, the other finds it open."""
    guards = [world.guard(name) for name in ("a", "b")]
    await asyncio.gather(*(guard.check() for guard in guards))
    states = [await world.synced(guard) for guard in guards]
    assert {state.term for state in states} == {1}


async def test_another_operators_work_is_waited_for_a_while(world: World):
    """A term that somebody else made and did not finish: wait, then end it with the next."""
    await world.inhabit()
    assert world.lease.stored is not None
    world.lease.stored = replace(world.lease.stored, term=2, holder="dead", incarnation="")
    guard = world.guard("heir")
    state = await guard.check()
    assert (state.synced, state.reason) == (False, REBUILDING)
    assert "dead" in state.message
    world.clock.now_s += 6.0
    assert (await world.synced(guard)).term == 3
    assert (await world.registry.get(PLAN)).version == Version(3, 3)


async def test_a_node_that_was_faster_is_completed(world: World):
    """It wrote the tenant from its own, smaller knowledge: what it did not know is added, and what
    is over stays over."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    await world.flush()
    hasty = [node.scopes[SIDE], replace(node.scopes[OVER], cancelled=False)]
    advance = world.lease.replace

    async def advance_then_hasty(lease):
        made = await advance(lease)
        if made.term == 2 and not made.incarnation:
            await world.registry.rebuild("acme", term=2, scopes=hasty, quota_blocks=None)
        return made

    world.lease.replace = advance_then_hasty  # type: ignore[method-assign]
    assert (await world.synced(guard)).term == 2
    scopes = await world.scopes()
    assert scopes[PLAN].version == Version(2, 3)
    assert scopes[PLAN].policy is Policy.INTERRUPT
    assert scopes[OVER].cancelled and not scopes[SIDE].cancelled
    assert ("acme", 2) not in world.written  # control: the node really was faster


async def test_a_quota_survives_where_nobody_has_an_opinion(world: World):
    """The registry still holds it: a rollback of other data does not lift it."""
    node = await world.inhabit()
    await world.registry.set_quota("acme", term=1, blocks=77)
    guard = world.guard()
    await world.synced(guard)
    node.sequences["globex"] = 99
    assert (await world.synced(guard)).term == 2
    assert (await world.registry.snapshot("acme")).quota_blocks == 77


async def test_commits_after_a_rebuild_wait_for_the_longest_lease(world: World):
    """A node with a long lease that cannot be asked any more: it was seen before."""
    await world.inhabit()
    slow = FakeNode("slow", publish_lease_s=30.0)
    world.nodes.append(slow)
    guard = world.guard()
    await world.synced(guard)
    slow.reachable = False
    await world.flush()
    await world.synced(guard)
    made = await world.registry.commit(
        CommitKind.SUPERSEDE,
        PLAN,
        term=2,
        expected=Version(2, 3),
        idempotency_key="k",
        body_digest="",
        by="test",
    )
    (star,) = [gate for gate in made.gates if gate.node == "*"]
    assert 25.0 < star.expires_in_s <= 31.6


@pytest.mark.parametrize(("later_s", "waits"), [(0.0, True), (60.0, False)])
async def test_a_tenant_nobody_knew_opens_with_the_same_care(
    world: World, later_s: float, waits: bool
):
    """A node that could not be asked may hold it: until its lease has ended, commits wait."""
    await world.inhabit()
    guard = world.guard(settings=replace(SETTINGS, settle_s=30.0))
    await world.synced(guard)
    await world.flush()
    await world.synced(guard)
    world.clock.now_s += later_s
    await guard.open_tenant("stranger")
    await guard.open_tenant("stranger")  # twice is once
    key = ScopeKey("stranger", "s")
    await world.registry.hello("stranger", term=2)
    await world.registry.register(key, term=2)
    made = await world.registry.commit(
        CommitKind.SUPERSEDE,
        key,
        term=2,
        expected=Version(2, 0),
        idempotency_key="k",
        body_digest="",
        by="test",
    )
    assert [gate.node for gate in made.gates] == (["*"] if waits else [])


async def test_without_the_api_server_nothing_is_said(world: World):
    """The term cannot be read: not synced, and the last one is still named."""
    await world.inhabit()
    guard = world.guard()
    await world.synced(guard)

    async def away():
        raise ApiUnavailable("get lease a/b: connection refused")

    read, world.lease.read = world.lease.read, away
    state = await guard.check()
    assert (state.term, state.synced, state.reason) == (1, False, NO_TERM)
    world.lease.read = read
    assert (await guard.check()).synced


async def test_the_answer_is_cached_until_suspected(world: World):
    """ensure() asks nobody while its answer is fresh; a suspicion is looked into at once."""
    node = await world.inhabit()
    guard = world.guard(settings=replace(SETTINGS, watch_s=10.0, full_s=1000.0))
    await world.synced(guard)
    await world.flush()
    assert (await guard.ensure()).synced  # control: it did not look
    guard.suspect("a sidecar answered need_register")
    states = await asyncio.gather(guard.ensure(), guard.ensure())
    assert [(s.term, s.synced) for s in states] == [(2, True)] * 2
    assert guard.rebuilds == 1
    assert node.scopes.keys() == (await world.scopes()).keys()


async def test_the_watch_finds_a_loss_by_itself(world: World):
    """run() needs nobody to ask it, and survives a fault in between."""
    await world.inhabit()
    guard = world.guard(settings=replace(SETTINGS, watch_s=0.02))
    watching = asyncio.create_task(guard.run())
    try:
        await until(lambda: _at_term(world, 1))
        read = world.lease.read

        async def broken():
            world.lease.read = read
            raise RuntimeError("a fault of ours")

        world.lease.read = broken
        await world.flush()
        await until(lambda: _at_term(world, 2))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _at_term(world: World, term: int) -> bool:
    try:
        return (await world.registry.snapshot(NODE_TENANT)).term == term  # written last
    except NeedRegister:
        return False

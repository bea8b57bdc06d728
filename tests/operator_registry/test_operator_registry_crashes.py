"""The operator is killed at every step it takes; another one comes later and finishes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from operator_registry_world import OTHER, OVER, PLAN, SIDE, Cut, World, cr

from retire.protocol.versions import Version
from retire.registry.embedded import EmbeddedServer
from retire_operator.term import Term, TermLease

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def prepared(url: str, loss: str) -> World:
    """An inhabited world, and what happened to its registry."""
    world = World(url)
    await world.flush()
    if loss == "new":
        return world
    await world.inhabit()
    world.crs = [cr(PLAN, "1.3"), cr(OVER, "1.1", phase="Cancelled")]
    if loss == "wiped":
        await world.flush()
    elif loss == "behind":
        world.nodes[0].sequences["acme"] += 1
        world.crs[0]["status"]["version"] = "1.4"
    elif loss == "lease":
        world.lease.stored = None
    return world


async def killed_at(url: str, loss: str, cut: Cut) -> World:
    """One operator until it is killed, and its successor until all is well."""
    world = await prepared(url, loss)
    victim = world.guard("victim", cut=cut)
    try:
        for _ in range(3):
            await victim.check()
            world.clock.now_s += 1.0
    except asyncio.CancelledError:
        assert cut.dead
    await world.synced(world.guard("heir"))
    return world


async def judge(world: World, loss: str) -> None:
    """Nothing went back, nothing was written twice under one term, and all is of one term."""
    assert world.lease.stored is not None
    term = world.lease.stored.term
    assert await world.terms() == {term}
    assert world.lease.terms == sorted(world.lease.terms)
    assert world.lease.stored.incarnation
    twice = {what: n for what, n in Counter(world.written).items() if n > 1}
    assert twice == {}
    scopes = await world.scopes()
    if loss == "new":
        assert scopes == {}
        return
    assert term > 1
    epochs = {key: record.version.epoch for key, record in scopes.items()}
    highest = 4 if loss == "behind" else 3
    assert epochs == {PLAN: highest, SIDE: 3, OVER: 1, OTHER: 7}
    assert {record.version.term for record in scopes.values()} == {term}
    assert [key for key, record in scopes.items() if record.cancelled] == [OVER]
    assert [key for key, record in scopes.items() if record.paused] == [OTHER]
    assert scopes[SIDE].parent == PLAN.scope
    moved = await world.commit(PLAN)
    assert moved == Version(term, highest + 1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("loss", ["new", "wiped", "behind", "lease"])
async def test_killed_at_every_step(shared_server: EmbeddedServer, loss: str, after: bool):
    """Before the step took effect, or after it and before the operator heard of it."""
    probe = Cut()
    world = await killed_at(shared_server.url, loss, probe)
    await judge(world, loss)
    await world.close()
    least = {"new": 8, "wiped": 25, "behind": 25, "lease": 25}
    assert probe.steps >= least[loss], "control: the operator takes this many steps"
    # The ways of a rebuild are alike: all steps of one, of the others every third.
    stride = 1 if loss in ("new", "wiped") else 3
    for step in range(1, probe.steps + 1, stride):
        cut = Cut(step, after=after)
        world = await killed_at(shared_server.url, loss, cut)
        assert cut.dead, step
        try:
            await judge(world, loss)
        except AssertionError as error:
            raise AssertionError(f"killed {'after' if after else 'before'} step {step}") from error
        finally:
            await world.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_while_another_one_works(shared_server: EmbeddedServer, after: bool):
    """Two at once, one of them killed at every third step: the other one ends well."""
    for step in range(1, 60, 4):
        world = await prepared(shared_server.url, "wiped")
        victim, other = world.guard("victim", cut=Cut(step, after=after)), world.guard("other")
        await asyncio.gather(victim.check(), other.check(), return_exceptions=True)
        await world.synced(other)
        await judge(world, "wiped")
        await world.close()


async def killed_and_lost_again(url: str, step: int) -> World:
    """What the victim had written is wiped before its successor comes."""
    world = await prepared(url, "wiped")
    victim = world.guard("victim", cut=Cut(step, after=True))
    await asyncio.gather(victim.check(), return_exceptions=True)
    await world.flush()
    await world.synced(world.guard("heir"))
    return world


async def test_killed_and_then_lost_again(shared_server: EmbeddedServer):
    """A half-written term may have been used already: it is never written a second time."""
    for step in range(1, 60, 4):
        world = await killed_and_lost_again(shared_server.url, step)
        await judge(world, "wiped")
        await world.close()


async def test_going_on_under_a_half_written_term_would_be_seen(
    shared_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
):
    """Control: an heir that finishes its predecessor's term writes a tenant twice under it."""
    advance = TermLease.advance

    async def reuse(self: TermLease, expected: int, to: int | None = None) -> Term:
        term = await self.current()
        return term if term.number and not term.incarnation else await advance(self, expected, to)

    monkeypatch.setattr(TermLease, "advance", reuse)
    caught = 0
    for step in range(1, 60, 4):
        world = await killed_and_lost_again(shared_server.url, step)
        caught += any(n > 1 for n in Counter(world.written).values())
        await world.close()
    assert caught > 0

"""The guard on a real Valkey: opening, losing, rolling back, failing over, two operators."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from operator_registry_world import (
    OTHER,
    OVER,
    PLAN,
    SETTINGS,
    SIDE,
    World,
    cr,
    until,
)

from retire.protocol.contract import Policy
from retire.protocol.errors import RegistryUnavailable
from retire.protocol.versions import Version
from retire.registry.embedded import EmbeddedServer
from retire.registry.interface import CommitKind
from retire_operator.registry_guard import SYNCED, UNAVAILABLE
from retire_operator.registry_writer import NODE_TENANT


async def test_the_first_operator_opens_the_registry(world: World):
    """Nobody knows anything: term 1, an empty registry, noted as complete."""
    guard = world.guard()
    state = await guard.check()
    assert (state.term, state.synced, state.reason) == (1, True, SYNCED)
    assert await world.registry.list_tenants() == (NODE_TENANT,)
    assert world.lease.stored is not None
    snapshot = await world.registry.snapshot(NODE_TENANT)
    assert world.lease.stored.incarnation == snapshot.incarnation
    assert (await guard.check()).term == 1
    assert world.written == []  # control: opening is no rebuild


async def test_a_healthy_registry_stays_as_it_is(world: World):
    """Control of every test below: nothing is lost, so no term ends, however often one looks."""
    await world.inhabit()
    world.crs = [cr(PLAN, "1.3"), cr(OTHER, "1.7")]
    guard = world.guard("second")
    for _ in range(5):
        assert (await guard.check()).synced
        world.clock.now_s += 20.0
    assert set(world.lease.terms) == {1}
    assert world.written == []


@pytest.mark.parametrize("evidence", ["node", "cr", "both"])
async def test_a_wiped_registry_comes_back_under_the_next_term(world: World, evidence: str):
    """Nothing starts at 0: epochs, flags, policy, parent from whoever knows them."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    if evidence != "node":
        world.crs = [
            cr(PLAN, "1.3", spec_onNewInput="interrupt"),
            cr(SIDE, "1.3", spec_parentRef={"name": "plan"}),
            cr(OVER, "1.1", phase="Cancelled"),
            cr(OTHER, "1.7", phase="Paused"),
        ]
    if evidence == "cr":
        world.nodes.remove(node)
    await world.flush()
    state = await world.synced(guard)
    assert state.term == 2
    scopes = await world.scopes()
    assert {key: str(record.version) for key, record in scopes.items()} == {
        PLAN: "2.3",
        SIDE: "2.3",
        OVER: "2.1",
        OTHER: "2.7",
    }
    assert [key for key, record in scopes.items() if record.cancelled] == [OVER]
    assert [key for key, record in scopes.items() if record.paused] == [OTHER]
    if evidence != "node":
        assert scopes[PLAN].policy is Policy.INTERRUPT
    assert scopes[SIDE].parent == "plan"
    assert await world.terms() == {2}
    # A supersede of the parent takes the child along again.
    await world.commit(PLAN)
    assert (await world.registry.get(SIDE)).version == Version(2, 4)


async def test_sequences_go_on_above_what_a_node_has_seen(world: World):
    """A node that saw commit 5 of a tenant must never take the new registry for a rollback."""
    node = await world.inhabit()
    node.sequences["acme"] = 40
    guard = world.guard()
    await world.synced(guard)  # the registry is behind: rebuilt
    assert (await world.registry.snapshot("acme")).sequence == 40
    assert (await guard.check()).term == 2


async def test_no_answer_is_no_loss(server: EmbeddedServer, world: World):
    """Killed, the registry is away, not lost: no term ends; back with its data, it is the same."""
    await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    server.stop()
    state = await guard.check()
    assert (state.term, state.synced, state.reason) == (1, False, UNAVAILABLE)
    with pytest.raises(RegistryUnavailable, match="cannot be used"):
        await guard.open_tenant("new")
    server.start()
    assert (await world.synced(guard)).term == 1
    assert (await world.registry.get(PLAN)).version == Version(1, 3)
    assert world.written == []


async def test_a_new_data_folder_is_a_loss(folder: Path, server: EmbeddedServer, world: World):
    """The volume was replaced: the server answers, with nothing in it."""
    await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    server.stop()
    shutil.rmtree(folder / "registry")
    server.start()
    assert (await world.synced(guard)).term == 2
    assert (await world.registry.get(PLAN)).version == Version(2, 3)


@pytest.mark.parametrize("witness", ["node", "cr"])
async def test_an_old_snapshot_is_a_loss(
    folder: Path, server: EmbeddedServer, world: World, witness: str
):
    """Yesterday's data folder: a node's sequence or a CR's version tells; epochs go on above."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    server.stop()
    shutil.copytree(folder / "registry", folder / "backup", ignore=_no_sockets)
    server.start()
    await world.commit(PLAN)
    await world.commit(PLAN, CommitKind.CANCEL)
    if witness == "node":
        await world.inform(node)
    else:
        world.nodes.clear()
        world.crs = [cr(PLAN, "1.5", phase="Cancelled")]
    server.stop()
    shutil.rmtree(folder / "registry")
    shutil.copytree(folder / "backup", folder / "registry")
    server.start()
    assert (await world.registry.get(PLAN)).version == Version(1, 3)  # the rollback is real
    assert (await world.synced(guard)).term == 2
    record = await world.registry.get(PLAN)
    assert (record.version, record.cancelled) == (Version(2, 5), True)
    assert (await world.registry.get(OTHER)).version == Version(2, 7)


def _no_sockets(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".sock")]


class Service:
    """A TCP address that stands for whichever server is the primary, as a Service does."""

    def __init__(self) -> None:
        self.target = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self.target)
        for source, sink in ((reader, there), (there_reader, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def switch(self, port: int) -> None:
        self.target = port
        for task in tuple(self._pumps):
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def stop(self) -> None:
        await self.switch(self.target)
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    started = Service()
    await started.start()
    yield started
    await started.stop()


async def test_a_replica_that_missed_the_last_commit_is_a_loss(folder: Path, service: Service):
    """Failover: the new primary holds all but one acknowledged commit; a node has seen it."""
    with (
        EmbeddedServer(folder / "a", tcp=True) as primary,
        EmbeddedServer(folder / "b", tcp=True) as replica,
        _admin(primary) as first,
        _admin(replica) as second,
    ):
        service.target = _port(first)
        world = World(f"redis://127.0.0.1:{service.port}/0")
        try:
            node = await world.inhabit()
            guard = world.guard()
            await world.synced(guard)
            second.replicaof("127.0.0.1", _port(first))
            await until(lambda: _replicated(second))
            second.replicaof("NO", "ONE")
            last = await world.commit(PLAN)
            await world.inform(node)
            await service.switch(_port(second))
            assert (await world.registry.get(PLAN)).version < last  # it is really missing
            assert (await world.synced(guard)).term == 2
            assert (await world.registry.get(PLAN)).version == Version(2, last.epoch)
        finally:
            await world.close()


def _admin(server: EmbeddedServer) -> redis.Redis:
    """Also lifts the password, so that one address can stand for both servers."""
    client = redis.Redis.from_url(server.tcp_url, decode_responses=True, max_connections=1)
    client.config_set("requirepass", "")
    return client


def _port(client: redis.Redis) -> int:
    return client.connection_pool.connection_kwargs["port"]


async def _replicated(client: redis.Redis) -> bool:
    info: Any = client.info("replication")
    return info["master_link_status"] == "up" and client.exists("retire:registry") == 1


async def test_what_a_node_says_is_lost_is_lost(world: World):
    """Only the node sees that an event it knew is gone; a node of an older term is not heard."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    node.term, node.lost = 0, "the registry was rolled back"
    assert (await guard.check()).term == 1  # control: it has not followed the term yet
    node.term, node.lease = 1, "expired"
    assert (await world.synced(guard)).term == 2
    node.lost = "still on its way"  # of term 1: it will follow
    assert (await guard.check()).term == 2


async def test_nodes_have_time_to_enter_a_new_term(world: World):
    """Right after a rebuild a node may repeat its complaint; only one that lasts counts."""
    node = await world.inhabit()
    guard = world.guard(settings=replace(SETTINGS, patience_s=5.0))
    await world.synced(guard)
    await world.flush()
    assert (await world.synced(guard)).term == 2
    node.term, node.lost = 2, "scope acme/plan is not in the registry"
    assert (await guard.check()).term == 2
    world.clock.now_s += 6.0
    assert (await world.synced(guard)).term == 3


async def test_a_node_in_another_registry_is_not_evidence(world: World):
    """Without its lease a node's sequences are those of a registry it has left."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    node.sequences["acme"], node.lease = 40, "expired"
    assert (await guard.check()).term == 1
    node.lease = "held"  # control
    assert (await world.synced(guard)).term == 2


async def test_one_lost_tenant_is_a_loss(world: World):
    """A tenant that the registry names and no longer holds; the others go on above theirs."""
    await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    client = world.registry._client
    await client.delete(*await client.keys("retire:{acme}:*"))
    assert (await world.synced(guard)).term == 2
    assert (await world.registry.get(PLAN)).version == Version(2, 3)
    assert (await world.registry.get(OTHER)).version == Version(2, 7)


async def test_a_registry_of_the_same_term_that_is_another(world: World):
    """Emptied, then opened by somebody at the same term: the noted incarnation tells."""
    node = await world.inhabit()
    guard = world.guard()
    await world.synced(guard)
    await world.flush()
    stranger = world.client(create_when_empty=True)
    await stranger.hello(NODE_TENANT, term=1)
    await stranger.close()
    node.reachable = False
    world.crs = []
    assert (await world.synced(guard)).term == 2


@pytest.mark.parametrize("when", ["first", "rebuild"])
async def test_no_term_is_spent_on_a_registry_that_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str
):
    """A server that may lose commits is refused before the Lease rises, however often one looks."""
    if when == "rebuild":
        await world.inhabit()
        await world.flush()
    before = world.lease.stored.term if world.lease.stored else 0
    guard = world.guard()

    async def refused() -> None:
        raise RegistryUnavailable("appendonly is off")

    monkeypatch.setattr(guard._registry, "check_durability", refused)
    for _ in range(3):
        state = await guard.check()
        assert (state.synced, state.reason) == (False, UNAVAILABLE)
        assert "appendonly is off" in state.message
        world.clock.now_s += 20.0
    assert (world.lease.stored.term if world.lease.stored else 0) == before
    monkeypatch.undo()  # control: with a server that can be written it goes on by itself
    assert (await world.synced(guard)).term == before + 1

"""The registry and the sidecar itself lost, stopped, killed, emptied: closed in time, never
back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from sidecar_world import LEASE_S, Gate, Sidecar, Story, eventually

from retire.mailbox import GateState
from retire.protocol.errors import RetireError, TermMismatch, Unavailable, VersionConflict
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.sidecar import convert
from retire.sidecar.links import STRANGERS_S
from retire.sidecar.pb import node_pb2 as pb

KEY = ScopeKey("acme", "story")
FIRST = Version(1, 0)


@pytest.fixture
def mortal(folder: Path) -> Iterator[EmbeddedServer]:
    """A registry that stays dead when it is killed."""
    server = EmbeddedServer(folder / "registry", restart=False)
    server.start()
    yield server
    server.stop()


async def test_a_stopped_registry_closes_the_gates_within_the_lease(
    start: Callable[..., Sidecar], registry: EmbeddedServer
):
    """SIGSTOP of the registry: closed within 2 s, with the reason in Status; SIGCONT: open again at
    the same version, without anybody's help."""
    sidecar = start()
    await sidecar.until_held()
    async with Gate(sidecar) as gate:
        story = Story(gate.client, KEY)
        joined = await story.join()
        assert registry.pid is not None
        os.kill(registry.pid, signal.SIGSTOP)
        try:
            closed_s = await _until_closed(gate, joined.slot)
            print(f"closed {closed_s:.3f} s after the registry stopped")
            assert closed_s <= LEASE_S
            assert gate.state(joined.slot) is GateState.LEASE_EXPIRED
            status = await sidecar.until(lambda s: s.lease == "unreachable")
            assert "registry.sock" in status.not_ready_reason and not status.ready
            with pytest.raises(Unavailable) as refused:
                await asyncio.wait_for(story.supersede(FIRST), 8)
            assert refused.value.code == "registry_unavailable"
        finally:
            os.kill(registry.pid, signal.SIGCONT)
        await sidecar.until(lambda s: s.ready)
        view = await gate.client.inspect(KEY)
        # The commit may have reached the stopped server: then it was made when the server went on.
        if convert.version_from(view.version) == FIRST:
            assert gate.may_publish(joined.slot)
        assert view.version.term == 1


async def test_a_killed_registry_comes_back_with_its_data(
    folder: Path, mortal: EmbeddedServer, start_at: Callable[..., Sidecar]
):
    """kill -9 of the registry: closed within the lease; restarted: same term, same versions."""
    sidecar = start_at(mortal.url)
    await sidecar.until_held()
    async with Gate(sidecar) as gate:
        story = Story(gate.client, KEY)
        await story.join()
        answers = await story.supersede(FIRST)
        slot = answers.committed.slot
        assert mortal.pid is not None
        os.kill(mortal.pid, signal.SIGKILL)
        assert await _until_closed(gate, slot) <= LEASE_S
        mortal.stop()
        mortal.start()
        status = await sidecar.until(lambda s: s.ready)
        assert status.term == 1
        assert gate.may_publish(slot)
        assert (await story.supersede(Version(1, 1))).to == Version(1, 2)


async def test_a_registry_that_is_absent_at_start(folder: Path, start_at: Callable[..., Sidecar]):
    """It is named in the log, health stays off, and the node comes up when the registry does."""
    server = EmbeddedServer(folder / "registry")
    sidecar = start_at(server.url)
    status = await sidecar.until(lambda s: not s.ready)
    assert status.lease == "unreachable"

    async def log() -> str:
        return sidecar.log.read_text()

    text = await eventually(log, lambda t: "waiting for the registry" in t, 10)
    assert str(folder / "registry" / "registry.sock") in text
    with server:
        await sidecar.until_held()


async def test_flushall_is_rebuilt_under_the_next_term(
    start: Callable[..., Sidecar], registry: EmbeddedServer
):
    """An emptied registry is rebuilt: term + 1, epochs kept, old slots and lower terms refused."""
    a, b = start("a"), start("b")
    await asyncio.gather(a.until_held(), b.until_held())
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        story = Story(gate_a.client, KEY)
        await story.join()
        await story.supersede(FIRST)
        old_a = (await story.supersede(Version(1, 1))).committed.slot
        on_b = await gate_b.client.join(KEY)
        only_b = ScopeKey("acme", "only-b")
        await gate_b.client.join(only_b)
        await Story(gate_b.client, only_b).supersede(FIRST)
        gone = Story(gate_a.client, ScopeKey("acme", "gone"))
        await gone.join()
        await gate_a.client.cancel(gone.key, gone.mutation(FIRST))
        _flush(registry)
        for sidecar in (a, b):
            status = await sidecar.until(lambda s: s.term == 2 and s.ready)
            assert status.term == 2
        assert not gate_a.may_publish(old_a) and not gate_b.may_publish(on_b.slot)
        again = await gate_a.client.join(KEY)
        assert again.version == Version(2, 2) and gate_a.may_publish(again.slot)
        for gate, key, least in ((gate_b, KEY, 2), (gate_b, only_b, 1)):
            version = (await gate.client.join(key)).version
            assert version.term == 2 and version.epoch >= least
        with pytest.raises(VersionConflict) as refused:
            await story.supersede(Version(1, 2))
        assert refused.value.current == Version(2, 2)
        with pytest.raises(RetireError, match="cancelled"):
            await gone.join()
        assert (await story.supersede(Version(2, 2))).to == Version(2, 3)
        await _lower_term_is_refused(registry)


async def _lower_term_is_refused(registry: EmbeddedServer) -> None:
    late = AsyncRegistry(registry.url)
    with pytest.raises(TermMismatch):
        await late.join(KEY, term=1, node="late", boot_id="x")
    await late.close()


async def test_a_rolled_back_registry_is_rebuilt(
    start: Callable[..., Sidecar], registry: EmbeddedServer
):
    """A registry whose acknowledged commits are gone is noticed by the node that has seen them."""
    sidecar = start()
    await sidecar.until_held()
    async with Gate(sidecar) as gate:
        story = Story(gate.client, KEY)
        await story.join()
        client = redis.Redis.from_url(registry.url)
        saved = {key: client.dump(key) for key in client.scan_iter("*")}
        await story.supersede(FIRST)
        await story.supersede(Version(1, 1))
        for key, blob in saved.items():
            client.restore(key, 0, blob, replace=True)
        client.close()
        await sidecar.until(lambda s: s.term == 2 and s.ready)
        joined = await gate.client.join(KEY)
        assert joined.version == Version(2, 2)


async def test_a_restarted_sidecar_keeps_slots_and_references(start: Callable[..., Sidecar]):
    """kill -9 and restart: slots handed out before still publish under the new lease; the gate
    closes in between when the restart takes longer than the lease."""
    sidecar = start()
    before = await sidecar.until_held()
    async with Gate(sidecar) as gate:
        story = Story(gate.client, KEY)
        await story.join()
        answers = await story.supersede(FIRST)
        slot = answers.committed.slot
        old = story.joined
        assert old is not None
        sidecar.kill()
        assert await _until_closed(gate, slot) <= LEASE_S
        gate.scopes = [KEY]
        sidecar.start()
        after = await sidecar.until(lambda s: s.ready)
        assert (after.term, after.boot_id, after.scopes) == (1, before.boot_id, 1)
        assert gate.may_publish(slot) and not gate.may_publish(old.slot)
        again = await gate.client.join(KEY)
        assert again.slot == slot
        assert (await story.supersede(Version(1, 1))).to == Version(1, 2)


async def test_a_restarted_sidecar_catches_up_before_it_opens(start: Callable[..., Sidecar]):
    """A commit made while the sidecar was dead: its old slot never opens again, and the attached
    process is told to switch."""
    a, b = start("a"), start("b")
    await asyncio.gather(a.until_held(), b.until_held())
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        story = Story(gate_a.client, KEY)
        await story.join()
        on_b = await gate_b.client.join(KEY)
        b.kill()
        await story.supersede(FIRST)
        assert not gate_b.may_publish(on_b.slot)
        gate_b.scopes = [KEY]
        b.start()
        await b.until(lambda s: s.ready)
        assert gate_b.state(on_b.slot) is GateState.STALE

        async def told() -> list[pb.Switch]:
            return gate_b.switches

        switches = await eventually(told, bool, 3)
        assert convert.version_from(switches[-1].to) == Version(1, 1)


async def test_a_process_that_is_not_back_yet_is_waited_for(start: Callable[..., Sidecar]):
    """After a restart a process may be publishing unattached: its lease must end before the ack,
    until it has had time to come back. CONTROL: a first start has nobody to wait for."""
    sidecar = start()
    await sidecar.until_held()
    async with sidecar.client() as client:
        story = Story(client, KEY)
        await story.join()
        answers = await story.supersede(FIRST)
        assert answers.outcomes == {} and answers.took_s("unpublishable") < LEASE_S * 0.9
    sidecar.kill()
    sidecar.start()
    await sidecar.until_held()
    async with sidecar.client() as client:
        story = Story(client, KEY)
        answers = await story.supersede(Version(1, 1))
        assert answers.outcomes == {"a/unattached": "lease_ended"}
        assert answers.took_s("unpublishable") > LEASE_S * 0.9
        assert list(answers.fenced.missing) == ["a"]
    async with Gate(sidecar) as gate:
        await asyncio.sleep(STRANGERS_S)
        answers = await Story(gate.client, KEY).supersede(Version(1, 2))
        assert answers.outcomes == {"a/g1": "acked"}
        assert answers.took_s("unpublishable") < LEASE_S * 0.9


async def test_sigterm_closes_gates_and_ends_the_lease(start: Callable[..., Sidecar]):
    """A clean shutdown closes the gates at once; a committer does not wait for that node."""
    a, b = start("a"), start("b")
    await asyncio.gather(a.until_held(), b.until_held())
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        story = Story(gate_a.client, KEY)
        await story.join()
        on_b = await gate_b.client.join(KEY)
        assert b.end(signal.SIGTERM) == 0
        assert not gate_b.may_publish(on_b.slot)
        answers = await story.supersede(FIRST)
        assert answers.took_s("unpublishable") < 1.8


async def _until_closed(gate: Gate, slot: pb.SlotRef) -> float:
    began = time.monotonic()
    while gate.may_publish(slot):
        assert time.monotonic() < began + 10, "the gate stayed open"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


def _flush(registry: EmbeddedServer) -> None:
    client = redis.Redis.from_url(registry.url)
    client.flushall()
    client.close()

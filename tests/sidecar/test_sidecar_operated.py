"""What the operator sees and does while a node runs: probes, Status, Warm, policy, quota."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from sidecar_world import Gate, Sidecar, Story, eventually

from retire.protocol.contract import Policy
from retire.protocol.errors import (
    InvalidField,
    RetireError,
    ScopeClosed,
    Unavailable,
    UnknownScope,
    VersionConflict,
)
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.sidecar.pb import node_pb2 as pb

FIRST = Version(1, 0)
BODY = b'{"messages": []}'


@pytest.fixture
async def registry_client(registry: EmbeddedServer) -> AsyncIterator[AsyncRegistry]:
    client = AsyncRegistry(registry.url)
    yield client
    await client.close()


async def test_probes(start: Callable[..., Sidecar]):
    """/livez while it runs; /readyz with the same reason as Status; nothing else, no writing."""
    sidecar = start(RETIRE_HTTP_LISTEN="127.0.0.1:0")
    await sidecar.until_held()
    found = re.search(r"http=(\d+)", sidecar.log.read_text())
    assert found is not None
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{found[1]}") as http:
        assert (await http.get("/livez")).json() == {"live": True}
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"ready": False, "reason": "no engine API process is attached"}
        async with Gate(sidecar):
            await sidecar.until(lambda s: s.ready)
            answer = await http.get("/readyz")
            assert (answer.status_code, answer.json()) == (200, {"ready": True})
        for method, path, status in (("POST", "/readyz", 405), ("GET", "/other", 404)):
            assert (await http.request(method, path)).status_code == status
        assert sidecar.end() == 0, "uvicorn leaves signals alone"
        with pytest.raises(httpx.TransportError):
            await http.get("/livez")


async def test_no_listener_unless_asked_for(calm: Sidecar):
    """Off by default, and the log says so."""
    await calm.until_held()
    assert "http=off" in calm.log.read_text()


def test_an_address_in_use_stops_the_process(folder: Path, start_at: Callable[..., Sidecar]):
    """Exit 2, naming the variable."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sidecar = start_at("redis://127.0.0.1:1", RETIRE_HTTP_LISTEN=f"127.0.0.1:{port}")
        assert sidecar.process is not None
        assert sidecar.process.wait(30) == 2
    assert "RETIRE_HTTP_LISTEN must be an address" in sidecar.log.read_text()


async def test_status_says_what_the_operator_needs(calm: Sidecar):
    """Lease length, sequences per tenant, engines with what they serve."""
    await calm.until_held()
    async with Gate(calm) as one, Gate(calm, "g2"), Gate(calm, "g3", engine="e2"):
        key = ScopeKey("counted", "s")
        await one.client.join(key)
        for epoch in range(2):
            await Story(one.client, key).supersede(Version(1, epoch))
        found = await calm.until(lambda s: s.gates == 3 and s.sequences["counted"] == 2)
        assert (found.publish_lease_s, found.registry_lost) == (2.0, "")
        engines = {e.engine_boot_id: e for e in found.engines}
        assert {boot_id: e.gates for boot_id, e in engines.items()} == {"e1": 2, "e2": 1}
        e2 = engines["e2"]
        assert (e2.model, e2.block_size, e2.num_blocks) == ("model-of-e2", 16, 512)


async def test_watchers_see_the_idempotency_key(calm: Sidecar):
    """The journal's line names the call that made it, so that its caller knows its own."""
    await calm.until_held()
    async with Gate(calm) as gate:
        story = Story(gate.client, ScopeKey("keyed", "s"))
        await story.join()
        watching = gate.client.watch("keyed", after=1)
        assert (await anext(watching)).idempotency_key == ""
        await story.supersede(FIRST, idempotency_key="cr/u/supersede/1")
        pause = story.mutation(Version(1, 1), idempotency_key="cr/u/pause/2")
        await gate.client.pause(story.key, pause)
        cancel = story.mutation(Version(1, 1), idempotency_key="cr/u/cancel/3")
        await gate.client.cancel(story.key, cancel)
        seen = [await asyncio.wait_for(anext(watching), 20) for _ in range(3)]
        await watching.aclose()
    assert [(r.kind, r.idempotency_key) for r in seen] == [
        ("supersede", "cr/u/supersede/1"),
        ("pause", "cr/u/pause/2"),
        ("cancel", "cr/u/cancel/3"),
    ]


async def test_warm_reaches_one_process(calm: Sidecar):
    """The context goes to one API process, its answer comes back with the node's name."""
    await calm.until_held()
    async with Gate(calm) as one, Gate(calm, "g2") as two:
        key = ScopeKey("warm", "s")
        await one.client.join(key)
        one.warm_reply = pb.WarmDone(prompt_tokens=1200, cached_tokens=1024)
        reply = await one.client.warm(key, FIRST, BODY, traceparent="00-ab")
        assert (reply.prompt_tokens, reply.cached_tokens, reply.node) == (1200, 1024, "a")
        (command,) = one.warms
        assert (command.request_json, command.traceparent) == (BODY, "00-ab")
        assert (command.key.scope, command.version.epoch) == ("s", 0)
        assert not two.warms


async def test_warm_is_for_the_current_version_only(calm: Sidecar):
    """Stale, future, absent and cancelled: refused before anything is computed."""
    await calm.until_held()
    async with Gate(calm) as gate:
        story = Story(gate.client, ScopeKey("warm", "versions"))
        await story.join()
        await story.supersede(FIRST)
        for version in (FIRST, Version(1, 2)):
            with pytest.raises(VersionConflict) as refused:
                await gate.client.warm(story.key, version, BODY)
            assert refused.value.current == Version(1, 1)
        with pytest.raises(UnknownScope):
            await gate.client.warm(ScopeKey("warm", "nobody"), FIRST, BODY)
        await gate.client.cancel(story.key, story.mutation(Version(1, 1)))
        with pytest.raises(ScopeClosed):
            await gate.client.warm(story.key, Version(1, 2), BODY)
        assert not gate.warms


async def test_warm_joins_a_scope_that_the_registry_knows(
    start: Callable[..., Sidecar], registry_client: AsyncRegistry
):
    """The operator may ask any ready node."""
    sidecar = start()
    async with Gate(sidecar) as gate:
        await sidecar.until(lambda s: s.ready)
        key = ScopeKey("acme", "s")
        await registry_client.hello("acme", term=1)
        await registry_client.register(key, term=1, epoch=3)
        assert (await gate.client.warm(key, Version(1, 3), BODY)).node == "a"
        assert (await registry_client.get(key)).nodes == ("a",)


async def test_errors_of_the_engine_pass_through(calm: Sidecar):
    """An error of the tree keeps its class and its words; any other keeps its words."""
    await calm.until_held()
    async with Gate(calm) as gate:
        key = ScopeKey("warm", "errors")
        await gate.client.join(key)
        gate.warm_error = InvalidField("request.messages", [], "not empty")
        with pytest.raises(InvalidField, match="^request.messages must be not empty; got"):
            await gate.client.warm(key, FIRST, BODY)
        gate.warm_error = RuntimeError("out of cheese")
        with pytest.raises(RetireError, match="^RuntimeError: out of cheese$"):
            await gate.client.warm(key, FIRST, BODY)
        gate.warm_error = None
        for text in ("model 'x' does not exist", '{"error": "json, but not ours"}', '"text"'):
            gate.warm_reply = pb.WarmDone(error=text)
            with pytest.raises(RetireError) as refused:
                await gate.client.warm(key, FIRST, BODY)
            assert str(refused.value) == text and type(refused.value) is RetireError


async def test_warm_keeps_the_deadline_of_its_caller(calm: Sidecar):
    """A process that does not answer in time, and none at all: Unavailable, in time."""
    await calm.until_held()
    key = ScopeKey("warm", "slow")
    async with Gate(calm) as gate:
        await gate.client.join(key)
        gate.hold_warm.clear()
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match="did not warm the context within"):
            await gate.client.warm(key, FIRST, BODY, timeout_s=2)
        assert time.monotonic() - began_s < 2.5
    await calm.until(lambda s: s.gates == 0)
    async with calm.client() as client:
        with pytest.raises(Unavailable, match="no engine API process is attached"):
            await client.warm(key, FIRST, BODY)


async def test_a_process_that_dies_while_it_warms_is_replaced(calm: Sidecar):
    """The next process of the node is asked."""
    await calm.until_held()
    key = ScopeKey("warm", "replaced")
    first = Gate(calm)
    async with first, Gate(calm, "g2") as second:
        await second.client.join(key)
        first.hold_warm.clear()
        asking = asyncio.create_task(second.client.warm(key, FIRST, BODY))

        async def asked() -> int:
            return len(first.warms)

        await eventually(asked, bool, 10)
        assert first._task is not None
        first._task.cancel()
        assert (await asyncio.wait_for(asking, 20)).node == "a"
        assert len(second.warms) == 1


async def test_a_policy_is_learned_while_the_node_runs(
    start: Callable[..., Sidecar], registry_client: AsyncRegistry
):
    """Two nodes hold the scope; a configured policy is in their next Join and List, and nobody is
    switched. It outlives a restart, because the registry has it."""
    a, b = start("a"), start("b")
    await asyncio.gather(a.until_held(), b.until_held())
    key, parent = ScopeKey("acme", "s"), ScopeKey("acme", "p")
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        assert (await gate_a.client.join(key)).policy is None
        await gate_a.client.join(parent)
        await gate_b.client.join(key)
        for policy in (Policy.REJECT, Policy.INTERRUPT):
            await registry_client.hello("acme", term=1)
            await registry_client.configure(key, term=1, policy=policy, parent="p")
            for gate in (gate_a, gate_b):
                await _until_policy(gate, key, policy)
        view = next(v for v in await gate_b.client.list("acme") if v.key.scope == "s")
        assert (view.policy, view.parent, view.generation) == ("interrupt", "p", 1)
        inspected = await gate_b.client.inspect(parent)  # not joined there: as the registry has it
        assert (inspected.policy, inspected.parent, inspected.generation) == ("", "", 1)
        assert not gate_a.switches and not gate_b.switches and not gate_a.fences
        b.kill()
        gate_b.scopes = [key]
        b.start()
        await b.until(lambda s: s.ready)
        await _until_policy(gate_b, key, Policy.INTERRUPT)
        await registry_client.configure(key, term=1, policy=None)
        for gate in (gate_a, gate_b):
            await _until_policy(gate, key, None)


async def _until_policy(gate: Gate, key: ScopeKey, policy: Policy | None) -> None:
    async def joined() -> tuple[Policy | None]:
        return ((await gate.client.join(key)).policy,)

    await eventually(joined, lambda found: found == (policy,), 20)


async def test_a_changed_quota_reaches_running_nodes(
    start: Callable[..., Sidecar], registry_client: AsyncRegistry
):
    """Set, raised, lowered below what is held, removed: pushed to the gates within moments, and
    never more in all than the quota."""
    a, b = start("a"), start("b")
    await asyncio.gather(a.until_held(), b.until_held())
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        for gate in (gate_a, gate_b):
            await gate.client.join(ScopeKey("acme", gate.sidecar.node))
        await _until_quotas(gate_a, gate_b, lambda shares: shares == [None, None])
        await registry_client.hello("acme", term=1)
        for blocks in (64, 100, 10, 0, 32):
            await registry_client.set_quota("acme", term=1, blocks=blocks)
            await _until_quotas(
                gate_a, gate_b, lambda shares, b=blocks: None not in shares and sum(shares) == b
            )
            held = (await registry_client.snapshot("acme")).reservations
            assert sum(r.blocks for r in held) == blocks
        await registry_client.set_quota("acme", term=1, blocks=None)
        await _until_quotas(gate_a, gate_b, lambda shares: shares == [None, None])


async def _until_quotas(
    gate_a: Gate, gate_b: Gate, holds: Callable[[list[int | None]], bool]
) -> None:
    """Within 5 s: the periodic renewal alone would take 10."""

    async def shares() -> list[int | None] | None:
        newest = [gate.quotas[-1] if gate.quotas else None for gate in (gate_a, gate_b)]
        if None in newest:
            return None
        return [q.blocks if q.HasField("blocks") else None for q in newest if q is not None]

    await eventually(shares, holds, 5)


def test_json_of_a_context_is_not_touched():
    """A context is bytes on the wire: 1 MiB of it, the most a ConfigMap holds, fits a message."""
    body = json.dumps({"prompt": "é" * 2**19}).encode()
    sent = pb.WarmRequest(request_json=body).SerializeToString()
    assert pb.WarmRequest.FromString(sent).request_json == body and len(sent) < 4 * 2**20

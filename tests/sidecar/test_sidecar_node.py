"""The node around transitions: health, attach, journal, capacity, memory, quotas, configuration."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sidecar_world import Gate, Sidecar, Story, eventually

from retire.mailbox import MailboxWriter
from retire.protocol import codec
from retire.protocol.contract import Receipt, StopReason
from retire.protocol.errors import CapacityExceeded, Forbidden, InvalidField, VersionConflict
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.registry.interface import ScopeRecord
from retire.registry.term import TermFile, claim_term
from retire.sidecar import convert, status
from retire.sidecar.client import NodeClient
from retire.sidecar.config import Settings
from retire.sidecar.pb import node_pb2 as pb

FIRST = Version(1, 0)


async def test_health_waits_for_a_gate(start: Callable[..., Sidecar]):
    """NOT_SERVING while no API process is attached or its seams are off; SERVING after; and
    back.
    """
    sidecar = start()
    held = await sidecar.until_held()
    assert not held.ready and "no engine API process" in held.not_ready_reason
    assert await _health(sidecar) == "NOT_SERVING"
    async with Gate(sidecar) as gate:
        await sidecar.until(lambda s: s.ready)
        await eventually(lambda: _health(sidecar), lambda h: h == "SERVING", 5)
        del gate
    await eventually(lambda: _health(sidecar), lambda h: h == "NOT_SERVING", 5)
    broken = Gate(sidecar)
    hello = broken._hello
    broken._hello = lambda: pb.Hello(gate="g", seams_error="vllm.v1.core.sched: no Scheduler")
    async with broken:
        found = await sidecar.until(lambda s: s.gates == 1)
        assert found.not_ready_reason == "vllm.v1.core.sched: no Scheduler" and not found.ready
    del hello


async def _health(sidecar: Sidecar) -> str:
    async with grpc.aio.insecure_channel(f"unix:{sidecar.socket}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service="retire.node.v1.Node"))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


async def test_files_are_the_owner_s_alone(calm: Sidecar):
    """The socket is 0600 in a 0700 folder, the mailbox 0600."""
    await calm.until_held()
    assert stat.S_IMODE(calm.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(calm.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(calm.mailbox.stat().st_mode) == 0o600


async def test_watchers_catch_up(calm: Sidecar):
    """A watcher that comes back with its last sequence number misses nothing and repeats
    nothing.
    """
    await calm.until_held()
    async with Gate(calm) as gate:
        story = Story(gate.client, ScopeKey("watch", "w"))
        await story.join()
        watching = gate.client.watch("watch", after=1)
        first = await anext(watching)
        assert first.kind == "register"
        await watching.aclose()
        for n in range(3):
            await story.supersede(Version(1, n))
        missed = gate.client.watch("watch", after=first.sequence)
        records = [await anext(missed) for _ in range(3)]
        await missed.aclose()
    assert [r.to.epoch for r in records] == [1, 2, 3]
    assert [r.kind for r in records] == ["supersede"] * 3
    assert all(codec.receipt_from_dict(json.loads(r.receipt_json)) for r in records)
    numbers = [first.sequence, *(r.sequence for r in records)]
    assert numbers == sorted(set(numbers))


async def test_a_driver_completes_the_receipt(calm: Sidecar):
    """With a driver the journal shows the reported receipt, once; Inspect keeps the last
    sixteen.
    """
    await calm.until_held()
    async with Gate(calm) as gate:
        story = Story(gate.client, ScopeKey("driver", "d"))
        await story.join()
        watching = gate.client.watch("driver", after=1)
        assert (await anext(watching)).kind == "register"
        for n in range(18):
            async for _ in story.events(Version(1, n), driver=True):
                continue
            receipt = Receipt(
                story.key,
                Version(1, n),
                Version(1, n + 1),
                {"commit": 1.0},
                stop_reason=StopReason.NO_PREDECESSOR,
                successor_request_id=f"r{n}",
            )
            text = json.dumps(codec.receipt_to_dict(receipt))
            await gate.client.report(
                story.key, receipt.to_version, receipt_json=text, idempotency_key=f"k{n}"
            )
        records = [await anext(watching) for _ in range(18)]
        await watching.aclose()
        assert [json.loads(r.receipt_json)["successor_request_id"] for r in records] == [
            f"r{n}" for n in range(18)
        ]
        view = await gate.client.inspect(story.key)
        assert len(view.receipts_json) == 16
        assert json.loads(view.receipts_json[0])["to_version"] == "1.18"
        with pytest.raises(InvalidField, match="receipt"):
            await gate.client.report(
                story.key, Version(1, 1), receipt_json="{}", idempotency_key="k"
            )


async def test_inspect_shows_live_requests(calm: Sidecar):
    """Live requests are asked of every attached process."""
    await calm.until_held()
    async with Gate(calm) as one, Gate(calm, "g2") as two:
        story = Story(one.client, ScopeKey("acme", "live"))
        await story.join()
        one.live["live"], two.live["live"] = 2, 1
        assert len((await one.client.inspect(story.key)).requests) == 3
        views = await one.client.list("acme")
        assert "live" in {view.key.scope for view in views}


async def test_idle_slots_are_given_up(start: Callable[..., Sidecar]):
    """A full node frees scopes nobody asked for, never one with a live request; else it says so."""
    sidecar = start(RETIRE_SLOTS="3", RETIRE_IDLE_TTL_S="1.5")
    await sidecar.until_held()
    async with Gate(sidecar) as gate:
        for name in ("one", "two", "three"):
            await gate.client.join(ScopeKey("acme", name))
        with pytest.raises(CapacityExceeded, match="3 scopes"):
            await gate.client.join(ScopeKey("acme", "four"))
        gate.live["one"] = 1
        await asyncio.sleep(1.6)
        await gate.client.join(ScopeKey("acme", "four"))
        held = {view.key.scope for view in await gate.client.list("acme")}
        assert "one" in held and "four" in held and "two" not in held
        again = await gate.client.join(ScopeKey("acme", "two"))
        assert again.version == FIRST and not again.created


async def test_ten_thousand_scopes_in_120_mb(
    start: Callable[..., Sidecar], folder: Path, registry: EmbeddedServer
):
    """A node that takes over 10,000 scopes stays under 120 MB resident; each of them works."""
    keys = [ScopeKey("acme", f"scope-{n}") for n in range(10_000)]
    await _prepare(folder, registry, keys)
    sidecar = start(RETIRE_SLOTS="16384")
    found = await sidecar.until(lambda s: s.lease == "held" and s.scopes == len(keys), 40)
    assert found.term == 1
    async with Gate(sidecar) as gate:
        answers = await Story(gate.client, keys[-1]).supersede(FIRST)
        assert answers.outcomes["a/g1"] == "acked"  # beside those that may not be back yet
        assert len(await gate.client.list("acme")) == len(keys)
        print(f"resident: {sidecar.rss_mb:.1f} MB")
        assert sidecar.rss_mb < 120


async def _prepare(folder: Path, registry: EmbeddedServer, keys: list[ScopeKey]) -> None:
    """Scopes in the registry, the term file and the mailbox, as a sidecar left them."""
    assert claim_term(TermFile(folder / "term")) == (1, True)
    client = AsyncRegistry(registry.url)
    await client.hello("retire-node", term=1)
    records = [ScopeRecord(key, FIRST, 1, False, False, None, None, ()) for key in keys]
    await client.rebuild("acme", term=1, scopes=records, quota_blocks=None)
    await client.close()
    (folder / "a").mkdir(mode=0o700)
    writer = MailboxWriter.create(folder / "a" / "mailbox", capacity=16384)
    for key in keys:
        writer.open(key, FIRST, generation=1)
    writer.detach()


async def test_quotas_are_owned_and_pushed(start: Callable[..., Sidecar], registry: EmbeddedServer):
    """The first node reserves the tenant's quota, the second gets nothing: explicitly zero."""
    a = start("a", RETIRE_PIN_QUOTA_BLOCKS="64")
    await a.until_held()
    async with Gate(a) as gate_a:
        await gate_a.client.join(ScopeKey("acme", "s"))
        assert await _quota(gate_a) == 64
        b = start("b", RETIRE_PIN_QUOTA_BLOCKS="64")
        await b.until_held()
        async with Gate(b) as gate_b:
            await gate_b.client.join(ScopeKey("acme", "s"))
            assert await _quota(gate_b) == 0
        client = redis.Redis.from_url(registry.url, decode_responses=True)
        owners = client.hgetall("retire:{acme}:pins")
        client.close()
        found = await gate_a.client.status()
        assert owners.get(f"a:{found.boot_id}") == "64"


async def test_no_quota_means_unlimited(calm: Sidecar):
    """Without a quota anywhere the engine is told so: no number."""
    await calm.until_held()
    async with Gate(calm) as gate:
        await gate.client.join(ScopeKey("free", "s"))
        assert await _quota(gate, "free") is None


async def _quota(gate: Gate, tenant: str = "acme") -> int | None:
    async def pushed() -> list[pb.Quota]:
        return [quota for quota in gate.quotas if quota.tenant == tenant]

    quota = (await eventually(pushed, bool, 5))[-1]
    return quota.blocks if quota.HasField("blocks") else None


async def test_tcp_serves_the_operator_but_no_gates(start: Callable[..., Sidecar]):
    """On loopback TCP status answers; Attach is refused there."""
    sidecar = start(RETIRE_LISTEN="127.0.0.1:0")
    await sidecar.until_held()
    text = sidecar.log.read_text()
    port = text.split("tcp=")[1].split()[0]
    async with NodeClient(f"127.0.0.1:{port}") as client:
        assert (await client.status()).lease == "held"
        with pytest.raises(Forbidden, match="Unix socket"):
            await client.attach(
                lambda: pb.Hello(gate="g"), Gate(sidecar), on_welcome=lambda _: None
            )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RETIRE_LEASE_S", "0", "seconds between 0.2 and 60"),
        ("RETIRE_LEASE_S", "two", "seconds between"),
        ("RETIRE_SLOTS", "0", "an integer in 1..65536"),
        ("RETIRE_LISTEN", "0.0.0.0:7070", "on loopback unless"),
        ("RETIRE_LISTEN", "7070", "host:port"),
        ("RETIRE_PIN_QUOTA_BLOCKS", "-1", "an integer in"),
        ("RETIRE_SOCKET", "node.sock", "an absolute path"),
        ("RETIRE_LOG_FORMAT", "xml", "one of plain, json"),
        ("RETIRE_TLS_CERT", "/none.pem", "a PEM file"),
    ],
)
def test_a_bad_setting_names_its_variable(name: str, value: str, says: str):
    """Each bad value is refused under the name of its variable, with what it must be."""
    with pytest.raises(InvalidField, match=says) as refused:
        Settings.from_env({name: value})
    assert str(refused.value).startswith(name)


def test_a_bad_setting_stops_the_process(folder: Path, start_at: Callable[..., Sidecar]):
    """The process exits 2 with one line that names the variable."""
    sidecar = start_at("redis://127.0.0.1:1", RETIRE_LEASE_S="never")
    assert sidecar.process is not None
    assert sidecar.process.wait(20) == 2
    assert "RETIRE_LEASE_S must be" in sidecar.log.read_text()


def test_a_folder_open_to_others_is_refused(folder: Path, start_at: Callable[..., Sidecar]):
    """A run folder that another user could enter is not used."""
    (folder / "a").mkdir(mode=0o755)
    os.chmod(folder / "a", 0o755)
    sidecar = start_at("redis://127.0.0.1:1")
    assert sidecar.process is not None
    assert sidecar.process.wait(20) == 2
    assert "closed to others" in sidecar.log.read_text()


def test_errors_cross_the_wire_in_their_class():
    """Every error comes back in its class with its attributes and details."""
    key = ScopeKey("acme", "s")
    sent = VersionConflict(key, expected=Version(1, 2), current=Version(1, 4))
    back = status.decode(status.encode(sent))
    assert type(back) is VersionConflict and str(back) == str(sent)
    assert back.current == Version(1, 4) and back.details() == sent.details()
    assert convert.version_from(convert.version_to(sent.current)) == sent.current

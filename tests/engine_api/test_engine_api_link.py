"""The link to a sidecar and the hand-off, over real gRPC; the engine answers from a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine_api_sidecar import ScriptedSidecar
from engine_api_world import until

from retire.engine.core_calls import CoreCalls
from retire.engine.handoff import Admitted, Handoff, NoSuccessor, Order, Refused
from retire.engine.headers import Claim
from retire.engine.link import SidecarLink
from retire.engine.settings import Settings
from retire.protocol.codec import receipt_from_dict
from retire.protocol.contract import Contract, Receipt, StopReason, Tier
from retire.protocol.errors import RegistryUnavailable, Unavailable, VersionConflict
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.client import Mutation

KEY = ScopeKey("default", "plan")
V1, V2 = Version(1, 0), Version(1, 1)


@dataclass
class EngineTable:
    """Stands where AsyncLLM's client stands: records utilities, answers from ``answers``."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    ended: list[list[str]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def engine_core(self) -> EngineTable:
        return self

    @property
    def output_processor(self) -> EngineTable:
        return self

    def abort_requests(self, ids: list[str], internal: bool) -> list[str]:
        assert internal
        self.ended.append(ids)
        return []

    async def call_utility_async(self, name: str, *args: Any) -> Any:
        self.calls.append((name, *args))
        answer = self.answers.get(name)
        return await answer() if callable(answer) else answer


FENCED = {
    "participants": [
        {"pp_rank": 0, "tp_rank": 0, "kv_group": 0, "frontier_tokens": 64, "closed": True}
    ],
    "requests": [
        {"request_id": "r", "state": "decode", "prompt_tokens": 60, "frontier_tokens": 64}
    ],
    "residual_ms": 1.5,
    "branch": "layer_stop",
    "predicted_ms": 200.0,
    "pinned_blocks": 4,
    "quota_left": 6,
    "host": {"bytes": 0, "bytes_left": 0, "refused": "host_bytes"},
}
SIGNED = {
    "certified_tokens": 48,
    "inheritable_tokens": 50,
    "first_difference": 50,
    "stop_reason": "first_difference",
    "frontier_tokens": 64,
    "pin": {"blocks": 3, "tier": "hbm", "expires_s": 29.0, "quota_left": 7},
}
HELLO = {
    "boot_id": "b", "fingerprint": "f", "block_size": 16, "num_blocks": 100,
    "vllm_version": "0.26.0", "model": "m",
}  # fmt: skip


@dataclass
class World:
    sidecar: ScriptedSidecar
    engine: EngineTable
    link: SidecarLink

    def handoff(self, expected: Version = V1, *, key: str = "k") -> Handoff:
        order = Order(KEY, Mutation(expected, key), Contract())
        made = Handoff(order, client=self.link.client(), core=self.link.core)
        self.link.publications.spawn(made.run())
        return made


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """One attached API process."""
    sidecar = ScriptedSidecar(tmp_path)
    await sidecar.start()
    monkeypatch.setenv("RETIRE_MAILBOX", str(sidecar.mailbox_path))
    engine = EngineTable(answers={
        "retire_hello": HELLO, "retire_fence": FENCED, "retire_expect": SIGNED,
        "retire_inspect": {"requests": [], "pinned_blocks": 0}, "retire_release": 4,
    })  # fmt: skip
    link = SidecarLink(Settings(sidecar=f"unix:{sidecar.socket}"), CoreCalls(engine))
    await link.start()
    await until(lambda: sidecar.attached == 1)
    yield World(sidecar, engine, link)
    await link.stop()
    await sidecar.stop()


async def test_the_hello_says_who_serves(world: World) -> None:
    """The sidecar learns the engine's identity from the API process."""
    hello = world.sidecar.hellos[0]
    assert (hello.engine_boot_id, hello.block_size, hello.model) == ("b", 16, "m")
    assert hello.gate


async def test_joins_are_cached_while_the_word_stands(world: World) -> None:
    """One RPC a version: admission of a known scope is a look at the mailbox."""
    tags = [await world.link.admissions.admit(Claim(KEY, None)) for _ in range(5)]
    assert world.sidecar.joins == 1
    assert {tag.version for tag in tags} == {V1}
    world.handoff().decide(NoSuccessor())
    await until(lambda: len(world.sidecar.reports) == 1)
    tag = await world.link.admissions.admit(Claim(KEY, None))
    assert (tag.version, world.sidecar.joins) == (V2, 2)


@pytest.mark.parametrize("version", [Version(1, 7), Version(0, 9)])
async def test_a_version_that_is_not_current_is_refused_naming_the_current(
    world: World, version: Version
) -> None:
    """Stale and future alike, from the cache and from the sidecar."""
    for _ in range(2):
        with pytest.raises(VersionConflict) as caught:
            await world.link.admissions.admit(Claim(KEY, version))
        assert caught.value.current == V1
        await world.link.admissions.admit(Claim(KEY, V1))


async def test_a_lost_registry_refuses_with_its_reason(world: World) -> None:
    """The sidecar's own error, with its retry hint."""
    world.sidecar.refuse = RegistryUnavailable("no answer")
    with pytest.raises(RegistryUnavailable):
        await world.link.admissions.admit(Claim(KEY, None))


async def test_a_lost_sidecar_refuses_within_the_timeout(world: World) -> None:
    """Unavailable, not a hang; and attached again when it is back."""
    await world.sidecar.stop()
    with pytest.raises(Unavailable):
        await world.link.admissions.admit(Claim(KEY, None))
    await world.sidecar.start()
    await until(lambda: len(world.sidecar.hellos) == 2)


async def test_the_receipt_has_every_part(world: World) -> None:
    """Stages in order, gates, participants, requests, certificate, pin; reported once."""
    await world.link.admissions.admit(Claim(KEY, None))
    handoff = world.handoff()
    committed = await handoff.committed
    assert committed.to.epoch == 1
    handoff.decide(Admitted("s-1"))
    receipt = await handoff.receipt
    assert (receipt.from_version, receipt.to_version) == (V1, V2)
    assert list(receipt.stages_ms) == ["commit", "unpublishable", "fence", "align", "resume"]
    assert [gate.gate for gate in receipt.gates] == ["n/api"]
    assert receipt.participants[0].node == "n"
    assert (receipt.certified_tokens, receipt.inheritable_tokens) == (48, 50)
    assert receipt.stop_reason is StopReason.FIRST_DIFFERENCE
    assert receipt.pin is not None and receipt.pin.blocks == 3
    assert receipt.successor_request_id == "s-1"
    assert ("retire_expect", "default", "plan", V2.term, V2.epoch) in world.engine.calls
    await until(lambda: len(world.sidecar.reports) == 1)
    assert receipt_from_dict(json.loads(world.sidecar.reports[0].receipt_json)) == receipt


async def test_no_receipt_before_unpublishable(world: World) -> None:
    """COMMIT and a certificate are not enough: a gate may still publish."""
    await world.link.admissions.admit(Claim(KEY, None))
    go = world.sidecar.hold("unpublishable")
    handoff = world.handoff()
    await handoff.committed
    handoff.decide(Admitted("s-1"))
    await asyncio.sleep(0.2)
    assert not handoff.receipt.done()
    go.set()
    await handoff.receipt


async def test_a_refused_successor_releases_what_was_pinned(world: World) -> None:
    """The old version stays superseded; the error is in the receipt and no pin is left."""
    await world.link.admissions.admit(Claim(KEY, None))
    handoff = world.handoff()
    handoff.decide(Refused({"message": "too long", "code": 400}))
    receipt = await handoff.receipt
    assert receipt.error == {"message": "too long", "code": 400}
    assert receipt.pin is None
    assert world.engine.calls[-1] == ("retire_release", "default", "plan")
    assert world.sidecar.scopes[KEY].version == V2


async def test_without_a_successor_the_prefix_stays_pinned(world: World) -> None:
    """The lease of the contract, and what the fence kept."""
    await world.link.admissions.admit(Claim(KEY, None))
    handoff = world.handoff()
    handoff.decide(NoSuccessor())
    receipt = await handoff.receipt
    assert receipt.pin is not None
    assert (receipt.pin.blocks, receipt.pin.expires_s, receipt.pin.quota_left) == (4, 30.0, 6)
    assert (receipt.pin.tier, receipt.extra) == (Tier.HBM, {"host_refused": "host_bytes"})
    assert receipt.stop_reason is None


async def test_a_stale_call_has_no_effect_and_says_so(world: World) -> None:
    """The commit fails; so does the receipt, and nothing is reported."""
    await world.link.admissions.admit(Claim(KEY, None))
    handoff = world.handoff(expected=Version(1, 5))
    handoff.decide(NoSuccessor())
    with pytest.raises(VersionConflict):
        await handoff.committed
    with pytest.raises(VersionConflict):
        await handoff.receipt
    assert world.sidecar.reports == []
    assert world.sidecar.scopes[KEY].version == V1


async def test_a_replay_is_not_reported_again(world: World) -> None:
    """The first receipt comes back."""
    await world.link.admissions.admit(Claim(KEY, None))
    first = world.handoff()
    first.decide(NoSuccessor())
    receipt: Receipt = await first.receipt
    await until(lambda: len(world.sidecar.reports) == 1)
    again = world.handoff()
    again.decide(NoSuccessor())
    committed = await again.committed
    assert committed.replayed
    assert receipt_from_dict(json.loads(committed.receipt_json)) == receipt
    with pytest.raises(Unavailable):
        await again.receipt  # a replay has no stages of its own
    assert len(world.sidecar.reports) == 1


async def test_a_sidecar_that_dies_after_the_commit_fails_the_receipt(world: World) -> None:
    """Committed but not known to be unpublishable: no receipt, an error that says retry."""
    await world.link.admissions.admit(Claim(KEY, None))
    world.sidecar.hold("unpublishable")
    handoff = world.handoff()
    await handoff.committed
    handoff.decide(Admitted("s-1"))
    await world.sidecar.stop()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(handoff.receipt, 10)
    await world.sidecar.start()


async def test_a_failing_engine_is_said_to_the_sidecar(world: World) -> None:
    """A fence that raises is answered with its text, not with silence."""

    async def broken() -> Any:
        raise RuntimeError("engine is dead")

    world.engine.answers["retire_fence"] = broken
    await world.link.admissions.admit(Claim(KEY, None))
    handoff = world.handoff()
    handoff.decide(NoSuccessor())
    with pytest.raises(Unavailable):
        await handoff.receipt

"""One node, real Valkey, real gRPC over the Unix socket: the answers of a Supersede and its
relatives.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from sidecar_world import Gate, Sidecar, Story, collected

from retire.protocol import codec
from retire.protocol.contract import Contract, Fence, FenceBranch, Tier
from retire.protocol.errors import (
    IdempotencyConflict,
    InvalidField,
    ScopeClosed,
    UnknownScope,
    VersionConflict,
)
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar import convert
from retire.sidecar.client import Mutation, _stream, _unary
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.tracks import Track

FIRST = Version(1, 0)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest_asyncio.fixture
async def gate(calm: Sidecar) -> AsyncIterator[Gate]:
    await calm.until_held()
    async with Gate(calm) as made:
        yield made


@pytest.fixture
def key(request: pytest.FixtureRequest) -> ScopeKey:
    return ScopeKey("acme", request.node.name)


async def test_three_answers_and_a_closed_old_gate(gate: Gate, key: ScopeKey):
    """Committed, unpublishable, fenced in order; from then on only the successor's slot
    publishes.
    """
    story = Story(gate.client, key)
    joined = await story.join()
    assert joined.created and joined.version == FIRST and gate.may_publish(joined.slot)
    answers = await story.supersede(FIRST)
    assert list(answers.at_s) == ["committed", "unpublishable", "fenced"]
    assert answers.to == Version(1, 1)
    assert answers.outcomes == {"a/g1": "acked"}
    assert not gate.may_publish(joined.slot)
    assert gate.may_publish(answers.committed.slot)
    assert [s.kind for s in gate.switches] == ["supersede"]
    assert len(gate.fences) == 1 and not gate.fences[0].terminal


async def test_no_gate_of_the_host_publishes_before_the_caller_hears_of_the_commit(
    gate: Gate, key: ScopeKey
):
    """The mailbox is switched at COMMIT: even a gate that never acks is closed by then."""
    story = Story(gate.client, key)
    joined = await story.join()
    gate.hold.clear()
    events = story.events(FIRST)
    first = await anext(events)
    assert first.WhichOneof("event") == "committed"
    assert not gate.may_publish(joined.slot)
    gate.hold.set()
    rest = [event.WhichOneof("event") async for event in events]
    assert rest == ["unpublishable", "fenced"]


async def test_unpublishable_waits_for_the_barrier(gate: Gate, key: ScopeKey):
    """It is not answered while a process has not passed its barrier and its lease still runs."""
    story = Story(gate.client, key)
    await story.join()
    gate.hold.clear()
    asyncio.get_running_loop().call_later(0.4, gate.hold.set)
    answers = await story.supersede(FIRST)
    assert answers.took_s("unpublishable") >= 0.4
    assert answers.outcomes == {"a/g1": "acked"}


async def test_a_silent_process_counts_after_its_lease(gate: Gate, key: ScopeKey):
    """A process that never acks is bounded by the publish lease, and the receipt says so."""
    story = Story(gate.client, key)
    await story.join()
    gate.hold.clear()
    answers = await story.supersede(FIRST)
    assert 1.9 <= answers.took_s("unpublishable") < 8.0  # a loaded machine answers late
    assert answers.outcomes == {"a/g1": "lease_ended"}


async def test_a_detached_process_is_not_waited_for(gate: Gate, key: ScopeKey):
    """A process whose link closes during the transition cannot publish any more."""
    story = Story(gate.client, key)
    await story.join()
    async with Gate(gate.sidecar, "g2", engine="e1") as dying:
        dying.hold.clear()
        events = story.events(FIRST)
        await anext(events)
        await dying.__aexit__()
        answers = await collected(events)
    assert answers.took_s("unpublishable") < 1.9
    assert answers.outcomes == {"a/g1": "acked", "a/g2": "lease_ended"}


async def test_receipts_of_the_engine_reach_the_caller(gate: Gate, key: ScopeKey):
    """Participants, delivery and pins of the fence are in the answer and in the stored receipt."""
    participant = pb.Participant(boot_id="e1", frontier_tokens=512, closed=True)
    retired = pb.RetiredRequest(request_id="r1", state="decode", prompt_tokens=500)
    gate.fence_reply = pb.Fenced(
        participants=[participant], requests=[retired], residual_ms=3.5, pinned_blocks=32,
        branch="layer_stop", predicted_ms=200.0,
    )  # fmt: skip
    gate.last_published = {"r1": 11}
    story = Story(gate.client, key)
    await story.join()
    answers = await story.supersede(FIRST, traceparent=TRACE)
    assert [(p.node, p.frontier_tokens) for p in answers.fenced.participants] == [("a", 512)]
    assert answers.fenced.requests[0].last_published_index == 11
    view = await gate.client.inspect(story.key)
    receipt = codec.receipt_from_dict(json.loads(view.receipts_json[0]))
    assert receipt.to_version == Version(1, 1)
    assert receipt.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert receipt.residual_ms == 3.5 and receipt.frontier_tokens == 512
    assert receipt.fence == Fence(FenceBranch.LAYER_STOP, 200.0)
    assert receipt.pin is not None and receipt.pin.blocks == 32
    assert receipt.requests[0].last_published_index == 11
    assert set(receipt.stages_ms) == {"commit", "unpublishable", "fence"}


@pytest.mark.parametrize(
    ("kept", "tier", "extra"),
    [
        (pb.Fenced(pinned_blocks=3, tier="dram"), Tier.DRAM, {}),
        (
            pb.Fenced(pinned_blocks=3, tier="hbm", host_refused="host_quota"),
            Tier.HBM,
            {"host_refused": "host_quota"},
        ),
    ],
    ids=["in host memory", "refused"],
)
async def test_a_receipt_says_where_the_prefix_is(
    gate: Gate, key: ScopeKey, kept: pb.Fenced, tier: Tier, extra: dict[str, object]
):
    """What the engine did, not what the contract asked for."""
    gate.fence_reply = kept
    story = Story(gate.client, key)
    await story.join()
    asked = Contract(tier=Tier.DRAM)
    await collected(gate.client.supersede(story.key, story.mutation(FIRST), contract=asked))
    view = await gate.client.inspect(story.key)
    receipt = codec.receipt_from_dict(json.loads(view.receipts_json[0]))
    assert receipt.pin is not None and receipt.pin.tier is tier
    assert receipt.extra == extra


def test_the_receipts_of_several_engines_are_one():
    """Blocks are added up, the smallest quota and the scarcest memory are named."""
    parts = [
        pb.Fenced(pinned_blocks=3, tier="dram", quota_left=9, residual_ms=1.0),
        pb.Fenced(pinned_blocks=4, tier="hbm", quota_left=7, host_refused="off"),
        pb.Fenced(pinned_blocks=0),
    ]
    merged = Track(0.0).with_deliveries(parts)
    assert (merged.pinned_blocks, merged.tier, merged.host_refused) == (7, "hbm", "off")
    assert (merged.quota_left, merged.residual_ms) == (7, 1.0)
    assert Track(0.0).with_deliveries(parts[:1]).tier == "dram"


async def test_a_fence_that_fails_is_named_missing(start: Callable[..., Sidecar], key: ScopeKey):
    """An engine that gives no receipt in time does not hold up the successor."""
    sidecar = start(RETIRE_FENCE_WAIT_S="0.3")
    await sidecar.until_held()
    async with Gate(sidecar) as gate:

        async def refuse(command: pb.Fence) -> pb.Fenced:
            raise RuntimeError("engine is busy")

        gate.fence = refuse
        story = Story(gate.client, key)
        await story.join()
        answers = await story.supersede(FIRST)
    assert list(answers.fenced.missing) == ["a"]
    assert answers.took_s("fenced") < 5.0


async def test_a_burst_of_eight(gate: Gate, key: ScopeKey):
    """Supersedes before the cleanup of earlier ones all commit; only the last one publishes."""
    story = Story(gate.client, key)
    await story.join()
    gate.hold.clear()
    events = [story.events(Version(1, n)) for n in range(8)]
    slots: list[pb.SlotRef] = []
    for n, stream in enumerate(events):
        committed = (await anext(stream)).committed
        assert convert.version_from(committed.to) == Version(1, n + 1)
        slots.append(committed.slot)
    gate.hold.set()
    rest = await asyncio.gather(*(collected(stream) for stream in events))
    assert all(answers.outcomes == {"a/g1": "acked"} for answers in rest)
    assert [gate.may_publish(slot) for slot in slots] == [False] * 7 + [True]


async def test_two_at_once_have_one_winner(gate: Gate, key: ScopeKey):
    """Of two Supersedes of one version one commits; the other learns the current version."""
    story = Story(gate.client, key)
    await story.join()
    results = await asyncio.gather(
        story.supersede(FIRST), story.supersede(FIRST), return_exceptions=True
    )
    conflicts = [r for r in results if isinstance(r, VersionConflict)]
    assert len(conflicts) == 1
    assert conflicts[0].current == Version(1, 1) and conflicts[0].expected == FIRST


async def test_the_same_key_answers_again(gate: Gate, key: ScopeKey):
    """A repeated idempotency key repeats the answer, with the receipt of the first call."""
    story = Story(gate.client, key)
    await story.join()
    mutation = Mutation(FIRST, "key-1", b"body")
    first = await collected(gate.client.supersede(story.key, mutation))
    again = await collected(gate.client.supersede(story.key, mutation))
    assert not first.committed.replayed and again.committed.replayed
    assert again.to == first.to
    stored = codec.receipt_from_dict(json.loads(again.committed.receipt_json))
    assert stored.to_version == first.to
    with pytest.raises(IdempotencyConflict, match="key-1"):
        await collected(gate.client.supersede(story.key, Mutation(FIRST, "key-1", b"other")))
    view = await gate.client.inspect(story.key)
    assert convert.version_from(view.version) == Version(1, 1)


@pytest.mark.parametrize("expected", [Version(1, 3), Version(1, 0), Version(2, 0)])
async def test_expected_must_be_current(gate: Gate, key: ScopeKey, expected: Version):
    """A future and a stale version are refused, naming the current one; nothing changes."""
    story = Story(gate.client, key)
    await story.join()
    await story.supersede(FIRST)
    with pytest.raises(VersionConflict) as refused:
        await story.supersede(expected)
    assert refused.value.current == Version(1, 1)
    assert refused.value.details() == {"version": str(expected), "current": "1.1"}
    assert len(gate.switches) == 1


async def test_unknown_and_foreign_look_the_same(gate: Gate):
    """A scope of another tenant answers exactly like one that does not exist."""
    await Story(gate.client, ScopeKey("acme", "mine")).join()
    texts: set[str] = set()
    for tenant in ("acme-b", "zeta"):
        story = Story(gate.client, ScopeKey(tenant, "mine"))
        for ask in (story.supersede(FIRST), gate.client.inspect(story.key)):
            with pytest.raises(UnknownScope) as refused:
                await ask
            texts.add(str(refused.value))
    assert len(texts) == 1


async def test_cancel_is_terminal(gate: Gate, key: ScopeKey):
    """Cancel answers a receipt and keeps nothing; afterwards every call is refused."""
    story = Story(gate.client, key)
    joined = await story.join()
    mutation = Mutation(FIRST, "cancel-1")
    reply = await gate.client.cancel(story.key, mutation)
    receipt = codec.receipt_from_dict(json.loads(reply.receipt_json))
    assert receipt.to_version == Version(1, 1) and not reply.replayed
    assert gate.fences[0].terminal
    assert not gate.may_publish(joined.slot)
    for ask in (
        story.join(),
        story.supersede(Version(1, 1)),
        gate.client.cancel(story.key, story.mutation(Version(1, 1))),
        gate.client.pause(story.key, story.mutation(Version(1, 1))),
    ):
        with pytest.raises(ScopeClosed) as refused:
            await ask
        assert refused.value.current == Version(1, 1)
    again = await gate.client.cancel(story.key, mutation)
    assert again.replayed and json.loads(again.receipt_json)["to_version"] == "1.1"


async def test_pause_keeps_authority(gate: Gate, key: ScopeKey):
    """Pause and resume change no version and close no gate; joins say that the scope is paused."""
    story = Story(gate.client, key)
    joined = await story.join()
    paused = await gate.client.pause(story.key, story.mutation(FIRST))
    assert convert.version_from(paused.to) == FIRST
    assert gate.may_publish(joined.slot)
    assert (await story.join()).paused
    await gate.client.resume(story.key, story.mutation(FIRST))
    assert not (await story.join()).paused
    assert [s.kind for s in gate.switches] == ["pause", "resume"]


async def test_join_names_the_current_version(gate: Gate, key: ScopeKey):
    """A join at another version than the current one is refused; many at once are one."""
    first, *others = await asyncio.gather(*(gate.client.join(key) for _ in range(16)))
    assert {j.slot.stamp for j in others} == {first.slot.stamp}
    with pytest.raises(VersionConflict) as refused:
        await gate.client.join(key, Version(1, 4))
    assert refused.value.current == FIRST


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.SupersedeRequest(), "idempotency_key"),
        (pb.SupersedeRequest(idempotency_key="k"), "tenant"),
        (
            pb.SupersedeRequest(idempotency_key="k", key=pb.ScopeKey(tenant="acme", scope="s")),
            "exp",
        ),
    ],
)
async def test_bad_requests_name_the_field(gate: Gate, request_: pb.SupersedeRequest, field: str):
    """A request that lacks a part is refused with the name of the part."""
    with pytest.raises(InvalidField, match=f"^{field}"):
        async for _ in _stream(gate.client._stub.Supersede(request_)):
            pass


async def test_a_megabyte_of_scope_name(gate: Gate):
    """A scope name of 1 MB gets the ordinary error, shortened."""
    with pytest.raises(InvalidField, match=r"^scope must be .* got 'x+\.\.\. \(") as refused:
        request = pb.JoinRequest(key=pb.ScopeKey(tenant="acme", scope="x" * 2**20))
        await _unary(gate.client._stub.Join, request)
    assert len(str(refused.value)) < 400

"""A successor that comes after its SUPERSEDE completes the receipt, wherever it comes."""

from __future__ import annotations

import json
from dataclasses import replace

from sidecar_world import Gate, Sidecar, Story

from retire.protocol import codec
from retire.protocol.contract import LATE, Receipt, StopReason
from retire.protocol.versions import ScopeKey, Version
from retire.registry.embedded import EmbeddedServer

FIRST, SECOND = Version(1, 0), Version(1, 1)


def late(key: ScopeKey, tokens: int) -> Receipt:
    """What an API process reports of the first request of 1.1."""
    return Receipt(
        key, FIRST, SECOND, {},
        frontier_tokens=100, inheritable_tokens=90, certified_tokens=tokens,
        first_difference=90, stop_reason=StopReason.FIRST_DIFFERENCE,
        successor_request_id=f"r{tokens}", extra={LATE: True},
    )  # fmt: skip


async def report(gate: Gate, receipt: Receipt) -> None:
    text = json.dumps(codec.receipt_to_dict(receipt))
    await gate.client.report(receipt.key, receipt.to_version, receipt_json=text, idempotency_key="")


async def test_it_completes_the_receipt_that_is_there(calm: Sidecar) -> None:
    """Once; the watchers see the whole receipt, and so does a replay of the call."""
    await calm.until_held()
    async with Gate(calm) as gate:
        story = Story(gate.client, ScopeKey("late", "one"))
        await story.join()
        await story.supersede(FIRST)
        (before,) = await receipts(gate, story.key)
        assert (before.stop_reason, before.certified_tokens) == (None, 0)
        await report(gate, late(story.key, 80))
        await report(gate, late(story.key, 16))  # the next request of the version
        (after,) = await receipts(gate, story.key)
        assert after == replace(
            before,
            frontier_tokens=100,
            inheritable_tokens=90,
            certified_tokens=80,
            first_difference=90,
            stop_reason=StopReason.FIRST_DIFFERENCE,
            successor_request_id="r80",
        )
        watching = gate.client.watch("late", after=1)
        kinds = [await anext(watching) for _ in range(3)]
        await watching.aclose()
        assert [record.kind for record in kinds] == ["register", "supersede", "receipt"]
        assert codec.receipt_from_dict(json.loads(kinds[-1].receipt_json)) == after


async def test_where_another_node_holds_the_receipt_it_stands_by_itself(
    calm_nodes: tuple[EmbeddedServer, Sidecar, Sidecar],
) -> None:
    """In the journal of the node that the successor came to."""
    _, a, b = calm_nodes
    await a.until_held()
    await b.until_held()
    async with Gate(a) as on_a, Gate(b) as on_b:
        story = Story(on_a.client, ScopeKey("late", "two"))
        await story.join()
        await on_b.client.join(story.key)
        await story.supersede(FIRST)
        watching = on_b.client.watch("late", after=1)
        await report(on_b, late(story.key, 80))
        told = None
        while told is None or LATE not in told.extra:  # the first node's own one comes here as well
            record = await anext(watching)
            if record.kind == "receipt":
                told = codec.receipt_from_dict(json.loads(record.receipt_json))
        await watching.aclose()
        assert (told.certified_tokens, told.extra) == (80, {LATE: True})
        assert [one.stop_reason for one in await receipts(on_a, story.key)] == [None]


async def receipts(gate: Gate, key: ScopeKey) -> list[Receipt]:
    view = await gate.client.inspect(key)
    return [codec.receipt_from_dict(json.loads(text)) for text in view.receipts_json]

"""A repeat of a SUPERSEDE gets the receipt of the call that made the change."""

from __future__ import annotations

import asyncio

import pytest

from retire.engine.handoff import Handoff, Order
from retire.engine.repeats import CALLS_MAX, Repeats
from retire.protocol.contract import Receipt
from retire.protocol.errors import IdempotencyConflict, Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.client import Mutation
from retire.sidecar.pb import node_pb2 as pb

KEY = ScopeKey("acme", "plan")


def call(repeats: Repeats, key: str = "k") -> Handoff:
    """A call whose futures the test settles."""
    mutation = Mutation(Version(1, 0), key, b"", "")
    handoff = Handoff(Order(KEY, mutation), client=None, core=None)
    repeats.add(handoff)
    return handoff


def settle(handoff: Handoff, *, replayed: bool) -> Receipt:
    """Its commit and its receipt are known."""
    handoff.committed.set_result(pb.Committed(replayed=replayed))
    receipt = Receipt(KEY, Version(1, 0), Version(1, 1), {}, replayed=replayed)
    handoff.receipt.set_result(receipt)
    return receipt


@pytest.mark.parametrize("first", [0, 1])
async def test_whichever_call_commits_tells_both(first: int) -> None:
    """The order in which calls arrive does not say which one commits."""
    repeats = Repeats()
    calls = [call(repeats), call(repeats)]
    leader, follower = calls[first], calls[1 - first]
    settle(follower, replayed=True)
    waiting = asyncio.create_task(repeats.receipt(follower))
    await asyncio.sleep(0)
    assert not waiting.done()  # its own receipt is there, the leader's is not
    receipt = settle(leader, replayed=False)
    assert await waiting is receipt


async def test_a_repeat_of_a_call_made_elsewhere_has_its_own_receipt() -> None:
    """Another process made the change, or one whose first attempt failed here."""
    repeats = Repeats()
    failed, repeat = call(repeats), call(repeats)
    failed.committed.set_exception(Unavailable("lost"))
    own = settle(repeat, replayed=True)
    assert await repeats.receipt(repeat) is own


async def test_a_first_call_without_a_receipt_is_not_waited_for_in_vain() -> None:
    """It committed and broke off: the repeat's own receipt is the answer."""
    repeats = Repeats()
    first, repeat = call(repeats), call(repeats)
    first.committed.set_result(pb.Committed(replayed=False))
    first.receipt.set_exception(Unavailable("the sidecar died"))
    own = settle(repeat, replayed=True)
    assert await repeats.receipt(repeat) is own


async def test_other_keys_and_refused_calls_tell_nothing() -> None:
    """Only calls with the same key are one call."""
    repeats = Repeats()
    settle(call(repeats, "another"), replayed=False)
    refused = call(repeats)
    refused.committed.set_exception(IdempotencyConflict("k"))
    repeat = call(repeats)
    own = settle(repeat, replayed=True)
    assert await repeats.receipt(repeat) is own


async def test_the_memory_is_bounded() -> None:
    """The oldest keys are forgotten, and forgotten means answered by the call itself."""
    repeats = Repeats()
    settle(call(repeats, "old"), replayed=False)
    for number in range(CALLS_MAX):
        call(repeats, f"k{number}")
    repeat = call(repeats, "old")
    own = settle(repeat, replayed=True)
    assert await repeats.receipt(repeat) is own

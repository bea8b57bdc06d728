"""Successors that no hand-off waits for: what the API process tells the sidecar of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from retire.engine.core_calls import CoreCalls
from retire.engine.inheritance import EXPECTED_MAX, Inheritance
from retire.engine.late_successors import LateSuccessors, late_receipt
from retire.engine.records import NOTHING, Outcome
from retire.protocol.contract import LATE, Receipt, StopReason
from retire.protocol.errors import Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.pb import node_pb2 as pb

KEY = ScopeKey("default", "plan")
V2, V3 = Version(1, 1), Version(1, 2)
SIGNED = {
    "request_id": "s-1",
    "certified_tokens": 48,
    "inheritable_tokens": 50,
    "first_difference": 50,
    "stop_reason": "first_difference",
    "frontier_tokens": 64,
    "pin": None,
}
LEFT = pb.Fenced(pinned_blocks=3)


class Engine:
    """Answers each ``retire_expect`` when the test says so."""

    def __init__(self) -> None:
        self.engine_core = self
        self.asked: dict[tuple[Any, ...], list[asyncio.Future[Any]]] = {}

    async def call_utility_async(self, name: str, *args: Any) -> Any:
        assert name == "retire_expect"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.setdefault(args, []).append(future)
        return await future

    def comes(self, to: Version, **changed: Any) -> None:
        """The first request of a version enters."""
        for future in self.asked["default", "plan", to.term, to.epoch]:
            if not future.done():
                future.set_result({**SIGNED, **changed})


class World:
    """One API process's side."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.core = CoreCalls(self.engine)
        self.reports: list[Receipt] = []
        self.refuse: Exception | None = None
        self.late = LateSuccessors(self.core, self.report)

    async def report(self, receipt: Receipt) -> None:
        self.reports.append(receipt)
        if self.refuse is not None:
            raise self.refuse

    async def fenced(self, to: Version, left: pb.Fenced = LEFT) -> None:
        """A FENCE that the sidecar asked for."""
        self.late.expect(KEY, to)
        await turns()
        self.late.fenced(KEY, left)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_later_successor_is_reported_once() -> None:
    """With its certificate, and marked as a part of a receipt."""
    world = World()
    await world.fenced(V2)
    await turns()
    assert world.reports == []
    world.engine.comes(V2)
    await turns()
    (told,) = world.reports
    assert (told.key, told.from_version, told.to_version) == (KEY, Version(1, 0), V2)
    assert (told.certified_tokens, told.stop_reason) == (48, StopReason.FIRST_DIFFERENCE)
    assert (told.successor_request_id, told.extra) == ("s-1", {LATE: True})


async def test_a_hand_off_of_this_process_reports_by_itself() -> None:
    """It has the whole receipt; two would be one too many."""
    world = World()
    waiting = asyncio.create_task(world.core.expect(KEY, V2))
    await world.fenced(V2)
    world.engine.comes(V2)
    assert (await waiting)["certified_tokens"] == 48
    await turns()
    assert world.reports == []


async def test_nobody_waits_where_nothing_is_left_or_another_version_comes() -> None:
    """The task is over; what the engine says later is heard by nobody."""
    world = World()
    await world.fenced(V2, pb.Fenced())
    await turns()
    world.engine.comes(V2)
    await world.fenced(V2)
    await world.fenced(V3)
    world.engine.comes(V2)
    await turns()
    assert world.reports == []
    world.engine.comes(V3)
    await turns()
    assert [one.to_version for one in world.reports] == [V3]
    await world.fenced(V3)
    world.late.stop()
    await turns()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    "changed", [{"request_id": ""}, {"stop_reason": "no_predecessor", "certified_tokens": 0}]
)
def test_what_is_no_successor_is_not_told(changed: dict[str, Any]) -> None:
    """A released expectation, and a request that nothing was there for."""
    assert late_receipt(KEY, V2, {**SIGNED, **changed}) is None


def test_of_too_many_who_wait_the_first_is_told_that_none_came() -> None:
    """What the engine remembers of scopes that nobody goes on with is bounded."""
    nothing: Any = None
    inheritance, told = Inheritance(nothing, nothing, nothing), list[str]()
    for number in range(EXPECTED_MAX + 1):

        def then(request_id: str, outcome: Outcome, name: str = f"s{number}") -> None:
            assert (request_id, outcome) == ("", NOTHING)
            told.append(name)

        inheritance.expect(ScopeKey("default", f"s{number}"), V2, then)
    assert told == ["s0"]


async def test_a_sidecar_that_is_away_costs_the_report_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged; the next successor is reported."""
    world = World()
    world.refuse = Unavailable("no sidecar")
    for to in (V2, V3):
        await world.fenced(to)
        world.engine.comes(to)
        await turns()
    assert len(world.reports) == 2
    with contextlib.suppress(StopIteration):
        assert "not reported" in next(r.getMessage() for r in caplog.records)

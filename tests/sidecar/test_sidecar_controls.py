"""The checks can fail: planted faults are exposed, and the same run without them is clean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecar_world import LEASE_S, Gate, Sidecar, Story

from retire.protocol.history import Published, in_order
from retire.protocol.invariants import check
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar import convert
from retire.sidecar.client import Joined
from retire.telemetry.history import History, read

KEY = ScopeKey("acme", "control")
FIRST = Version(1, 0)


class Publisher:
    """Publishes frames of one slot as fast as it may, and records each in the node's history."""

    def __init__(self, gate: Gate, joined: Joined, *, honest: bool) -> None:
        self._gate, self._joined, self._honest = gate, joined, honest
        self._history = History(gate.sidecar.history)
        self.count = 0

    async def run(self) -> None:
        while True:
            if not self._honest or self._gate.may_publish(self._joined.slot):
                self._publish()
            await asyncio.sleep(0.001)

    def _publish(self) -> None:
        self._history.write(
            Published(
                time.monotonic_ns(), KEY, self._joined.version, "r1", self._gate.name, self.count
            )
        )
        self.count += 1


@pytest.mark.parametrize("honest", [True, False])
async def test_a_gate_that_acks_without_switching_is_exposed(
    start: Callable[..., Sidecar], honest: bool
):
    """The history of a gate that obeys the mailbox breaks no rule; one that only acks breaks C1."""
    sidecar = start()
    await sidecar.until_held()
    async with Gate(sidecar) as gate:
        story = Story(gate.client, KEY)
        publisher = Publisher(gate, await story.join(), honest=honest)
        publishing = asyncio.create_task(publisher.run())
        await asyncio.sleep(0.1)
        answers = await story.supersede(FIRST)
        assert answers.outcomes == {"a/g1": "acked"}
        await asyncio.sleep(0.1)
        publishing.cancel()
    assert publisher.count > 10
    broken = {violation.name for violation in check(in_order(read(sidecar.history)))}
    assert broken == (set() if honest else {"C1.published_after_acknowledge"})


@pytest.mark.parametrize("plant", ["", "no-catch-up"])
async def test_a_lease_renewed_without_catching_up_is_exposed(
    start: Callable[..., Sidecar], folder: Path, plant: str
):
    """A node whose stream stalls while its renewals succeed closes by its lease. With the catch-up
    rule taken out, the same run lets an old frame pass after the acknowledgement."""
    stall = folder / "stall"
    a = start("a")
    b = start("b", RETIRE_TEST_STALL=str(stall), RETIRE_TEST_PLANT=plant)
    await asyncio.gather(a.until_held(), b.until_held())
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        story = Story(gate_a.client, KEY)
        await story.join()
        on_b = await gate_b.client.join(KEY)
        stall.touch()
        answers = await story.supersede(FIRST)
        assert answers.outcomes["b"] == "lease_ended"
        passed = gate_b.may_publish(on_b.slot)
        assert passed is (plant == "no-catch-up")
        if not plant:
            assert answers.took_s("unpublishable") <= LEASE_S * 1.2
            stall.unlink()
            await b.until(lambda s: s.ready)
            assert not gate_b.may_publish(on_b.slot)
            joined = await gate_b.client.join(KEY)
            assert joined.version == convert.version_from(answers.committed.to)

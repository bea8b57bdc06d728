"""Late tokens: counted by an auditor that looks at what is written, whatever the gates say."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from retire.engine.deliveries import Deliveries
from retire.engine.measures import ACKED_SCOPES_MAX, AckedVersions, Measures
from retire.engine.publication import Ended, Publication, Publications
from retire.engine.tag import Tag
from retire.mailbox import GateState, SlotRef
from retire.protocol.versions import Authority, ScopeKey, Version
from retire.telemetry import names
from retire.telemetry.metrics import Metrics

KEY = ScopeKey("acme", "plan")
OLD, NEW = Version(1, 3), Version(1, 4)
FRAME = b'data: {"choices":[{"index":0}]}\n\n'
PINS = {
    "pinned_by_tenant": {"acme": 3},
    "block_bytes": 1000,
    "total_blocks": 64,
    "overdue_s": 0.0,
    "host": {"off": False, "capacity": 5000, "by_tenant": {"acme": 7}},
}


class OpenMailbox:
    """Every gate is open for ever: the fault that must be seen."""

    def check(self, index: int, stamp: int) -> bool:
        return True

    def gate(self, ref: SlotRef) -> GateState:
        return GateState.OPEN

    def current(self, index: int, tenure: int) -> None:
        return None


class Reader:
    """A consumer of one streamed request."""

    request_id, place, prompt_tokens, cached_tokens = "r1", 0, 4, 0

    def __init__(self) -> None:
        self.deliveries = Deliveries("r1")

    def wake(self) -> None:
        return


class Process:
    """An API process's publications and what it counts."""

    def __init__(self) -> None:
        metrics = Metrics(CollectorRegistry())
        self.registry = metrics.registry
        self.measures = Measures(metrics, bound_ms=8.0)
        self.publications = Publications(hold_s=1.0, abort=self.abort)
        self.publications.is_late = self.measures.acked.is_late
        self.publications.on_late = self.measures.late
        self.publications.on_ended = self.measures.ended

    async def abort(self, ids: list[str]) -> None:
        return

    def value(self, metric: names.Metric, **labels: str) -> float:
        return self.registry.get_sample_value(metric.name, labels) or 0.0

    def stream(self, version: Version) -> tuple[Publication, Reader]:
        """A running stream that publishes for a version."""
        publication, reader = self.publications.open(), Reader()
        publication.bind(Tag(Authority(KEY, version, 1), SlotRef(0, 1, 7)), OpenMailbox())
        publication.streaming = True
        publication.attach(reader)
        return publication, reader


def write(publication: Publication, reader: Reader, tokens: int) -> None:
    """A frame of so many tokens passes every gate."""
    reader.deliveries.take(0, tokens, delta=True)
    publication.wrote(FRAME, complete=False)


async def test_what_is_written_after_the_ack_is_late():
    """To the token; controls: before the ack, and the successor's own tokens, are not."""
    process = Process()
    old, old_reader = process.stream(OLD)
    write(old, old_reader, 5)
    assert process.value(names.LATE_TOKENS) == 0
    process.measures.acked.acked(KEY, NEW)
    write(old, old_reader, 3)
    write(*process.stream(NEW), 4)
    assert process.value(names.LATE_TOKENS) == 3


async def test_other_scopes_are_not_concerned():
    """The same version number elsewhere."""
    process = Process()
    process.measures.acked.acked(ScopeKey("acme", "other"), NEW)
    write(*process.stream(OLD), 3)
    assert process.value(names.LATE_TOKENS) == 0


async def test_an_ended_response_is_counted_once_by_why():
    """A gate may find out first and the Switch name the true reason later."""
    process = Process()
    publication, _ = process.stream(OLD)
    publication.end(Ended.SUPERSEDED, NEW, told=False)
    publication.end(Ended.CANCELLED, NEW)
    assert process.value(names.RETIRED_RESPONSES, why="superseded") == 1
    assert process.value(names.RETIRED_RESPONSES, why="cancelled") == 0


def test_the_auditor_forgets_the_oldest_scopes():
    """Its memory is bounded; control: the newest are known."""
    acked = AckedVersions()
    keys = [ScopeKey("acme", f"s{n}") for n in range(ACKED_SCOPES_MAX + 1)]
    for key in keys:
        acked.acked(key, NEW)
    tags = [Tag(Authority(key, OLD, 1), SlotRef(0, 1, 7)) for key in (keys[0], keys[-1])]
    assert [acked.is_late(tag) for tag in tags] == [False, True]


@pytest.mark.parametrize(
    ("residual_ms", "contract_ms", "over"),
    [(None, None, 0), (7.9, None, 0), (8.1, None, 1), (8.1, 20.0, 0), (3.0, 2.0, 1)],
)
def test_a_fence_over_its_bound_is_counted(
    residual_ms: float | None, contract_ms: float | None, over: int
):
    """The contract's bound, else the node's; no running step is no residual."""
    process = Process()
    process.measures.fenced(residual_ms, contract_ms)
    assert process.value(names.FENCES_OVER_BOUND) == over


def test_pins_that_are_gone_show_as_zero():
    """Not as what they were last; the engine is asked again while anything is held."""
    process = Process()
    assert not process.measures.holds
    process.measures.pins(PINS)
    assert process.measures.holds
    assert process.value(names.PINNED_BLOCKS, tenant="acme") == 3
    assert process.value(names.PINNED_BYTES, tenant="acme", tier="hbm") == 3000
    assert process.value(names.PINNED_BYTES, tenant="acme", tier="dram") == 7
    host = {"off": True, "capacity": 0, "by_tenant": {}}
    process.measures.pins({**PINS, "pinned_by_tenant": {}, "host": host})
    assert not process.measures.holds
    assert process.value(names.PINNED_BLOCKS, tenant="acme") == 0
    assert process.value(names.PINNED_BYTES, tenant="acme", tier="dram") == 0

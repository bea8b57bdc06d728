"""What receipts become: each transition counted once, with few label values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retire.protocol.contract import (
    LATE,
    Fence,
    FenceBranch,
    GateOutcome,
    GateResult,
    Receipt,
    StopReason,
)
from retire.protocol.versions import ScopeKey, Version
from retire.telemetry import names
from retire.telemetry.metrics import Metrics
from retire.telemetry.metrics_transitions import SAVED_MS, TransitionMetrics

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
RECEIPT = Receipt(
    key=ScopeKey("acme", "plan"),
    from_version=Version(1, 3),
    to_version=Version(1, 4),
    stages_ms={"commit": 1.0, "unpublishable": 2.0, "fence": 9.0, "align": 3.0, "resume": 12.0},
    gates=(GateResult("a", GateOutcome.ACKED, 1.5), GateResult("b", GateOutcome.LEASE_ENDED, 9)),
    residual_ms=4.0,
    fence=Fence(FenceBranch.LAYER_STOP, 80.0),
    inheritable_tokens=320,
    certified_tokens=256,
    stop_reason=StopReason.FRONTIER,
    successor_request_id="cmpl-1",
    trace_id="ab" * 16,
    extra={SAVED_MS: 40.0},
)


class Counted:
    """A process's metrics, and their values by name and labels."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.transitions = TransitionMetrics(self.metrics)

    def value(self, metric: names.Metric, suffix: str = "", **labels: str) -> float:
        """0 where there is no such series."""
        return self.metrics.registry.get_sample_value(metric.name + suffix, labels) or 0.0


def test_a_receipt_is_counted_by_what_it_says():
    """Outcome, stages in seconds, gates, fence, reuse and the device time that was saved."""
    counted = Counted()
    counted.transitions.moved("supersede", RECEIPT)
    value = counted.value
    assert value(names.TRANSITIONS, change="supersede", outcome="done") == 1
    assert value(names.STAGE_SECONDS, "_sum", stage="unpublishable") == pytest.approx(0.002)
    assert value(names.STAGE_SECONDS, "_count", stage="fence") == 1
    assert value(names.RESIDUAL_SECONDS, "_sum") == pytest.approx(0.004)
    assert value(names.FENCES, branch="layer_stop") == 1
    assert value(names.GATES_PASSED, outcome="lease_ended") == 1
    assert value(names.SUCCESSORS, stop_reason="frontier") == 1
    assert (value(names.TOKENS_INHERITABLE), value(names.TOKENS_CERTIFIED)) == (320, 256)
    assert value(names.TOKENS_ADOPTED) == value(names.TENANT_ADOPTED, tenant="acme") == 256
    assert value(names.GPU_SAVED) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("changed", "metric"),
    [
        ({"replayed": True}, names.TOKENS_INHERITABLE),
        ({"successor_request_id": None}, names.TOKENS_ADOPTED),
        ({"successor_request_id": None}, names.GPU_SAVED),
        ({"stop_reason": None}, names.TOKENS_CERTIFIED),
        ({"extra": {}}, names.GPU_SAVED),
        ({"residual_ms": None}, names.RESIDUAL_SECONDS),
    ],
)
def test_what_did_not_happen_is_not_counted(changed: dict[str, Any], metric: names.Metric):
    """Controls: a replay, a refused successor, none yet, no measured step, no running step."""
    counted = Counted()
    counted.transitions.moved("supersede", replace(RECEIPT, **changed))
    suffix = "_count" if metric.kind == "histogram" else ""
    assert counted.value(metric, suffix) == 0
    counted.transitions.moved("supersede", RECEIPT)
    assert counted.value(metric, suffix) > 0


def test_a_late_successor_adds_only_what_align_came_to():
    """Its SUPERSEDE was counted when it was made."""
    counted = Counted()
    first = replace(RECEIPT, stop_reason=None, successor_request_id=None, certified_tokens=0)
    counted.transitions.moved("supersede", first)
    counted.transitions.aligned(replace(RECEIPT, stages_ms={}, extra={LATE: True, SAVED_MS: 8.0}))
    assert counted.value(names.TRANSITIONS, change="supersede", outcome="done") == 1
    assert counted.value(names.TOKENS_ADOPTED) == 256


@pytest.mark.parametrize(
    "refused",
    [{"stop_reason": StopReason.QUOTA}, {"extra": {"host_refused": "host_quota"}}],
)
def test_a_refusal_for_quota_names_the_tenant(refused: dict[str, Any]):
    """In either tier; control: other stops do not."""
    counted = Counted()
    counted.transitions.moved("supersede", RECEIPT)
    assert counted.value(names.QUOTA_REFUSALS, tenant="acme") == 0
    counted.transitions.moved("supersede", replace(RECEIPT, **refused))
    assert counted.value(names.QUOTA_REFUSALS, tenant="acme") == 1


def test_tenants_beyond_the_limit_share_a_label():
    """Counters and gauges; the sum is kept. Control: the first ones have their own."""
    counted = Counted()
    tenants = [f"tenant-{n}" for n in range(names.TENANT_LABELS_MAX + 20)]
    for tenant in tenants:
        key = ScopeKey(tenant, "plan")
        counted.transitions.moved("supersede", replace(RECEIPT, key=key))
    counted.metrics.read_by(lambda: [(names.QUOTA_BLOCKS, 2, (tenant,)) for tenant in tenants])
    for metric, each in ((names.TENANT_TRANSITIONS, 1), (names.QUOTA_BLOCKS, 2)):
        assert counted.value(metric, tenant="tenant-0") == each
        assert counted.value(metric, tenant=names.TENANT_OTHER) == 20 * each


def test_exemplars_are_for_who_understands_them():
    """OpenMetrics holds the trace; the plain format, which has no place for it, does not."""
    counted = Counted()
    counted.transitions.moved("supersede", RECEIPT)
    rich, rich_type = counted.metrics.exposition(OPENMETRICS)
    plain, plain_type = counted.metrics.exposition("text/plain")
    assert RECEIPT.trace_id and RECEIPT.trace_id in rich.decode()
    assert RECEIPT.trace_id not in plain.decode()
    assert "openmetrics" in rich_type and "openmetrics" not in plain_type


def test_the_table_of_names_is_well_made():
    """Prometheus' own rules for names and units; a meaning for each; no scope is a label."""
    assert len({metric.name for metric in names.METRICS}) == len(names.METRICS) > 40
    for metric in names.METRICS:
        assert metric.name.startswith("retire_") and metric.meaning.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric
        bare = metric.name.removesuffix("_total")
        assert metric.unit not in ("seconds", "bytes") or bare.endswith(metric.unit), metric
        assert not {"scope", "request", "version", "trace"} & {*metric.labels}, metric

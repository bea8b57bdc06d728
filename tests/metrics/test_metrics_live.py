"""Every expression of the dashboard, against a real Prometheus that scraped a real run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import pytest
from metrics_dashboard import DASHBOARD, expressions
from metrics_run import QUOTA_BLOCKS, SUPERSEDES, TRACE, scraped_run

from bench.prometheus import Prometheus, Refused
from e2e.cluster import ExistingCluster
from retire.telemetry import names

pytestmark = [pytest.mark.stack, pytest.mark.timeout(480)]
FILLED = {
    "$namespace": "serving",
    "$pod": ".*",
    "$tenant": ".*",
    "$__rate_interval": "2m",
    "$__range": "5m",
}


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, cluster: ExistingCluster, crd: str
) -> Iterator[Prometheus]:
    """After a run with two rounds of every kind of transition."""
    with scraped_run(tmp_path_factory.mktemp("prometheus"), cluster) as running:
        yield running


def filled(expression: str) -> str:
    """As Grafana sends it."""
    for variable, value in FILLED.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def answered(prometheus: Prometheus, expression: str) -> bool:
    """Whether there is a number to draw."""
    series = prometheus.query(filled(expression))
    return any(not math.isnan(float(one["value"][1])) for one in series)


def test_every_expression_draws_something(prometheus: Prometheus):
    """No panel of the dashboard is empty after such a run."""
    asked = expressions(json.loads(DASHBOARD.read_text()))
    assert len(asked) > 40
    assert [(title, one) for title, one in asked if not answered(prometheus, one)] == []


def test_an_empty_or_broken_expression_would_be_seen(prometheus: Prometheus):
    """Control: a metric that nobody has is empty, one without data is no number, nonsense is
    refused by Prometheus itself."""
    assert not answered(prometheus, 'sum(rate(retire_late_token_total{pod=~"$pod"}[5m]))')
    assert not answered(prometheus, "0 * sum(retire_node_ready) / 0")
    with pytest.raises(Refused, match="parse error"):
        answered(prometheus, "sum(rate(retire_late_tokens_total[5m])")


def test_the_run_is_told_as_it_was(prometheus: Prometheus):
    """Two rounds: counted once each, certified what fits the quota, nothing late, pins as kept."""
    value = prometheus.value
    node = '{pod="retire-node-0"}'
    assert value("sum(retire_late_tokens_total)") == 0
    done = 'retire_transitions_total{outcome="done", change="%s", pod="retire-node-0"}'
    assert value(done % "supersede") == SUPERSEDES
    assert [value(done % verb) for verb in ("pause", "resume", "cancel")] == [2, 2, 2]
    assert value('retire_transitions_total{outcome="version_conflict", change="supersede"}') == 2
    assert value(f"sum(retire_stage_seconds_count{node} * 0 + 1)") >= 5
    assert value(f"retire_certified_tokens_total{node}") >= 2 * 5 * 32
    assert value(f"retire_adopted_tokens_total{node}") > 0
    assert value(f"retire_gpu_saved_seconds_total{node}") > 0
    assert value('retire_quota_refusals_total{tenant="default"}') >= 2
    assert value('retire_quota_blocks{tenant="default"}') == QUOTA_BLOCKS
    assert 0 < value('retire_pinned_blocks{tenant="default"}') <= QUOTA_BLOCKS
    assert value('retire_pinned_bytes{tenant="default", tier="hbm"}') > 0
    assert value('retire_operator_scopes{ready="true"}') == 1
    assert value("retire_operator_registry_term") == 1


def test_a_bucket_leads_to_the_trace_of_its_transition(prometheus: Prometheus):
    """A stage's exemplar is the trace id that the agent sent; control: other metrics have none."""
    found = prometheus.exemplars('retire_stage_seconds_bucket{stage="unpublishable"}')
    assert {one["labels"]["trace_id"] for one in found} == {TRACE}
    assert prometheus.exemplars("retire_operator_reconcile_seconds_bucket") == []


def test_the_rules_were_evaluated(prometheus: Prometheus):
    """Recorded series hold numbers; the alert on the quota fires, that on late tokens does not."""
    recorded = 'namespace_stage:retire_stage_seconds:p99_5m{stage="unpublishable"}'
    assert 0 < prometheus.value(recorded) < 60
    firing = {one["metric"]["alertname"] for one in prometheus.query('ALERTS{alertstate="firing"}')}
    assert "RetireQuotaExhausted" in firing
    assert not firing & {"RetireLateTokens", "RetireGatesClosed", "RetireRegistryTermChanged"}


def test_what_is_shown_is_what_is_named(prometheus: Prometheus):
    """Every name of the table is scraped and no other of ours; no scope is a label."""
    families = '{__name__=~"retire_.+"}'
    series = [one["metric"] for one in prometheus.query(families)]
    told = {one["__name__"] for one in series if not one["__name__"].endswith("_created")}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in told}
    assert shown - {metric.name for metric in names.METRICS} == set()
    assert {metric.name for metric in names.METRICS} - shown == set()
    assert len(shown) > 40
    texts = {value for one in series for value in one.values()}
    assert not [text for text in texts if "reviser" in text or "kept-" in text]

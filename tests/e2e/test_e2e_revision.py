"""A revision applied with kubectl retires what runs; status, events and columns tell of it."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest
from e2e_plans import Plan, cached, superseded
from e2e_records import acknowledged_ns, commits, published, records, violations

from e2e.deployment import BLOCK, NODES
from e2e.waiting import condition

if TYPE_CHECKING:
    from e2e.deployment import Deployment

SHARED = "The plan is to read the code, write the tests and then the change. " * 12
OLD = SHARED + "Use the old interface."
NEW = SHARED + "Use the new interface, and say why."
COLUMNS = ["NAME", "VERSION", "PHASE", "READY", "REASON", "INHERITED", "PINNED", "AGE"]
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def plan(deployment: Deployment, tenant: str) -> Plan:
    """A scope at 1.0."""
    return Plan(deployment, tenant).opened()


def test_a_revision_retires_a_running_stream(plan: Plan) -> None:
    """Late tokens 0: at the client, and by the history, whose rule finds a planted one."""
    flow = plan.runs(OLD)
    plan.apply(epoch=1)
    status = plan.until("1.1")
    seen_s = time.monotonic()
    superseded(flow, "1.1")
    assert flow.tokens and flow.last_token_s < seen_s
    assert flow.error is not None and flow.error["last_published_index"] == flow.tokens - 1
    assert status["epoch"] == 1 and status["tenant"] == plan.tenant
    receipt = plan.receipt("1.1")
    assert (receipt["by"], receipt["fromVersion"]) == ("revision", "1.0")
    assert (receipt["retiredRequests"], receipt["gatesLeaseEnded"]) == (1, 0)
    assert 0 < receipt["commitMs"] <= receipt["unpublishableMs"]
    told = records(plan)
    assert commits(plan) == ["1.1"] and violations(told) == []
    late = dataclasses.replace(published(plan, "1.0")[-1], at_ns=acknowledged_ns(plan, "1.1") + 1)
    planted = sorted([*told, late], key=lambda one: one.at_ns)
    assert violations(planted) == ["C1.published_after_acknowledge"]


def test_the_successor_inherits_what_is_common(plan: Plan) -> None:
    """The next call finds its predecessor's blocks; the status says how many tokens."""
    flow = plan.runs(OLD)
    plan.apply(epoch=1)
    plan.until("1.1")
    superseded(flow, "1.1")
    answer = plan.asks(NEW)
    assert (answer.status_code, answer.headers["x-retire-version"]) == (200, "1.1")
    assert cached(answer.json()) >= BLOCK
    status = plan.shows("inherited", lambda status: status.get("inheritedTokens", 0) > 0)
    assert status["inheritedTokens"] == cached(answer.json())
    assert plan.receipt("1.1")["certifiedTokens"] == status["inheritedTokens"]
    assert plan.condition("PrefixCertified", "True", "Certified")


def test_a_context_that_comes_with_the_revision_is_computed(plan: Plan) -> None:
    """spec.context inherits the predecessor's prefix, and the real successor finds all of it."""
    flow = plan.runs(OLD)
    plan.apply(epoch=1, context={"inline": {"prompt": NEW}})
    plan.until("1.1")
    superseded(flow, "1.1")
    plan.condition("SuccessorAdmitted", "True", "Warmed")
    prewarm = plan.status["prewarm"]
    assert prewarm["version"] == "1.1" and prewarm["node"] in NODES
    assert prewarm["promptTokens"] > prewarm["cachedTokens"] >= BLOCK
    answer = plan.asks(NEW, prewarm["node"]).json()
    assert answer["usage"]["prompt_tokens"] == prewarm["promptTokens"]
    assert cached(answer) >= prewarm["promptTokens"] - BLOCK


def test_streams_on_both_nodes_end(plan: Plan) -> None:
    """One commit; no gate of either node publishes after it; the receipt counts both."""
    flows = [plan.runs(OLD, node) for node in NODES]
    plan.shows("both nodes", lambda status: len(status.get("participants", ())) == len(NODES))
    plan.apply(epoch=1)
    plan.until("1.1")
    seen_s = time.monotonic()
    for flow in flows:
        superseded(flow, "1.1")
        assert flow.last_token_s < seen_s
    assert plan.receipt("1.1")["gates"] >= len(NODES)
    assert commits(plan) == ["1.1"] and violations(records(plan)) == []
    for node in NODES:
        answer = plan.asks(NEW, node)
        assert (answer.status_code, answer.headers["x-retire-version"]) == (200, "1.1")
        assert cached(answer.json()) >= BLOCK, node


def test_what_a_person_sees(plan: Plan) -> None:
    """Conditions after KEP-1623, printer columns, an Event, the trace that was asked for."""
    plan.kubectl(
        *("annotate", "servingscope", plan.name),
        f"serving.retire.dev/traceparent=00-{TRACE}-b7ad6b7169203331-01",
    )
    plan.apply(epoch=1)
    status = plan.until("1.1")
    kinds = {one["type"] for one in status["conditions"]}
    assert kinds == {
        *("Ready", "Fenced", "PrefixCertified", "SuccessorAdmitted"),
        *("Reclaimed", "RegistrySynced", "QuotaAvailable"),
    }
    item = plan.deployment.scope(plan.name, plan.tenant)
    assert status["observedGeneration"] == item["metadata"]["generation"]
    assert condition(item, "Ready")["reason"] == "Current"
    assert plan.shows("trace", lambda status: status.get("traceId") == TRACE)
    head, row = plan.kubectl("get", "svscope").splitlines()
    assert head.split() == COLUMNS
    assert row.split()[:5] == ["plan", "1.1", "Active", "True", "Current"]
    event = plan.has_event("Superseded")
    assert event["type"] == "Normal" and event["message"].startswith("1.0 -> 1.1")
    assert plan.kubectl("get", "serving", "-o", "name").strip().endswith("/plan")

"""Agents revise past Kubernetes: the status follows, and the next revision starts from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e_plans import Plan, superseded
from e2e_records import commits

from e2e.cluster import CommandFailed
from e2e.deployment import NODES

if TYPE_CHECKING:
    from e2e.deployment import Deployment

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PROMPT = "Look at the traces, find the slow call. " * 8


@pytest.mark.parametrize("node", NODES)
def test_versions_of_agents_are_mirrored(deployment: Deployment, tenant: str, node: str) -> None:
    """POST .../supersede on either node; then status.epoch + 1 is the next revision."""
    plan = Plan(deployment, tenant).opened()
    agent, flow = plan.agent(node), plan.runs(PROMPT, node)
    body = {"expected_version": "1.0", "stream": False}
    body["request"] = deployment.api(node).body(PROMPT, max_tokens=4)
    answer = agent.post("supersede", body, {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    receipt = answer.json()["receipt"]
    superseded(flow, "1.1")
    agent.supersede("1.1")
    status = plan.until("1.2")
    assert (status["epoch"], status["phase"]) == (2, "Active")
    message = plan.condition("Ready", "True", "Current")
    assert "spec.epoch 0 was overtaken" in message and "set 3" in message
    line = plan.receipt("1.1")
    assert (line["by"], line["certifiedTokens"]) == ("runtime", receipt["certified_tokens"])
    assert line["traceId"] == receipt["trace_id"] == TRACE
    plan.apply(epoch=3)
    plan.until("1.3")
    assert plan.receipt("1.3")["by"] == "revision"
    assert commits(plan) == ["1.1", "1.2", "1.3"]


def test_the_api_server_refuses_to_go_back_or_to_jump(deployment: Deployment, tenant: str) -> None:
    """The rules of the CRD, with what to do in their messages; nothing is committed."""
    plan = Plan(deployment, tenant).opened()
    plan.agent().supersede("1.0")
    plan.until("1.1")
    plan.apply(epoch=2)
    plan.until("1.2")
    with pytest.raises(CommandFailed, match=r"spec\.epoch.*must never be lowered"):
        plan.apply(epoch=1)
    with pytest.raises(CommandFailed, match=r"spec\.epoch may rise by one"):
        plan.apply(epoch=9)
    assert plan.until("1.2")["epoch"] == 2
    assert commits(plan) == ["1.1", "1.2"]


def test_a_revision_that_an_agent_made_first_is_not_made_twice(
    deployment: Deployment, tenant: str
) -> None:
    """spec.epoch 1 where the scope is at 1.1 already: nothing to do."""
    plan = Plan(deployment, tenant).opened()
    plan.agent().supersede("1.0")
    plan.until("1.1")
    plan.apply(epoch=1)
    generation = deployment.scope(plan.name, tenant)["metadata"]["generation"]
    plan.shows("seen", lambda status: status["observedGeneration"] == generation)
    assert plan.until("1.1")["receipts"][0]["by"] == "runtime"
    assert commits(plan) == ["1.1"]

"""A revision applied with kubectl retires a running stream; the status tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.lab import prompt_tokens
from bench.stack_streams import Flow, streamed
from e2e.deployment import NODES

if TYPE_CHECKING:
    from e2e.deployment import Deployment

OLD = prompt_tokens(400, 41)


def test_a_revision_retires_a_running_stream(deployment: Deployment, tenant: str) -> None:
    """After UNPUBLISHABLE not one token more; the stream ends with `superseded`; status is right."""
    deployment.apply("plan", tenant, epoch=0)
    deployment.until("plan", tenant, "1.0")
    api = deployment.api(NODES[0])
    flow = Flow(api, streamed(api.body(OLD)), api.headers("plan", tenant))  # type: ignore[arg-type]
    flow.tokens_at_least(5)
    deployment.apply("plan", tenant, epoch=1)
    item = deployment.until("plan", tenant, "1.1")
    flow.ended()
    assert flow.error["code"] == "superseded"
    assert flow.error["current"] == "1.1"
    receipt = item["status"]["receipts"][0]
    assert (receipt["toVersion"], receipt["by"]) == ("1.1", "revision")
    assert receipt["retiredRequests"] == 1

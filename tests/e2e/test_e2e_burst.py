"""Eight revisions in a second: the last one wins, every epoch is committed, once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from e2e_plans import Plan, superseded
from e2e_records import acknowledged_ns, commits, records, violations

from e2e.deployment import NODES
from retire.protocol.history import Published

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.deployment import Deployment

REVISIONS = 8
FINAL = f"1.{REVISIONS}"
PROMPT = "Count the files, then the lines, then the words. " * 8


def _patched(plan: Plan, epoch: int) -> None:
    plan.patch(epoch=epoch)


def _applied(plan: Plan, epoch: int) -> None:
    plan.deployment.apply(plan.name, plan.tenant, epoch=epoch)


@pytest.mark.parametrize("revise", [_patched, _applied])
def test_a_burst_ends_at_the_last_revision(
    deployment: Deployment, tenant: str, revise: Callable[[Plan, int], None]
) -> None:
    """By kubectl patch, and by server-side apply; streams of both nodes end."""
    plan = Plan(deployment, tenant)
    deployment.apply(plan.name, tenant, epoch=0)
    plan.until("1.0")
    flows = [plan.runs(PROMPT, node) for node in NODES]
    began = time.monotonic()
    for epoch in range(1, REVISIONS + 1):
        revise(plan, epoch)
    print(f"{REVISIONS} revisions in {time.monotonic() - began:.2f} s")
    status = plan.until(FINAL)
    for flow in flows:
        flow.ended()
        assert flow.error is not None and flow.error["code"] == "superseded"
        assert {frame.version for frame in flow.frames if frame.tokens} == {"1.0"}
    assert commits(plan) == [f"1.{epoch}" for epoch in range(1, REVISIONS + 1)]
    assert status["receipts"][0]["toVersion"] == FINAL
    # An operator may hear of a commit before it hears whose it was.
    plan.shows("whose", lambda status: {one["by"] for one in status["receipts"]} == {"revision"})
    final = plan.runs(PROMPT)
    _nothing_late(plan)
    for node in NODES:  # whoever still believes in an abandoned plan is told
        answer = plan.asks(PROMPT, node, version="1.3")
        assert (answer.status_code, answer.json()["error"]["current"]) == (409, FINAL)
    plan.patch(epoch=REVISIONS + 1)
    superseded(final, f"1.{REVISIONS + 1}")


def _nothing_late(plan: Plan) -> None:
    told = records(plan)
    assert violations(told) == []
    over_ns = acknowledged_ns(plan, FINAL)
    after = {str(r.version) for r in told if isinstance(r, Published) and r.at_ns > over_ns}
    assert after == {FINAL}

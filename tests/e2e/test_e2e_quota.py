"""A namespace's quota of pins: who gets a share, who is told why not, and the cold successor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e_plans import SETTLED_S, Plan, cached, superseded
from e2e_records import records, violations

from e2e.deployment import BLOCK
from e2e.waiting import wait_for

if TYPE_CHECKING:
    from e2e.deployment import Deployment

QUOTA = "serving.retire.dev/pin-quota-blocks"
OLD = "Read every module and say what it owns. " * 12
NEW = OLD + "Begin with the smallest one."


def _annotate(deployment: Deployment, tenant: str, blocks: int) -> None:
    deployment.cluster.kubectl("annotate", "namespace", tenant, "--overwrite", f"{QUOTA}={blocks}")


def test_a_quota_is_shared_oldest_first(deployment: Deployment, tenant: str) -> None:
    """The younger scope waits for a share, works meanwhile, and gets it when there is more."""
    _annotate(deployment, tenant, 10)
    first = Plan(deployment, tenant, "first").opened(quota={"pinnedBlocks": 8})
    first.condition("QuotaAvailable", "True", "Granted")
    second = Plan(deployment, tenant, "second").opened(quota={"pinnedBlocks": 8})
    message = second.condition("QuotaAvailable", "False", "QuotaExceeded")
    assert "2 of 10 blocks are left" in message and QUOTA in message
    assert second.status["phase"] == "Degraded"
    assert second.asks("work", max_tokens=1).status_code == 200
    _annotate(deployment, tenant, 16)
    second.condition("QuotaAvailable", "True", "Granted")
    second.shows("active", lambda status: status["phase"] == "Active")


def test_over_quota_the_successor_is_cold_and_correct(deployment: Deployment, tenant: str) -> None:
    """The pin is refused, and said so; the same text comes out; with room it inherits again."""
    _annotate(deployment, tenant, 1)
    plan = Plan(deployment, tenant).opened()
    clean = Plan(deployment, tenant, "clean").opened()
    expected = clean.asks(NEW).json()["choices"][0]["text"]
    wait_for("the quota at the node", lambda: _successor(plan, expected) == 0, SETTLED_S)
    told = plan.shows("why", lambda status: "stoppedBy" in status["receipts"][0])["receipts"][0]
    assert (told["stoppedBy"], told["certifiedTokens"]) == ("quota", 0)
    _annotate(deployment, tenant, 1000)
    wait_for("the new quota at the node", lambda: _successor(plan, expected) >= BLOCK, SETTLED_S)
    assert violations(records(plan)) == []


def _successor(plan: Plan, expected: str) -> int:
    """A running plan is revised; its successor says what is expected. What that one found."""
    epoch = plan.status["epoch"] + 1
    flow = plan.runs(OLD)
    plan.patch(epoch=epoch)
    plan.until(f"1.{epoch}")
    superseded(flow, f"1.{epoch}")
    answer = plan.asks(NEW).json()
    assert answer["choices"][0]["text"] == expected
    return cached(answer)

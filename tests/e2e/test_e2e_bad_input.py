"""What cannot be is refused with field and rule; what may yet be waits, and says for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e_plans import Plan

from e2e.cluster import CommandFailed

if TYPE_CHECKING:
    from e2e.deployment import Deployment

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"epoch": -1}, r"spec\.epoch.*greater than or equal to 0"),
    ({"epoch": "two"}, r"spec\.epoch.*integer"),
    ({"onNewInput": "maybe"}, r'spec\.onNewInput.*"reject", "enqueue", "interrupt", "rollback"'),
    ({"contract": {"inherit": "always"}}, r'spec\.contract\.inherit.*"certified", "never"'),
    ({"contract": {"retention": {"ttlSeconds": 0}}}, r"spec\.contract\.retention\.ttlSeconds"),
    ({"tenant": "Not_A_Label"}, r"spec\.tenant.*should match"),
    ({"parentRef": {"name": "plan"}}, r"spec\.parentRef\.name.*not its own parent"),
    ({"context": {}}, r"spec\.context must have exactly one of"),
    ({"context": {"inline": {"prompt": ""}}}, r"spec\.context\.inline\.prompt.*at least 1 char"),
    ({"quota": {"pinnedBlocks": -5}}, r"spec\.quota\.pinnedBlocks"),
    ({"epohc": 3}, r'unknown field "spec\.epohc"'),
]


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_a_malformed_spec_is_refused(
    deployment: Deployment, tenant: str, spec: dict[str, Any], words: str
) -> None:
    """At admission, by kubectl apply; no object is there afterwards."""
    plan = Plan(deployment, tenant)
    with pytest.raises(CommandFailed, match=words):
        plan.apply(**spec)
    assert not deployment.cluster.api.exists(plan.path)


def test_a_pool_that_is_not_there(deployment: Deployment, tenant: str) -> None:
    """UnknownPool names the label; the right pool mends it."""
    plan = Plan(deployment, tenant)
    plan.apply(poolRef={"name": "nowhere"})
    message = plan.condition("Ready", "False", "UnknownPool")
    assert "serving.retire.dev/pool=nowhere" in message
    assert plan.has_event("UnknownPool")["type"] == "Warning"
    plan.patch(poolRef={"name": "default"})
    plan.until("1.0")
    assert plan.has_event("Ready")["type"] == "Normal"


def test_a_tenant_of_somebody_else(deployment: Deployment, tenant: str) -> None:
    """TenantNotAllowed names the annotation; the namespace's owner mends it."""
    plan, other = Plan(deployment, tenant), f"{tenant}-batch"
    plan.apply(tenant=other)
    message = plan.condition("Ready", "False", "TenantNotAllowed")
    assert other in message and "serving.retire.dev/tenants" in message
    assert "version" not in plan.status
    plan.kubectl("annotate", "namespace", tenant, f"serving.retire.dev/tenants={other}")
    assert plan.until("1.0")["tenant"] == other


def test_a_parent_that_is_not_there_yet(deployment: Deployment, tenant: str) -> None:
    """ParentMissing; once the parent is applied the child opens below it."""
    child = Plan(deployment, tenant, "sub")
    child.apply(parentRef={"name": "plan"})
    assert "'plan'" in child.condition("Ready", "False", "ParentMissing")
    Plan(deployment, tenant).opened()
    child.until("1.0")
    assert child.view()["parent"] == "plan"


def test_a_context_that_is_no_context(deployment: Deployment, tenant: str) -> None:
    """The object, the key and what must be mended are named; mended, it is computed."""
    plan = Plan(deployment, tenant)
    plan.kubectl("create", "configmap", "revised", '--from-literal=context={"messages": [')
    plan.opened(context={"configMapRef": {"name": "revised"}})
    message = plan.condition("SuccessorAdmitted", "False", "ContextInvalid")
    assert f"ConfigMap {tenant}/revised key 'context' is not valid JSON" in message
    mended = '{"data": {"context": "Say it in one sentence, and stop."}}'
    plan.kubectl("patch", "configmap", "revised", "--type=merge", "-p", mended)
    plan.condition("SuccessorAdmitted", "True", "Warmed")

"""The revised context of a spec is computed before anybody asks, wherever it is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from e2e_plans import Plan, cached, untagged

from e2e.deployment import BLOCK

if TYPE_CHECKING:
    from e2e.deployment import Deployment

KINDS = ("configMapRef", "secretRef")


def _kept(plan: Plan, kind: str, text: str) -> None:
    """Make, or change, the object that holds the context, with kubectl."""
    what = ("configmap",) if kind == "configMapRef" else ("secret", "generic")
    made = plan.kubectl(
        *("create", *what, "revised", f"--from-literal=context={text}"),
        *("--dry-run=client", "-o", "json"),
    )
    plan.kubectl("apply", "-f", "-", stdin=made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_of_another_object(deployment: Deployment, tenant: str, kind: str) -> None:
    """The real request finds it; a stranger's request of the same text does not."""
    plan = Plan(deployment, tenant)
    prompt = f"{kind}: the revised plan is to measure first and to change one thing. " * 8
    _kept(plan, kind, json.dumps({"prompt": prompt}))
    plan.opened(context={kind: {"name": "revised"}})
    plan.condition("SuccessorAdmitted", "True", "Warmed")
    prewarm = plan.status["prewarm"]
    assert prewarm["version"] == "1.0"  # two operators may have asked: the second finds a part
    answer = plan.asks(prompt, prewarm["node"]).json()
    assert answer["usage"]["prompt_tokens"] == prewarm["promptTokens"]
    assert cached(answer) >= prewarm["promptTokens"] - BLOCK
    assert cached(untagged(deployment, prompt)) == 0
    text = json.dumps(plan.status) + json.dumps(plan.events())
    assert "measure first" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_that_is_missing_is_computed_once_it_is_there(
    deployment: Deployment, tenant: str, kind: str
) -> None:
    """A condition says what is missing; the revision itself does not wait for it."""
    plan = Plan(deployment, tenant).opened()
    plan.apply(epoch=1, context={kind: {"name": "revised"}})
    plan.until("1.1")
    word = {"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind]
    message = plan.condition("SuccessorAdmitted", "False", f"{word}Missing")
    assert f"no {word} {tenant}/revised" in message
    _kept(plan, kind, "Say what you measured. " * 8)
    plan.condition("SuccessorAdmitted", "True", "Warmed")
    plan.shows("active", lambda status: status["phase"] == "Active")

"""Pause, resume, cancel, parents and policies: what a spec says holds at the nodes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from e2e_plans import Plan, superseded
from e2e_records import commits, records, violations

from e2e.cluster import CommandFailed
from e2e.deployment import NODES
from e2e.waiting import wait_for
from retire.protocol.events import Change
from retire.protocol.history import CommitMade

if TYPE_CHECKING:
    import httpx

    from e2e.deployment import Deployment

PROMPT = "Write the release notes of every version. " * 8


def test_a_paused_scope_keeps_its_authority_and_takes_no_work(
    deployment: Deployment, tenant: str
) -> None:
    """New input waits until spec.paused is taken back; what ran goes on under its version."""
    plan = Plan(deployment, tenant).opened()
    flow = plan.runs(PROMPT, max_tokens=400)
    plan.patch(paused=True)
    status = plan.shows("paused", lambda status: status.get("phase") == "Paused")
    assert status["version"] == "1.0" and plan.condition("Ready", "True", "Paused")
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(plan.asks("go on")))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and not flow.over
    plan.patch(paused=False)
    plan.shows("resumed", lambda status: status.get("phase") == "Active")
    waiting.join(120)
    assert [one.status_code for one in answers] == [200]
    flow.ended()
    assert (flow.error, flow.tokens) == (None, 400)
    # Two operators may both have asked: it is the same pause.
    assert {*commits(plan, Change.PAUSE), *commits(plan, Change.RESUME)} == {"1.0"}
    assert [one["reason"] for one in (plan.has_event("Paused"), plan.has_event("Resumed"))]


def test_a_cancelled_scope_is_over(deployment: Deployment, tenant: str) -> None:
    """The stream ends, no call is taken any more, and nobody can take it back."""
    plan = Plan(deployment, tenant).opened()
    flow = plan.runs(PROMPT)
    plan.patch(cancelled=True)
    status = plan.shows("cancelled", lambda status: status.get("phase") == "Cancelled")
    flow.ended()
    assert flow.error is not None and flow.error["code"] == "cancelled"
    assert status["receipts"][0]["kind"] == "cancel"
    for node in NODES:
        answer = plan.asks("anybody?", node)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "scope_cancelled")
    with pytest.raises(CommandFailed, match=r"spec\.cancelled is final"):
        plan.patch(cancelled=False)
    assert len(commits(plan, Change.CANCEL)) == 1 and violations(records(plan)) == []


def test_a_child_is_retired_with_its_parent(deployment: Deployment, tenant: str) -> None:
    """One commit ends the streams of both, on different nodes; the child's own does not."""
    parent = Plan(deployment, tenant).opened()
    child = Plan(deployment, tenant, "sub").opened(parentRef={"name": parent.name})
    assert child.view()["parent"] == parent.name
    of_parent, of_child = parent.runs(PROMPT, NODES[0]), child.runs(PROMPT, NODES[1])
    child.patch(epoch=1)
    superseded(of_child, "1.1")
    assert not of_parent.over
    of_child = child.runs(PROMPT, NODES[1])
    parent.patch(epoch=1)
    superseded(of_parent, "1.1")
    superseded(of_child, "1.2")
    parent.until("1.1")
    assert child.until("1.2")["epoch"] == 2
    assert (commits(parent), commits(child)) == (["1.1"], ["1.1", "1.2"])
    assert len({one.at_ns for plan in (parent, child) for one in _last_commit(plan)}) == 1
    assert violations(records(parent)) == violations(records(child)) == []


def _taken(plan: Plan) -> httpx.Response | None:
    """The answer to another input; None: it was refused, by the policy before this one."""
    answer = plan.asks("another thing")
    if answer.status_code == 409:
        assert answer.json()["error"]["code"] == "policy_refused"
        return None
    assert answer.status_code == 200, answer.text
    return answer


def _last_commit(plan: Plan) -> list[CommitMade]:
    return [one for one in records(plan) if isinstance(one, CommitMade)][-1:]


def test_a_policy_for_new_input_reaches_the_nodes(deployment: Deployment, tenant: str) -> None:
    """reject, then interrupt; what an interrupting call committed is mirrored."""
    plan = Plan(deployment, tenant).opened(onNewInput="reject")
    flow = plan.runs(PROMPT)
    answer = plan.asks("another thing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "policy_refused")
    assert not flow.over
    plan.apply(epoch=0, onNewInput="interrupt")
    answer = wait_for("the policy in force", lambda: _taken(plan))
    assert answer.headers["x-retire-version"] == "1.1"
    superseded(flow, "1.1")
    assert plan.until("1.1")["receipts"][0]["by"] == "runtime"
    assert plan.view()["on_new_input"] == "interrupt"

"""Scopes of scopes: one call retires a plan and its sub-agents, in one commit, in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stack_forms import completion

from bench.stack_streams import COMPLETIONS, Agent, Flow
from retire.client import Retire
from retire.protocol.history import CommitMade
from retire.telemetry.recorded import read

if TYPE_CHECKING:
    from bench.stack import Stack

PLAN = [61] * 96


def child_of(agent: Agent, name: str, **headers: str) -> tuple[Agent, dict[str, str]]:
    """A scope below ``agent``'s, and the tag of its calls."""
    child = Agent.new(agent.stack, name)
    return child, {**child.headers, "x-retire-parent": agent.scope, **headers}


def started(agent: Agent, headers: dict[str, str]) -> Flow:
    form = completion(PLAN)
    body = {"model": agent.stack.model, **form.body, "stream": True, "return_token_ids": True}
    return Flow(agent.stack, body, headers).tokens_at_least(3)


def superseded(flow: Flow, version: str) -> None:
    flow.ended(30)
    assert flow.error is not None and flow.error["code"] == "superseded"
    assert flow.error["current"] == version and not flow.done


def test_one_call_retires_the_whole_tree(forms: Stack) -> None:
    """A plan, two sub-agents and one below: all streams end; each scope has its own receipt."""
    plan = Agent.new(forms, "family")
    plan.opened()
    search, search_tag = child_of(plan, "search")
    write, write_tag = child_of(plan, "write")
    alone = Agent.new(forms, "alone")
    flows = [started(plan, plan.headers), started(search, search_tag), started(write, write_tag)]
    below, below_tag = child_of(search, "below")
    flows.append(started(below, below_tag))
    flows += [started(search, search_tag) for _ in range(2)]
    bystander = started(alone, alone.headers)
    members = [plan, search, write, below]
    assert [m.view()["parent"] for m in members] == [None, plan.scope, plan.scope, search.scope]
    receipt = plan.supersede(plan.version)["receipt"]
    for flow in flows:
        superseded(flow, receipt["to_version"])
    for member in (search, write, below):
        own = member.view()["receipts"][0]
        assert (own["from_version"], own["to_version"]) == ("1.0", "1.1")
        assert own["extra"] == {"ancestor": plan.scope}
        assert {gate["outcome"] for gate in own["gates"]} == {"acked"} and len(own["gates"]) == 2
        assert all(part["closed"] for part in own["participants"])
        assert member.version == "1.1"
    told = {
        m.scope: [q for q in m.view()["receipts"][0]["requests"] if q["state"] != "finished"]
        for m in members
    }
    assert [len(told[m.scope]) for m in members] == [1, 3, 1, 1]
    published = sorted(q["last_published_index"] for each in told.values() for q in each)
    assert published == sorted(flow.tokens - 1 for flow in flows)
    seen = bystander.tokens
    bystander.until(lambda flow: flow.tokens > seen or flow.done)
    assert alone.version == "1.0" and bystander.error is None, "NEGATIVE CONTROL: not of the tree"
    bystander.close()
    made = [r for r in read(forms.history) if isinstance(r, CommitMade)]
    of_tree = {m.scope for m in members}
    commits = [r for r in made if r.key.scope in of_tree]
    assert len(commits) == 4 and len({r.at_ns for r in commits}) == 1, "one commit"


def test_a_moved_childs_successor_inherits_like_any_other(forms: Stack) -> None:
    """A sub-agent goes on under the version that its parent's change gave it, from its prefix."""
    plan = Agent.new(forms, "heirs")
    plan.opened()
    child, tag = child_of(plan, "heir")
    flow = started(child, tag)
    receipt = plan.supersede(plan.version)["receipt"]
    superseded(flow, receipt["to_version"])
    body = {"model": forms.model, **completion(PLAN, max_tokens=4).body}
    answer = forms.http.post(COMPLETIONS, json=body, headers=tag)
    assert answer.headers["x-retire-version"] == "1.1"
    clean = completion(PLAN, max_tokens=4).clean(forms)
    assert answer.json()["choices"][0]["text"] == clean["choices"][0]["text"]
    own = child.view()["receipts"][0]
    assert own["successor_request_id"] and own["certified_tokens"] >= 64


def test_a_child_moves_alone_and_its_parent_stays(forms: Stack) -> None:
    """Retiring a sub-agent does not touch the plan."""
    plan = Agent.new(forms, "stays")
    running = started(plan, plan.headers)
    child, tag = child_of(plan, "moves")
    flow = started(child, tag)
    receipt = child.supersede(child.version)["receipt"]
    superseded(flow, receipt["to_version"])
    assert receipt["extra"] == {} and plan.version == "1.0" and running.error is None
    running.close()


def test_cancelling_a_plan_cancels_its_children(forms: Stack) -> None:
    """Terminal for the tree; nothing new may begin below it."""
    plan = Agent.new(forms, "ends")
    plan.opened()
    child, tag = child_of(plan, "ended")
    flow = started(child, tag)
    assert plan.post("cancel", {"expected_version": plan.version}).status_code == 200
    flow.ended(30)
    assert flow.error is not None and flow.error["code"] == "cancelled"
    assert child.view()["cancelled"] and child.view()["receipts"][0]["extra"]["ancestor"]
    _, late = child_of(plan, "late")
    answer = refused(forms, late)
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "scope_cancelled"


def refused(stack: Stack, headers: dict[str, str]) -> Any:
    return stack.http.post(COMPLETIONS, json=stack.body("x", max_tokens=1), headers=headers)


def test_a_parent_that_cannot_be_is_refused_by_name(forms: Stack) -> None:
    """Unknown, itself, another one, a descendant, of another tenant, without a scope."""
    plan, other = Agent.new(forms, "one"), Agent.new(forms, "two")
    plan.opened()
    other.opened()
    child, tag = child_of(plan, "placed")
    assert refused(forms, tag).status_code == 200
    cases = [
        ({**tag, "x-retire-parent": "nobody"}, 404, "unknown_scope", "no scope 'nobody'"),
        ({**tag, "x-retire-parent": child.scope}, 400, "invalid_field", "another scope than"),
        ({**tag, "x-retire-parent": other.scope}, 400, "invalid_field", "a parent never changes"),
        ({**plan.headers, "x-retire-parent": child.scope}, 400, "invalid_field", "not below"),
        ({**tag, "x-retire-parent": ""}, 400, "invalid_field", "x-retire-parent must be"),
        ({"x-retire-parent": plan.scope}, 400, "invalid_field", "x-retire-scope must be present"),
        ({**tag, "x-retire-tenant": "stranger"}, 404, "unknown_scope", f"no scope {plan.scope!r}"),
    ]
    for headers, status, code, said in cases:
        answer = refused(forms, headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), error
        assert said in error["message"], error
    assert child.view()["parent"] == plan.scope and plan.view()["parent"] is None


def test_our_client_places_a_scope(forms: Stack) -> None:
    """``retire.scope(name, parent=...)``."""
    with Retire(forms.url) as retire:
        plan = retire.scope(Agent.new(forms, "ours").scope)
        plan.complete("a plan", stream=False, model=forms.model, max_tokens=1)
        child = retire.scope(Agent.new(forms, "part").scope, parent=plan.name)
        assert child.headers()["x-retire-parent"] == plan.name
        child.complete("a part", stream=False, model=forms.model, max_tokens=1)
        plan.supersede()
        info = child.get()
        assert str(info.version) == "1.1" and info.raw["parent"] == plan.name

"""Names used again at once, and stops that come late: what clients' own bookkeeping does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stack_forms import completion, text_of

from bench.stack_streams import COMPLETIONS, Agent, Flow, streamed

if TYPE_CHECKING:
    from bench.stack import Stack

PLAN = [91] * 64


def call(stack: Stack, headers: dict[str, str], **params: object) -> Flow:
    body = streamed({"model": stack.model, **completion(PLAN, **params).body})
    return Flow(stack, body, headers, path=COMPLETIONS)


def test_a_request_id_used_again_at_once_harms_nobody(forms: Stack) -> None:
    """The client's own X-Request-Id, the same for each attempt: hung up, sent again, eight times;
    then superseded and sent again. The engine's ids are its own."""
    agent = Agent.new(forms, "same-id")
    named = agent.headers | {"x-request-id": f"mine-{agent.scope}"}
    for _ in range(8):
        flow = call(forms, named).tokens_at_least(1)
        flow.close()
    clean = completion(PLAN, max_tokens=8).clean(forms)["choices"][0]["text"]
    assert text_of(call(forms, named, max_tokens=8).ended()) == clean
    running = call(forms, named).tokens_at_least(2)
    agent.supersede(agent.version)
    again = call(forms, named, max_tokens=8).ended()
    assert text_of(again) == clean and again.error is None
    assert running.ended(30).error is not None


def test_a_stop_that_comes_late_does_not_hit_the_next_turn(forms: Stack) -> None:
    """A cancel for the turn before: 409 naming the version, and the new turn runs to its end."""
    agent = Agent.new(forms, "late-stop")
    first = agent.opened()
    current = agent.supersede(first)["receipt"]["to_version"]
    turn = call(forms, agent.headers, max_tokens=60).tokens_at_least(1)
    late = agent.post("cancel", {"expected_version": first})
    assert late.status_code == 409 and late.json()["error"]["current"] == current
    assert turn.ended().done and turn.error is None and turn.tokens == 60


def test_cancel_says_what_became_of_it(forms: Stack) -> None:
    """Running: it was stopped. Over: it had finished. Again: 409. Unknown: 404."""
    running, over = Agent.new(forms, "stopped"), Agent.new(forms, "over")
    flow = call(forms, running.headers).tokens_at_least(2)
    done = running.post("cancel", {"expected_version": running.version}).json()["receipt"]
    assert [request["state"] for request in done["requests"]] == ["decode"]
    assert flow.ended(30).error is not None
    over.opened()
    done = over.post("cancel", {"expected_version": over.version}).json()["receipt"]
    assert [request["state"] for request in done["requests"]] == ["finished"]
    again = over.post("cancel", {"expected_version": over.version})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "scope_cancelled")
    nobody = Agent.new(forms, "nobody").post("cancel", {"expected_version": "1.0"})
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "unknown_scope")

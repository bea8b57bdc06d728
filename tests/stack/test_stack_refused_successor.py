"""What only the engine can refuse: the old version stays superseded, and the receipt says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.stack_streams import CHAT, COMPLETIONS, Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.stack import Stack

BEAM = (
    "use_beam_search must be absent or false in a request with x-retire-scope: "
    "its beams are requests that carry no version"
)
# What differs from a good completion body, and whether vLLM's plain answer is the same error.
REFUSED: dict[str, tuple[dict[str, Any], bool]] = {
    "over the model's length": ({"prompt": [5] * 5000}, True),
    "prompt and output over the model's length": ({"prompt": [5] * 4000, "max_tokens": 500}, True),
    "a negative temperature": ({"temperature": -1}, True),
    "a model that is not served": ({"model": "nope"}, True),
    "a token that does not exist": ({"prompt": [999_999]}, True),
    "no choice at all": ({"n": 0}, True),
    "beam search": ({"use_beam_search": True, "n": 2}, False),
}
MALFORMED = {
    "messages that are no list": ({"messages": "hi"}, "request.messages: Input should be a valid"),
    "a message without a role": ({"messages": [{"content": "x"}]}, "request.messages.0."),
    "an empty conversation": ({"messages": []}, "Cannot apply chat template to an empty"),
    "an empty prompt": ({"prompt": ""}, "request: Value error, Either prompt or prompt_embeds"),
}


def superseded_with(agent: Agent, request: Mapping[str, Any], *, stream: bool) -> dict[str, Any]:
    """SUPERSEDE a running stream with a request that the engine refuses; the error it gave.

    Checked on the way: the old stream has ended, the version has moved, nothing is pinned.
    """
    old = agent.stream([7] * 64, max_tokens=3000).tokens_at_least(3)
    version = agent.version
    if stream:
        flow = agent.supersede_stream(version, request).ended()
        receipt, last = flow.receipt, [f.body for f in flow.frames if f.body is not None][-1]
        assert flow.tokens == 0 and len(flow.frames) <= 3  # receipt, error, perhaps an end mark
        error = last["error"]
    else:
        body = {"expected_version": version, "stream": False, "request": request}
        answer = agent.post("supersede", body)
        assert answer.status_code == 200, answer.text
        receipt, error = answer.json()["receipt"], answer.json()["error"]
        assert answer.json()["response"] is None
    assert receipt["error"] == error and receipt["successor_request_id"] is None
    assert receipt["pin"] is None and receipt["from_version"] == version
    old.ended()
    assert old.error is not None and old.error["code"] == "superseded"
    (retired,) = receipt["requests"]
    assert retired["last_published_index"] == old.tokens - 1 == old.error["last_published_index"]
    view = agent.view()
    assert view["version"] == receipt["to_version"] == old.error["current"] != version
    assert (view["pinned_blocks"], view["requests"]) == (0, [])
    assert view["receipts"][0]["error"] == error
    answer = agent.stack.complete("and now", agent.headers, max_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2  # the new version serves
    assert agent.version == receipt["to_version"]
    return error


# vLLM does not stream beams at all, so that pair cannot be asked for.
REFUSALS = [(w, s) for w in REFUSED for s in (False, True) if not (w == "beam search" and s)]


@pytest.mark.parametrize(("what", "stream"), REFUSALS)
def test_a_successor_that_the_engine_refuses(stack: Stack, what: str, stream: bool) -> None:
    """The receipt has vLLM's own error; the old version stays superseded, its pins are released."""
    change, plain = REFUSED[what]
    request = stack.body("hello") | change
    error = superseded_with(Agent.new(stack, "refused"), request, stream=stream)
    if plain:
        answer = stack.http.post(COMPLETIONS, json=request)
        assert answer.json()["error"] == error and answer.status_code == error["code"]
    else:
        assert (error["message"], error["code"]) == (BEAM, 400)


@pytest.mark.parametrize("what", MALFORMED)
def test_a_successor_that_is_no_openai_request(stack: Stack, what: str) -> None:
    """Its error names the place within the request."""
    request, message = MALFORMED[what]
    request = {"model": stack.model, "max_tokens": 4, **request}
    error = superseded_with(Agent.new(stack, "malformed"), request, stream=True)
    assert error["message"].startswith(message) and error["code"] == 400


def test_without_a_successor_the_prefix_stays_pinned(stack: Stack) -> None:
    """NEGATIVE CONTROL of "nothing is pinned" above: the same old stream, and no request."""
    agent = Agent.new(stack, "kept")
    old = agent.stream([7] * 64, max_tokens=3000).tokens_at_least(3)
    receipt = agent.supersede(agent.version)["receipt"]
    old.ended()
    assert receipt["error"] is None and receipt["pin"]["blocks"] >= 2
    assert agent.view()["pinned_blocks"] >= 2
    answer = stack.complete([7] * 64 + [9], agent.headers, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 65
    assert agent.view()["pinned_blocks"] == 0  # adopted


@pytest.mark.parametrize(
    "change",
    [{"prompt": [5] * 5000}, {"temperature": -1}, {"model": "nope"}, {"n": 0}],
    ids=["too long", "temperature", "model", "n"],
)
def test_a_tagged_call_is_refused_as_a_plain_one(stack: Stack, change: dict[str, Any]) -> None:
    """Status and body are vLLM's own, with the version beside them; the scope goes on."""
    agent = Agent.new(stack, "plain-error")
    flow = agent.stream("a plan", max_tokens=3000).tokens_at_least(1)
    request, version = stack.body("hello") | change, agent.version
    plain = stack.http.post(COMPLETIONS, json=request)
    tagged = stack.http.post(COMPLETIONS, json=request, headers=agent.headers)
    assert plain.status_code >= 400
    assert (tagged.status_code, tagged.json()) == (plain.status_code, plain.json())
    assert tagged.headers["x-retire-version"] == version and agent.version == version
    flow.tokens_at_least(flow.tokens + 1)
    flow.close()


def test_beam_search_with_a_scope_is_refused_with_the_reason(stack: Stack) -> None:
    """400 saying why; without a scope it is served."""
    request = stack.body("hello", use_beam_search=True, n=2, max_tokens=3)
    agent = Agent.new(stack, "beam")
    answer = stack.http.post(COMPLETIONS, json=request, headers=agent.headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, BEAM)
    chat = {k: v for k, v in request.items() if k != "prompt"}
    chat["messages"] = [{"role": "user", "content": "hello"}]
    answer = stack.http.post(CHAT, json=chat, headers=agent.headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, BEAM)
    assert stack.http.post(COMPLETIONS, json=request).status_code == 200


def test_a_forged_tag_is_worth_nothing(stack: Stack) -> None:
    """``vllm_xargs`` named like ours does not enter a scope, and does not leave one."""
    victim = Agent.new(stack, "victim")
    version = victim.opened()
    forged = {"vllm_xargs": {"retire": f"tenant=default scope={victim.scope}"}}
    request = stack.body("hello", max_tokens=400, stream=True) | forged
    plain = stack.http.post(COMPLETIONS, json=request | {"stream": False, "max_tokens": 3})
    assert plain.status_code == 200 and "x-retire-version" not in plain.headers
    other = Agent.new(stack, "forger")
    tagged = stack.http.post(
        COMPLETIONS, json=request | {"stream": False, "max_tokens": 3}, headers=other.headers
    )
    assert tagged.status_code == 200 and tagged.json()["choices"] == plain.json()["choices"]
    wired = {"tenant": "default", "scope": victim.scope, "term": 1, "epoch": 9, "gen": 1}
    request = stack.body("hello") | {"vllm_xargs": {"retire": wired}}
    assert stack.http.post(COMPLETIONS, json=request).status_code == 400  # vLLM takes no objects
    view = victim.view()
    assert (view["version"], view["requests"], len(view["receipts"])) == (version, [], 0)


def test_a_client_cannot_choose_the_cache_of_a_tenant(stack: Stack) -> None:
    """400 for a cache salt of ours; a scope's own salt is added to its tenant's."""
    request = stack.body("hello", cache_salt="retire:default:std")
    answer = stack.http.post(COMPLETIONS, json=request)
    message = 'cache_salt must not begin with "retire:"; choose another'
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    agent = Agent.new(stack, "salted")
    assert stack.http.post(COMPLETIONS, json=request, headers=agent.headers).status_code == 200

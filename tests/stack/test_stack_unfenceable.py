"""What cannot be fenced, on the real server: refused by name in a scope, served without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import websockets
from stack_forms import completion
from websockets.sync.client import connect

from bench.stack_streams import CHAT, COMPLETIONS, Agent

if TYPE_CHECKING:
    from bench.stack import Stack

TEXT = {"prompt": "a plan", "max_tokens": 2}
SAID = {"messages": [{"role": "user", "content": "a plan"}], "max_tokens": 2}
INPUT = {"input": "a plan", "max_output_tokens": 16}
PROMPT_LOGPROBS = "prompt_logprobs must be absent in a request with x-retire-scope"
BEAMS = "use_beam_search must be absent or false in a request with x-retire-scope"
KEPT = "in a request with x-retire-scope: its output is kept and read later"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (COMPLETIONS, TEXT | {"prompt_logprobs": 1}, PROMPT_LOGPROBS),
        (COMPLETIONS, TEXT | {"echo": True, "logprobs": 1}, PROMPT_LOGPROBS),
        (CHAT, SAID | {"prompt_logprobs": 1}, PROMPT_LOGPROBS),
        (COMPLETIONS, TEXT | {"use_beam_search": True, "n": 2}, BEAMS),
        (CHAT, SAID | {"use_beam_search": True, "n": 2}, BEAMS),
        (
            "/v1/responses",
            INPUT | {"background": True},
            f"background must be absent or false {KEPT}",
        ),
        ("/v1/responses", INPUT, f"store must be false {KEPT}"),
    ],
)
def test_it_is_refused_in_a_scope_and_served_without(
    forms: Stack, path: str, body: dict[str, Any], named: str
) -> None:
    """400 naming the field and the fix; the same call without a scope is vLLM's."""
    agent = Agent.new(forms, "unfenceable")
    body = {"model": forms.model, **body}
    answer = forms.http.post(path, json=body, headers=agent.headers)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]
    plain = forms.http.post(path, json=body)
    assert plain.status_code == 200, plain.text


def test_a_successor_cannot_ask_for_it_either(forms: Stack) -> None:
    """In the body of a SUPERSEDE: the old version is superseded, the receipt says why there is no
    successor."""
    agent = Agent.new(forms, "unfenceable")
    version = agent.opened()
    request = {"model": forms.model, **completion("x", max_tokens=1, prompt_logprobs=1).body}
    body = {"expected_version": version, "stream": False, "request": request}
    answer = agent.post("supersede", body).raise_for_status().json()
    assert answer["response"] is None
    assert PROMPT_LOGPROBS in answer["error"]["message"] == answer["receipt"]["error"]["message"]


def test_what_is_asked_for_later_is_not_there_for_a_scope(forms: Stack) -> None:
    """A kept answer can be read again without a scope; in one, nothing was kept."""
    agent = Agent.new(forms, "unfenceable")
    body = {"model": forms.model, **INPUT}
    kept = forms.http.post("/v1/responses", json=body).raise_for_status().json()
    assert forms.http.get(f"/v1/responses/{kept['id']}").status_code in (200, 404)  # any process
    told = forms.http.post("/v1/responses", json=body | {"store": False}, headers=agent.headers)
    assert told.status_code == 200 and told.headers["x-retire-version"] == agent.version
    for _ in range(6):  # either process
        assert forms.http.get(f"/v1/responses/{told.json()['id']}").status_code == 404


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/v1/score", "/rerank"])
def test_pooling_in_a_scope_is_refused_before_the_server_looks(forms: Stack, path: str) -> None:
    """400 from us; without the header this model's server knows no such path."""
    agent = Agent.new(forms, "unfenceable")
    body = {"model": forms.model, "input": "x"}
    answer = forms.http.post(path, json=body, headers=agent.headers)
    assert answer.status_code == 400 and answer.json()["error"]["field"] == "x-retire-scope"
    assert forms.http.post(path, json=body).status_code == 404


def test_a_websocket_in_a_scope_is_refused(forms: Stack) -> None:
    """400 with our JSON; without the header the handshake is vLLM's to answer."""
    url = f"{forms.url.replace('http', 'ws', 1)}/v1/realtime"
    statuses = []
    for headers in ({"x-retire-scope": "plan"}, {}):
        with (
            pytest.raises(websockets.InvalidStatus) as refused,
            connect(url, additional_headers=headers),
        ):
            pass
        statuses.append(refused.value.response.status_code)
        if headers:
            error = json.loads(refused.value.response.body)["error"]
            assert error["field"] == "x-retire-scope" and "use POST" in error["message"]
    assert statuses[0] == 400 != statuses[1]

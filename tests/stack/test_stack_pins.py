"""Pins and what vLLM can do to a whole engine: cache reset, pause, sleep; leases that end, are
renewed, are released. After each test nothing is pinned and every block has come back."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from stack_forms import Form, completion, text_of

from bench.stack_streams import Agent, Flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stack import Stack

_TOKENS = itertools.count(100)
TOKEN = 0  # of the running test's prompts: no other test has put them into the cache


def plan() -> list[int]:
    return [TOKEN] * 96


def revised() -> list[int]:
    return [TOKEN] * 80 + [9] * 20


@pytest.fixture
def agent(forms: Stack) -> Iterator[Agent]:
    """A scope of its own; the engine runs and is awake afterwards, whatever happened."""
    global TOKEN  # noqa: PLW0603  (one test at a time)
    TOKEN = next(_TOKENS)
    yield Agent.new(forms, "pins")
    for verb in ("wake_up", "resume"):
        forms.http.post(f"/{verb}")


def kept(agent: Agent, **contract: Any) -> dict[str, Any]:
    """Supersede a running plan without a successor; the receipt."""
    old = completion(plan()).flow(agent).tokens_at_least(4)
    body: dict[str, Any] = {"expected_version": agent.version}
    if contract:
        body["contract"] = contract
    receipt = agent.post("supersede", body).raise_for_status().json()["receipt"]
    assert old.ended(30).error is not None
    return receipt


def successor(agent: Agent, *, cold: bool = False) -> dict[str, Any]:
    """A call of the current version, to its end: a clean run's. The receipt that it completed;
    ``cold``: there was nothing left to complete it with."""
    form = completion(revised(), max_tokens=6, logprobs=1)
    body = {"model": agent.stack.model, **form.body}
    answer = agent.stack.http.post(form.path, json=body, headers=agent.headers).raise_for_status()
    same_as_clean(answer.json(), form, agent.stack)
    end_s = time.monotonic() + (1 if cold else 20)
    while not (receipt := agent.view()["receipts"][0])["stop_reason"]:
        if time.monotonic() >= end_s:
            break
        time.sleep(0.05)
    assert bool(receipt["stop_reason"]) is not cold, receipt
    return receipt


def same_as_clean(answer: dict[str, Any], form: Form, stack: Stack) -> None:
    clean = form.clean(stack)["choices"][0]
    found = answer["choices"][0]
    assert found["text"] == clean["text"]
    pairs = zip(found["logprobs"]["token_logprobs"], clean["logprobs"]["token_logprobs"],
                strict=True)  # fmt: skip
    assert max(abs(a - b) for a, b in pairs) < 1e-4


def quiet(flow: Flow, for_s: float = 1.0) -> bool:
    """No token comes for a while."""
    time.sleep(0.3)
    seen = flow.tokens
    time.sleep(for_s)
    return flow.tokens == seen


def test_a_successor_takes_what_was_kept(agent: Agent) -> None:
    """CONTROL of all below: undisturbed, the pin is there and is inherited."""
    receipt = kept(agent)
    assert receipt["pin"]["blocks"] >= 2 and agent.view()["pinned_blocks"] >= 2
    receipt = successor(agent)
    assert receipt["certified_tokens"] == 64
    assert agent.view()["pinned_blocks"] == 0


def test_a_cache_reset_gives_up_what_was_kept(agent: Agent) -> None:
    """``/reset_prefix_cache`` succeeds with pins present; the successor is cold and correct."""
    kept(agent)
    assert agent.stack.http.post("/reset_prefix_cache").status_code == 200
    assert agent.view()["pinned_blocks"] == 0
    assert successor(agent, cold=True)["certified_tokens"] == 0


@pytest.mark.parametrize("clear", [False, True], ids=["cache kept", "cache cleared"])
def test_a_paused_engine_supersedes_at_once_and_goes_on_later(agent: Agent, clear: bool) -> None:
    """``/pause?mode=keep``: no step runs; the old stream still ends now, the successor runs after
    ``/resume``, from its predecessor's blocks where the pause has left them."""
    old = completion(plan()).flow(agent).tokens_at_least(4)
    other = Agent.new(agent.stack, "frozen")
    bystander = completion([83] * 40, max_tokens=200).flow(other).tokens_at_least(2)
    how = {"mode": "keep", "clear_cache": str(clear)}
    assert agent.stack.http.post("/pause", params=how).status_code == 200
    assert quiet(old)
    retired = agent.post("supersede", {"expected_version": agent.version}).json()["receipt"]
    assert old.ended(30).error is not None
    assert retired["requests"][0]["last_published_index"] == old.tokens - 1
    assert (agent.view()["pinned_blocks"] > 0) is (retired["pin"] is not None) is not clear
    new = completion(revised(), max_tokens=6).flow(agent)
    assert quiet(new) and new.tokens == 0
    assert agent.stack.http.post("/resume").status_code == 200
    new.ended()
    clean = completion(revised(), max_tokens=6).clean(agent.stack)
    assert text_of(new) == clean["choices"][0]["text"]
    assert agent.view()["receipts"][0]["certified_tokens"] == (0 if clear else 64)
    assert bystander.ended().done and bystander.tokens == 200


def test_a_pause_that_aborts_leaves_nothing_pinned(agent: Agent) -> None:
    """``/pause?mode=abort``: requests end, the cache is cleared, the scope lives on."""
    kept(agent)
    running = completion(plan()).flow(agent).tokens_at_least(4)
    assert agent.stack.http.post("/pause", params={"mode": "abort"}).status_code == 200
    running.ended(30)
    assert running.error is None, "the engine's abort is no SUPERSEDE"
    assert agent.view()["pinned_blocks"] == 0 and agent.view()["requests"] == []
    assert agent.stack.http.post("/resume").status_code == 200
    body = {"model": agent.stack.model, **completion(revised(), max_tokens=6, logprobs=1).body}
    answer = agent.stack.http.post("/v1/completions", json=body, headers=agent.headers)
    same_as_clean(answer.json(), completion(revised(), max_tokens=6, logprobs=1), agent.stack)


@pytest.mark.parametrize("level", [0, 1])
def test_an_engine_that_sleeps_keeps_authority(agent: Agent, level: int) -> None:
    """Level 1 discards the cache, and with it what was kept (a CPU keeps its weights); level 0
    keeps both. The scope's version is untouched, and its successor is right either way."""
    kept(agent)
    version = agent.version
    assert agent.stack.http.post("/sleep", params={"level": level}).status_code == 200
    assert agent.stack.http.get("/is_sleeping").json()["is_sleeping"]
    assert agent.version == version
    assert (agent.view()["pinned_blocks"] > 0) is (level == 0)
    assert agent.stack.http.post("/wake_up").status_code == 200
    receipt = successor(agent, cold=level > 0)
    assert receipt["certified_tokens"] == (0 if level else 64)


def test_a_lease_ends_by_itself(agent: Agent) -> None:
    """The receipt says when; after it nothing is pinned, and the engine was idle all the time."""
    receipt = kept(agent, ttl_s=1.0)
    assert 0 < receipt["pin"]["expires_s"] <= 1.0
    end_s = time.monotonic() + 10
    while agent.view()["pinned_blocks"]:
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_a_lease_is_renewed_by_the_next_revision(agent: Agent) -> None:
    """A SUPERSEDE without a successor keeps what the one before it kept, for its own time."""
    first = kept(agent, ttl_s=2.0)
    body = {"expected_version": agent.version, "contract": {"ttl_s": 60}}
    second = agent.post("supersede", body).raise_for_status().json()["receipt"]
    assert second["pin"]["blocks"] == first["pin"]["blocks"] and second["pin"]["expires_s"] > 30
    time.sleep(3.0)
    assert agent.view()["pinned_blocks"] == first["pin"]["blocks"]
    receipt = successor(agent)
    assert receipt["certified_tokens"] == 64


def test_a_lease_is_released_by_a_cancel(agent: Agent) -> None:
    """Or by a contract that inherits nothing: at once, not when it would have ended."""
    kept(agent, ttl_s=600)
    assert agent.view()["pinned_blocks"] > 0
    body = {"expected_version": agent.version, "contract": {"inherit": "never"}}
    released = agent.post("supersede", body).raise_for_status().json()["receipt"]
    assert released["pin"] is None and agent.view()["pinned_blocks"] == 0
    again = Agent.new(agent.stack, "released")
    kept(again, ttl_s=600)
    assert again.view()["pinned_blocks"] > 0
    assert again.post("cancel", {"expected_version": again.version}).status_code == 200
    assert again.view()["pinned_blocks"] == 0

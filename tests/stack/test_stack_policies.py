"""Policies, tokens and warmed contexts on the real stack: one that authenticates its callers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from bench.stack import ENGINE_ARGS, Stack, StackSettings
from bench.stack_streams import CHAT, COMPLETIONS, Agent, Flow, streamed
from retire.cli.stack.layout import layout_of
from retire.client import Retire, Superseded
from retire.engine import turns
from retire.protocol.contract import Policy
from retire.protocol.errors import Forbidden, PolicyRefused, Unauthenticated, VersionConflict
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.client import NodeClient

if TYPE_CHECKING:
    from collections.abc import Iterator

RESPONSES = "/v1/responses"
OWN, OTHER = "token-of-default", "token-of-other"
TENANTS = {OWN: "default", OTHER: "other"}
PREFIX = [7 + at % 90 for at in range(320)]  # ten blocks of 32 tokens
WORDS = "one two three four five six seven eight nine ten "
LONG = 3000


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with two tenants' tokens; its own client calls as the first."""
    tokens = [
        {"sha256": hashlib.sha256(token.encode()).hexdigest(), "tenant": tenant, "name": tenant}
        for token, tenant in TENANTS.items()
    ]
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    path.write_text(json.dumps({"tokens": tokens}))
    settings = StackSettings(
        serve_args=("--auth", "static", "--tokens-file", str(path)),
        engine_args=(*ENGINE_ARGS, "--enable-prompt-tokens-details"),
        env={"RETIRE_LEASE_S": "20"},
    )
    with Stack(settings) as running:
        running.http.headers["authorization"] = f"Bearer {OWN}"
        yield running


@pytest.fixture
def agent(closed: Stack) -> Agent:
    """A scope of its own."""
    return Agent.new(closed, "policy")


def _headers(agent: Agent, policy: str | None = None) -> dict[str, str]:
    more = {} if policy is None else {"x-retire-on-new-input": policy}
    return {**agent.headers, "authorization": f"Bearer {OWN}", **more}


def _body(agent: Agent, path: str, tokens: int) -> dict[str, Any]:
    """The same work on each entry point."""
    fixed = {"model": agent.stack.model, "temperature": 0}
    if path == CHAT:
        messages = [{"role": "user", "content": WORDS * 6}]
        return fixed | {"messages": messages, "max_tokens": tokens, "ignore_eos": True}
    if path == RESPONSES:
        return fixed | {"input": WORDS * 6, "max_output_tokens": tokens}
    return agent.stack.body(PREFIX, max_tokens=tokens)


def _running(agent: Agent, policy: str | None = None) -> Flow:
    """A completion that runs until it is ended."""
    body = streamed(agent.stack.body(PREFIX, max_tokens=LONG))
    return Flow(agent.stack, body, _headers(agent, policy)).tokens_at_least(2)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_reject_on_every_entry_point(agent: Agent, path: str, stream: bool) -> None:
    """409 that counts what runs; what runs goes on."""
    running = _running(agent)
    body = {**_body(agent, path, 4), "stream": stream}
    answer = agent.stack.http.post(path, json=body, headers=_headers(agent, "reject"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "policy_refused")
    assert "1 running requests" in answer.json()["error"]["message"]
    running.tokens_at_least(running.tokens + 2)
    running.close()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_interrupt_on_every_entry_point(agent: Agent, path: str, stream: bool) -> None:
    """The old stream ends superseded, the new one is its successor, the receipt is there."""
    running = _running(agent)
    body = {**_body(agent, path, 6), "stream": stream}
    answer = agent.stack.http.post(path, json=body, headers=_headers(agent, "interrupt"))
    assert (answer.status_code, answer.headers["x-retire-version"]) == (200, "1.1"), answer.text
    assert '"error":{' not in answer.text
    running.ended()
    assert running.error is not None and running.error["code"] == "superseded"
    view = agent.view()
    (receipt,) = view["receipts"]
    assert (view["version"], receipt["from_version"], receipt["to_version"]) == (
        "1.1",
        "1.0",
        "1.1",
    )
    assert receipt["successor_request_id"] and receipt["error"] is None
    assert all(gate["outcome"] == "acked" for gate in receipt["gates"])
    if path == COMPLETIONS:  # the same context: its KV was inherited
        assert receipt["certified_tokens"] >= len(PREFIX) - 32


def test_rollback_inherits_nothing(agent: Agent) -> None:
    """The same context, as if the abandoned work had never run; and the same text."""
    running = _running(agent)
    body = agent.stack.body(PREFIX, max_tokens=8)
    answer = agent.stack.http.post(COMPLETIONS, json=body, headers=_headers(agent, "rollback"))
    assert answer.headers["x-retire-version"] == "1.1"
    running.ended()
    (receipt,) = agent.view()["receipts"]
    assert (receipt["certified_tokens"], receipt["stop_reason"]) == (0, "contract")
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = agent.stack.complete(PREFIX, _headers(agent), max_tokens=8)
    assert again["choices"][0]["text"] == answer.json()["choices"][0]["text"]


def _in_line(stack: Stack) -> int:
    """Inputs that wait, of every scope, as the API processes count them."""
    mailbox = layout_of(stack.dir / "state", os.environ).mailbox
    (file,) = mailbox.parent.glob(f"{mailbox.name}.turns-*")
    return sum(array("Q", file.read_bytes())[turns.WAITING :: turns.WORDS])


def test_enqueue_runs_them_in_order(agent: Agent) -> None:
    """One after the other, each under the current version; a SUPERSEDE goes past the line."""
    running = _running(agent, "enqueue")
    order: list[int] = []

    def ask(number: int) -> None:
        agent.stack.complete(PREFIX, _headers(agent, "enqueue"), max_tokens=24)
        order.append(number)

    waiting = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for number, thread in enumerate(waiting, 1):
        thread.start()
        while _in_line(agent.stack) < number:
            time.sleep(0.01)
    assert order == []
    answer = agent.post("supersede", {"expected_version": "1.0"})
    assert answer.status_code == 200, answer.text
    running.ended()
    for thread in waiting:
        thread.join(60)
    assert order == [0, 1, 2]
    assert agent.view()["version"] == "1.1"


def test_a_paused_scope_lets_input_wait(agent: Agent) -> None:
    """Until it is resumed."""
    version = _opened(agent)
    assert agent.post("pause", {"expected_version": version}).status_code == 200
    waiting = threading.Thread(
        target=lambda: agent.stack.complete("go on", _headers(agent), max_tokens=1)
    )
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and agent.view()["requests"] == []
    assert agent.post("resume", {"expected_version": version}).status_code == 200
    waiting.join(60)
    assert not waiting.is_alive()


def test_the_typed_client_under_a_policy(agent: Agent) -> None:
    """A handle that interrupts; the other stream ends as a client's streams do."""
    with Retire(agent.stack.url, token=OWN) as retire:
        first = retire.scope(agent.scope)
        stream = first.complete(WORDS, model=agent.stack.model, max_tokens=LONG, ignore_eos=True)
        next(stream)
        with pytest.raises(PolicyRefused, match="1 running requests"):
            retire.scope(agent.scope, on_new_input=Policy.REJECT).complete("x", stream=False)
        other = retire.scope(agent.scope, on_new_input=Policy.INTERRUPT)
        reply = other.complete(WORDS, model=agent.stack.model, max_tokens=4, stream=False)
        assert reply.version == Version(1, 1)
        with pytest.raises(Superseded):
            list(stream)


def test_the_token_names_the_tenant(agent: Agent) -> None:
    """Without one nothing is answered; another tenant's scope is not there, on every route."""
    version = _opened(agent)
    url = agent.stack.url
    with Retire(url, token="nobodys") as nobody, pytest.raises(Unauthenticated):
        nobody.scopes()
    with Retire(url, token=OTHER, tenant="default") as liar, pytest.raises(Forbidden):
        liar.scopes()
    stranger = {"authorization": f"Bearer {OTHER}", "x-retire-tenant": "other"}
    http = agent.stack.http
    for verb in ("supersede", "cancel", "pause", "resume"):
        known, unknown = (
            http.post(
                f"/v1/scopes/{scope}/{verb}", json={"expected_version": version}, headers=stranger
            )
            for scope in (agent.scope, "never-opened")
        )
        assert (known.status_code, unknown.status_code) == (404, 404)
        assert known.json()["error"]["code"] == unknown.json()["error"]["code"]
    assert http.get(f"/v1/scopes/{agent.scope}", headers=stranger).status_code == 404
    assert http.get("/v1/scopes", headers=stranger).json() == {"scopes": []}
    assert agent.view()["version"] == version
    untagged = http.post(COMPLETIONS, json=agent.stack.body("hi", max_tokens=1))
    assert untagged.status_code == 200
    for name in ("token-of-default", "token-of-other", "nobodys"):
        assert not [line for line in agent.stack.log() if name in line]


def test_a_warmed_context_is_found_by_its_successor(agent: Agent) -> None:
    """The successor computes its own suffix only; another context finds what is common."""
    running = _running(agent)
    assert agent.post("supersede", {"expected_version": "1.0"}).status_code == 200
    running.ended()
    context = PREFIX[:160] + [3 + at % 50 for at in range(160)]
    prompt, cached = _warm(agent, "1.1", context)
    assert prompt == 320 and 128 <= cached <= 160  # the predecessor's part was inherited
    usage = agent.stack.complete([*context, 5, 6, 7], _headers(agent), max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 320
    other = [*context[:64], *([9] * 200)]
    usage = agent.stack.complete(other, _headers(agent), max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 64  # NEGATIVE CONTROL


def test_a_context_of_an_abandoned_version_is_not_computed(agent: Agent) -> None:
    """Refused before, and ended while it runs."""
    version = _opened(agent)
    with pytest.raises(VersionConflict):
        _warm(agent, "1.7", PREFIX)
    long = [11 + at % 80 for at in range(3900)]
    failed: list[BaseException] = []

    def warm() -> None:
        try:
            _warm(agent, version, long)
        except VersionConflict as error:
            failed.append(error)

    warming = threading.Thread(target=warm)
    warming.start()
    _until_request(agent)
    assert agent.post("supersede", {"expected_version": version}).status_code == 200
    warming.join(60)
    assert len(failed) == 1 and agent.view()["requests"] == []


def test_a_seed_in_a_chunked_prefill_leaves_the_engine_alive(agent: Agent) -> None:
    """vLLM alone dies of it on a CPU; the same seed gives the same text, chunked or not."""
    sampling = {"seed": 11, "temperature": 1.0, "max_tokens": 8}
    texts = [
        agent.stack.complete(PREFIX, headers, **sampling)["choices"][0]["text"]
        for headers in (_headers(agent), {})
    ]
    assert texts[0] == texts[1]
    other = agent.stack.complete(PREFIX, {}, **{**sampling, "seed": 12})
    assert other["choices"][0]["text"] != texts[0]  # NEGATIVE CONTROL


def _opened(agent: Agent) -> str:
    agent.stack.complete("open", _headers(agent), max_tokens=1)
    return agent.version


def _until_request(agent: Agent) -> None:
    for _ in range(600):
        if agent.view()["requests"]:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the context never reached the engine")


def _warm(agent: Agent, version: str, context: list[int]) -> tuple[int, int]:
    """Warm over the sidecar's socket, as the operator's call arrives at its node."""
    socket = layout_of(agent.stack.dir / "state", os.environ).sidecar_socket
    body = json.dumps({"model": agent.stack.model, "prompt": context}).encode()

    async def ask() -> tuple[int, int]:
        async with NodeClient(f"unix:{socket}") as node:
            key = ScopeKey(agent.tenant, agent.scope)
            done = await node.warm(key, Version.parse(version), body)
            return done.prompt_tokens, done.cached_tokens

    return asyncio.run(ask())

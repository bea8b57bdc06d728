"""RETIRE_AUTH: whose a call is comes from its bearer token, on every tagged call and route."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_api_model import Process, process_at
from engine_api_world import until

from retire.engine import authentication
from retire.engine.authentication import Authenticator
from retire.engine.settings import Settings
from retire.protocol.errors import InvalidField, Unauthenticated, Unavailable
from retire.protocol.versions import ScopeKey
from retire.sidecar.config import Auth
from retire.sidecar.pb import node_pb2 as pb

ACME, GLOBEX = "acme-secret-token", "globex-secret-token"
ROUTES = (
    ("GET", "/v1/scopes"),
    ("GET", "/v1/scopes/plan"),
    ("POST", "/v1/scopes/plan/supersede"),
    ("POST", "/v1/scopes/plan/cancel"),
    ("POST", "/v1/scopes/plan/pause"),
    ("POST", "/v1/scopes/plan/resume"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),  # tagged, so it is a scope's call like any other
)


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """One API process that asks for tokens; two tenants have one each."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path, {"auth": Auth.STATIC}) as made:
        made.sidecar.tokens = {ACME: "acme", GLOBEX: "globex"}
        yield made


def _bearer(token: str, **more: str) -> dict[str, str]:
    return {"x-retire-scope": "plan", "authorization": f"Bearer {token}"} | more


async def _send(process: Process, method: str, path: str, headers: dict[str, str]) -> Any:
    body = {"name": "x"} if "completions" in path else {"expected_version": "1.0"}
    sent = None if method == "GET" else body
    return await process.http.request(method, path, json=sent, headers=headers)


async def _opened(process: Process, token: str, name: str) -> None:
    """A scope of the token's tenant, by a call that ran."""
    asked = {"json": {"name": name}, "headers": _bearer(token)}
    answer = asyncio.create_task(process.http.post("/v1/completions", **asked))
    await process.model.finish(name)
    assert (await answer).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-retire-scope": "plan"},
        {"x-retire-scope": "plan", "authorization": "Basic YTpi"},
        {"x-retire-scope": "plan", "authorization": "Bearer"},
        {"x-retire-scope": "plan", "authorization": "Bearer somebody-elses"},
        {"x-retire-scope": "plan", "x-retire-token": "somebody-elses"},
        {"x-retire-scope": "plan", "authorization": f"Bearer {'x' * 20000}"},
    ],
)
async def test_without_a_known_token_nothing_is_answered(
    process: Process, headers: dict[str, str]
) -> None:
    """401 with a challenge on every route; nothing ran, and no scope was opened."""
    for method, path in ROUTES:
        answer = await _send(process, method, path, headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "somebody" not in answer.text and "xxxx" not in answer.text
    assert (process.model.order, process.sidecar.scopes) == ([], {})


async def test_the_tokens_tenant_is_the_calls(process: Process) -> None:
    """The same name is two scopes for two tenants."""
    await _opened(process, ACME, "a")
    await _opened(process, GLOBEX, "b")
    assert set(process.sidecar.scopes) == {
        ScopeKey("acme", "plan"), ScopeKey("globex", "plan"),
    }  # fmt: skip
    listed = await process.http.get("/v1/scopes", headers={"authorization": f"bearer {ACME}"})
    assert [scope["tenant"] for scope in listed.json()["scopes"]] == ["acme"]


async def test_the_tenant_header_may_only_repeat_the_token(process: Process) -> None:
    """Another one is 403 naming the header, on calls and routes; the same one is accepted."""
    for method, path in ROUTES[:8]:
        headers = _bearer(ACME, **{"x-retire-tenant": "globex"})
        answer = await _send(process, method, path, headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path
        assert answer.json()["error"]["message"].startswith("x-retire-tenant must be absent or")
    assert process.sidecar.scopes == {}
    same = {"authorization": f"Bearer {ACME}", "x-retire-tenant": "acme"}
    assert (await process.http.get("/v1/scopes", headers=same)).status_code == 200


@pytest.mark.parametrize(("method", "path"), ROUTES[1:4])
async def test_a_scope_of_another_tenant_is_like_one_that_is_not_there(
    process: Process, method: str, path: str
) -> None:
    """The same status and the same words; to its owner it is there."""
    headers = {"authorization": f"Bearer {GLOBEX}"}
    before = await _send(process, method, path, headers)
    await _opened(process, ACME, "a")
    after = await _send(process, method, path, headers)
    assert (before.status_code, after.status_code) == (404, 404)
    assert before.json() == after.json()
    owner = {"authorization": f"Bearer {ACME}"}
    assert (await process.http.get("/v1/scopes/plan", headers=owner)).status_code == 200


async def test_untagged_calls_are_plain_vllm(process: Process) -> None:
    """No token is asked for, and none is looked at."""
    answer = asyncio.create_task(process.http.post("/plain", json={"refuse": True}))
    assert (await answer).status_code == 400  # the model's own answer
    assert process.sidecar.asked == []


async def test_beside_vllms_own_key_the_token_has_a_header_of_its_own(process: Process) -> None:
    """x-retire-token goes before Authorization, which then carries vLLM's key."""
    headers = {"authorization": "Bearer vllm-key", "x-retire-token": ACME}
    assert (await process.http.get("/v1/scopes", headers=headers)).status_code == 200
    assert process.sidecar.asked == [ACME]


async def test_an_answer_is_remembered_for_as_long_as_it_holds(process: Process) -> None:
    """One question a token; with cache_s 0 each call asks."""
    for _ in range(5):
        await process.http.get("/v1/scopes", headers=_bearer(ACME))
    assert process.sidecar.asked == [ACME]
    process.sidecar.cache_s = 0.0
    for _ in range(3):
        await process.http.get("/v1/scopes", headers=_bearer(GLOBEX))
    assert process.sidecar.asked == [ACME, GLOBEX, GLOBEX, GLOBEX]


async def test_calls_that_come_at_once_ask_once(process: Process) -> None:
    """However many carry the token."""
    go = process.sidecar.hold("authenticate")
    calls = [
        asyncio.create_task(process.http.get("/v1/scopes", headers=_bearer(ACME)))
        for _ in range(10)
    ]
    await until(lambda: bool(process.sidecar.asked), 30)
    go.set()
    assert [(await call).status_code for call in calls] == [200] * 10
    assert process.sidecar.asked == [ACME]


async def test_a_sidecar_that_is_away_is_no_permission(process: Process) -> None:
    """503 with Retry-After; never let in, never called wrong."""
    await process.sidecar.stop()
    answer = await process.http.get("/v1/scopes", headers=_bearer(ACME))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_a_sidecar_that_hangs_is_no_permission() -> None:
    """The question has a deadline."""

    async def silent(token: str) -> pb.AuthenticateReply:
        await asyncio.Event().wait()
        raise AssertionError(token)

    asking = Authenticator(silent, answer_s=0.05)
    with pytest.raises(Unavailable, match="did not say within 0.05 s"):
        await asking.tenant([(b"authorization", b"Bearer t")])


@pytest.mark.parametrize("reply", [pb.AuthenticateReply(), pb.AuthenticateReply(cache_s=60)])
async def test_an_answer_without_a_tenant_is_no_permission(reply: pb.AuthenticateReply) -> None:
    """An empty tenant is nobody's."""

    async def nobody(token: str) -> pb.AuthenticateReply:
        return reply

    with pytest.raises(Unavailable):
        await Authenticator(nobody).tenant([(b"authorization", b"Bearer t")])


async def test_a_token_that_was_taken_back_is_refused_when_the_answer_is_old() -> None:
    """Not before: that is what cache_s says. A refusal is not remembered."""
    now, tenants = [0.0], {"t": "acme"}

    async def ask(token: str) -> pb.AuthenticateReply:
        if token not in tenants:
            raise Unauthenticated("unknown")
        return pb.AuthenticateReply(tenant=tenants[token], cache_s=10)

    asking = Authenticator(ask, clock=lambda: now[0])
    headers = [(b"authorization", b"Bearer t")]
    assert await asking.tenant(headers) == "acme"
    tenants.clear()
    now[0] = 9.9
    assert await asking.tenant(headers) == "acme"
    now[0] = 10.1
    with pytest.raises(Unauthenticated):
        await asking.tenant(headers)
    tenants["t"] = "globex"
    assert await asking.tenant(headers) == "globex"


async def test_the_memory_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten; no answer holds longer than the bound."""
    asked: list[str] = []

    async def ask(token: str) -> pb.AuthenticateReply:
        asked.append(token)
        return pb.AuthenticateReply(tenant="acme", cache_s=1e9)

    monkeypatch.setattr(authentication, "KNOWN_MAX", 3)
    now = [0.0]
    asking = Authenticator(ask, clock=lambda: now[0])
    for token in "abcdbcda":
        await asking.tenant([(b"authorization", b"Bearer " + token.encode())])
    assert asked == ["a", "b", "c", "d", "a"]
    now[0] = authentication.CACHE_MAX_S + 1
    await asking.tenant([(b"authorization", b"Bearer d")])
    assert asked[-1] == "d"


async def test_no_token_is_in_any_log_or_answer(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is known or not, also when the sidecar fails."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    for token in (ACME, "unknown-secret-token"):
        answer = await process.http.get("/v1/scopes", headers=_bearer(token))
        texts.append(answer.text + str(answer.headers))
    process.sidecar.refuse = Unavailable("no API server")
    answer = await process.http.get("/v1/scopes", headers=_bearer("third-secret-token"))
    texts.append(answer.text)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("retire")]
    assert "secret" not in "\n".join(texts + ours)


def test_settings_refuse_what_cannot_be_meant() -> None:
    """A word that is none, and a header that would choose among tenants."""
    with pytest.raises(InvalidField, match="RETIRE_AUTH must be one of none, static, tokenreview"):
        Settings.from_env({"RETIRE_AUTH": "token"})
    with pytest.raises(InvalidField, match="RETIRE_TENANT_HEADER must be 0 with RETIRE_AUTH"):
        Settings.from_env({"RETIRE_AUTH": "static", "RETIRE_TENANT_HEADER": "1"})
    assert Settings.from_env({"RETIRE_AUTH": "tokenreview"}).auth is Auth.TOKENREVIEW
    assert Settings.from_env({}).auth is Auth.NONE


async def test_without_retire_auth_tokens_mean_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: the same calls pass, and the header names the tenant."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path) as process:
        headers = {"authorization": "Bearer whatever", "x-retire-tenant": "globex"}
        answer: httpx.Response = await process.http.get("/v1/scopes", headers=headers)
        assert answer.status_code == 200
        assert process.sidecar.asked == []

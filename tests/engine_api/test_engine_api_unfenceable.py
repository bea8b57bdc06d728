"""What cannot be fenced is refused by name; the same call without a scope is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from engine_api_model import KEY, Process, process_at
from engine_api_world import Node, listening

from retire.engine.asgi import PublicationGuard
from retire.engine.publication import CURRENT
from retire.engine.settings import Settings

SCOPED = {"x-retire-scope": KEY.scope}
LATER = "in a request with x-retire-scope: its output is kept and read later, by calls that no"


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """One API process, whose vLLM keeps answers of /v1/responses."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path, {"responses_store": True, "scope_from_session": True}) as made:
        yield made


async def post(process: Process, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    """One call; what reaches the model is answered at once."""
    raw = body if isinstance(body, bytes) else json.dumps({"name": "r", **body}).encode()
    sent = asyncio.create_task(process.http.post(path, content=raw, headers=headers))
    while not sent.done():
        if "r" in process.model.runs:
            process.model.runs["r"].go.set()
        await asyncio.sleep(0.01)
    answer = sent.result()
    return answer.status_code, answer.json() if answer.content else None


POOLING = (
    "/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank",
    "/v1/rerank", "/v2/rerank",
)  # fmt: skip


class Vectors:
    """A pooling endpoint of vLLM, which knows nothing of scopes."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        publication = CURRENT.get()
        tagged = publication is not None and publication.tag is not None
        body = json.dumps({"tagged": tagged}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("path", POOLING)
async def test_a_pooling_call_that_names_a_scope_is_refused(
    process: Process, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """400 naming the header and why; without it, or with a session's id alone, it is served."""
    monkeypatch.setattr(type(process.model), "__call__", Vectors.__call__)
    status, body = await post(process, path, {}, SCOPED)
    assert status == 400 and body["error"]["field"] == "x-retire-scope"
    assert (
        f"x-retire-scope must be absent for {path}: it makes no tokens" in body["error"]["message"]
    )
    assert await post(process, path, {}, {}) == (200, {"tagged": False})
    assert await post(process, path, {}, {"session-id": "s"}) == (200, {"tagged": False})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"background": True, "store": False}, f"background must be absent or false {LATER}"),
        ({"background": True}, f"background must be absent or false {LATER}"),
        ({"background": "yes"}, f"background must be absent or false {LATER}"),
        ({}, f"store must be false {LATER}"),
        ({"store": True}, f"store must be false {LATER}"),
        ({"store": None}, f"store must be false {LATER}"),
    ],
)
@pytest.mark.parametrize("headers", [SCOPED, {"session-id": "s"}], ids=["scope", "session"])
async def test_a_response_that_outlives_its_call_is_refused(
    process: Process, body: dict[str, Any], message: str, headers: dict[str, str]
) -> None:
    """400 naming the field; nothing reaches the model."""
    status, answer = await post(process, "/v1/responses", body, headers)
    assert status == 400 and answer["error"]["message"].startswith(message)
    assert answer["error"]["field"] == message.split(maxsplit=1)[0]
    assert process.model.order == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"store": False}, SCOPED),
        ({"store": False, "background": False}, SCOPED),
        (b'{"name": "r", "store": false}', SCOPED),
    ],
)
async def test_a_response_that_does_not_is_served(
    process: Process, body: Any, headers: dict[str, str]
) -> None:
    """NEGATIVE CONTROL: under its scope."""
    status, answer = await post(process, "/v1/responses/", body, headers)
    assert (status, answer) == (200, {"name": "r"})
    assert process.model.runs["r"].version == "1.0"


async def test_other_paths_may_name_a_field_of_that_name(process: Process) -> None:
    """NEGATIVE CONTROL: ``store`` is a field of chat calls too, and keeps nothing in vLLM."""
    body = {"store": True, "background": True}
    assert (await post(process, "/v1/chat/completions", body, SCOPED))[0] == 200


async def test_a_server_that_keeps_nothing_takes_any_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``store`` is true by default in every OpenAI client; vLLM ignores it unless told to keep."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path) as process:
        assert (await post(process, "/v1/responses", {"store": True}, SCOPED))[0] == 200
        status, answer = await post(process, "/v1/responses", {"background": True}, SCOPED)
        assert status == 400 and answer["error"]["field"] == "background"


def test_the_store_is_vllms_own_switch() -> None:
    """Read as vLLM reads it."""
    for value, keeps in (("1", True), ("0", False), ("", False)):
        env = {"VLLM_ENABLE_RESPONSES_API_STORE": value}
        assert Settings.from_env(env).responses_store is keeps
    assert Settings.from_env({}).responses_store is False


class Echo:
    """A WebSocket application: accepts and says one thing."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "a token"})
        await send({"type": "websocket.close", "code": 1000})


@pytest.mark.parametrize("header", ["x-retire-scope", "x-retire-version", "session-id"])
async def test_a_websocket_of_a_scope_is_refused(node: Node, header: str) -> None:
    """The handshake answers 400 with our JSON; without the header it is served."""
    names = frozenset((b"x-retire-scope", b"x-retire-version", b"session-id"))
    guard = PublicationGuard(Echo(), lambda: node.publications, names)
    async with listening(guard) as port:
        url = f"ws://127.0.0.1:{port}/v1/realtime"
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with websockets.connect(url, additional_headers={header: "plan"}):
                pass
        assert refused.value.response.status_code == 400
        error = json.loads(refused.value.response.body)["error"]
        assert (error["code"], error["field"]) == ("invalid_field", "x-retire-scope")
        assert "absent for /v1/realtime: only answers over HTTP are gated" in error["message"]
        async with websockets.connect(url) as plain:
            assert await plain.recv() == "a token"


async def test_a_server_that_cannot_say_why_closes_the_handshake(node: Node) -> None:
    """Without the ASGI extension for it: refused all the same, before it was accepted."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    names = frozenset((b"x-retire-scope",))
    guard = PublicationGuard(Echo(), lambda: node.publications, names)
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [(b"x-retire-scope", b"p")]}
    await guard(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "invalid_field"}]

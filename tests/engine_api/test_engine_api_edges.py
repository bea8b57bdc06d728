"""Edges of the guard and of admission: no sidecar, receipts, cut answers, the recorded history."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from engine_api_world import (
    KEY,
    V1,
    Node,
    SlowReader,
    StreamingApp,
    events,
    serving,
    stalled,
    until,
)

from retire.engine.admission import Admission
from retire.engine.asgi import PublicationGuard
from retire.engine.deliveries import CompletedRequests, Deliveries
from retire.engine.inputs import Inputs
from retire.engine.publication import CURRENT
from retire.engine.settings import Settings
from retire.protocol.errors import ScopeClosed, VersionConflict
from retire.telemetry.tracing import OFF

SCOPED = {"x-retire-scope": "plan"}


async def _get(app: Any, headers: dict[str, str]) -> tuple[int, Any]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        answer = await client.post("/v1/completions", headers=headers)
    return answer.status_code, answer.json() if answer.content else None


async def _plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_a_scope_is_never_served_as_if_it_were_plain() -> None:
    """Without a sidecar nothing is gated: a tagged call is refused, an untagged one served."""
    guard = PublicationGuard(_plain, lambda: None, frozenset((b"x-retire-scope",)))
    status, body = await _get(guard, SCOPED)
    assert (status, body["error"]["code"]) == (503, "unavailable")
    assert "RETIRE_SIDECAR" in body["error"]["message"]
    assert (await _get(guard, {}))[0] == 200


class _Link:
    """Stands where the link stands; admission fails as told."""

    def __init__(self, node: Node, error: Exception | None) -> None:
        self.node, self.error = node, error
        self.admissions = self
        self.tracer = OFF
        self.inputs = Inputs(self, self.mailbox, wait_s=1.0, spawn=node.publications.spawn)

    def policy(self, key: Any) -> None:
        return None

    async def admit(self, claim: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.node.tag(key=claim.key)

    def mailbox(self) -> Any:
        return self.node.view


@pytest.mark.parametrize(
    ("error", "headers", "status", "code"),
    [
        (None, SCOPED, 200, None),
        (None, {"x-retire-scope": ""}, 400, "invalid_field"),
        (None, {"x-retire-version": "1.4"}, 400, "invalid_field"),
        (VersionConflict(KEY, expected=V1, current=V1), SCOPED, 409, "version_conflict"),
        (ScopeClosed(KEY, V1), SCOPED, 409, "scope_cancelled"),
    ],
)
async def test_admission_answers_for_the_application(
    node: Node, error: Exception | None, headers: dict[str, str], status: int, code: str | None
) -> None:
    """A refused call never reaches the application; an admitted one is bound."""
    reached: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        publication = CURRENT.get()
        reached.append(publication.tag if publication is not None else None)
        await _plain(scope, receive, send)

    link: Any = _Link(node, error)
    inner = Admission(app, Settings(), lambda: link, lambda: False)
    names = frozenset((b"x-retire-scope", b"x-retire-version"))
    guard = PublicationGuard(inner, lambda: node.publications, names)
    answered, body = await _get(guard, headers)
    assert answered == status
    assert [tag.version for tag in reached] == ([V1] if status == 200 else [])
    assert code is None or body["error"]["code"] == code


class ReceiptApp(StreamingApp):
    """A SUPERSEDE's stream: its receipt, then frames."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        publication = CURRENT.get()
        assert publication is not None
        publication.preamble.clear()
        publication.bind(self.node.tag(), self.node.view)
        self.publication = publication
        await self.finished.wait()  # the test retires the version meanwhile
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        body = b'event: retire.receipt\ndata: {"to_version":"1.4"}\n\n'
        await send({"type": "http.response.body", "body": body, "more_body": True})
        publication.preamble.set()
        await send({"type": "http.response.body", "body": b'data: {"n": 0}\n\n'})


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_receipt_is_said_even_when_its_version_is_retired_already(
    node: Node, http: str
) -> None:
    """C8: every SUPERSEDE answers with a receipt; then the terminal event, and no token."""
    app = ReceiptApp(node, frames=0)
    async with serving(node, app, http) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/scopes/plan/supersede"
        reading = asyncio.create_task(client.post(url))
        await until(lambda: app.publication is not None)
        node.advance()
        node.switch()
        await asyncio.sleep(0.1)
        assert not reading.done()
        app.finished.set()
        lines = [line for line in (await reading).text.split("\n\n") if line]
    assert lines[0].startswith("event: retire.receipt")
    assert json.loads(lines[1][6:])["error"]["code"] == "superseded"
    assert len(lines) == 2


class CutApp:
    """A whole answer whose head fills the socket of a client that does not read."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.body_sent = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        publication = CURRENT.get()
        assert publication is not None
        publication.bind(self.node.tag(), self.node.view)
        head = [(b"content-type", b"application/json"), (b"content-length", b"10")]
        head += [(b"x-pad", b"p" * 2**16)] * 256  # 16 MiB: more than any socket buffer
        await send({"type": "http.response.start", "status": 200, "headers": head})
        sending = asyncio.create_task(
            send({"type": "http.response.body", "body": b'{"old": 1}'})  # type: ignore[arg-type]
        )
        await asyncio.sleep(0.2)
        self.body_sent.set()
        await sending


async def test_an_answer_cut_between_head_and_body_breaks_the_connection(node: Node) -> None:
    """Neither the old body nor a 200 that looks whole: the connection is reset."""
    app = CutApp(node)
    async with serving(node, app) as port:
        reader = SlowReader(port)
        await reader.request()
        await app.body_sent.wait()
        node.advance()
        node.switch()
        received = await reader.read_to_end()
        reader.close()
    assert b"old" not in received


async def test_an_application_that_fails_after_its_end_does_not_cut_the_terminal_event(
    node: Node,
) -> None:
    """vLLM may stumble over an empty final output; the client still gets one clean end."""

    class Failing(StreamingApp):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            raise RuntimeError("no output to convert")

    app = Failing(node, frames=50, pause_s=0.002)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await until(lambda: app.handed > 5)
        node.advance()
        answer = await reading
    assert "superseded" in answer.text


async def test_a_client_that_leaves_while_paused_frees_everything(node: Node) -> None:
    """A disconnect ends the guard's waits; nothing of the scope stays live."""
    app = StreamingApp(node, frames=1000, size=64 * 1024)
    async with serving(node, app) as port:
        reader = SlowReader(port)
        await reader.request()
        await stalled(app)
        node.advance()
        node.switch()
        reader.close()
        await until(lambda: not node.publications.scopes())


async def test_the_history_records_what_went_out_and_nothing_after_the_switch(node: Node) -> None:
    """One record a token frame, in order, each before the version was retired."""
    seen: list[tuple[str, str, int]] = []
    node.publications.record = lambda tag, name, index: seen.append((str(tag.version), name, index))

    class Counting(StreamingApp):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            publication = CURRENT.get()
            assert publication is not None
            deliveries = Deliveries("r")
            publication.consumers.append(
                type(
                    "C",
                    (),
                    {
                        "request_id": "r",
                        "deliveries": deliveries,
                        "wake": _nothing,
                        "prompt_tokens": 3,
                        "place": 0,
                    },
                )()
            )

            async def counting(message: Any) -> None:
                if b'"n"' in message.get("body", b""):
                    deliveries.take(0, 1, delta=True)
                await send(message)

            await super().__call__(scope, receive, counting)

    app = Counting(node, frames=10_000, pause_s=0.002)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await until(lambda: app.handed > 5)
        node.advance()
        node.switch()
        recorded = len(seen)
        received = (await reading).text.count('"n"')
    assert seen == [("1.4", "r", index) for index in range(received)]
    assert recorded == len(seen)


def _nothing(self: object) -> None:
    del self


def test_completed_requests_are_told_once_and_bounded() -> None:
    """The receipt that retires a version names its last requests, not those of older versions."""
    completed = CompletedRequests()
    completed.add(KEY, V1, {"old": 1})
    newer = V1.next_epoch()
    for number in range(40):
        completed.add(KEY, newer, {f"r{number}": number})
    completed.add(KEY, V1, {"late": 1})
    assert completed.take(KEY, below=newer) == {}
    told = completed.take(KEY, below=newer.next_epoch())
    assert list(told) == [f"r{number}" for number in range(24, 40)]
    assert completed.take(KEY, below=newer.next_epoch()) == {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(120)
def test_a_server_whose_endpoint_plugin_is_missing_does_not_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM only logs a plugin that failed; ungated scopes would be the result."""
    from vllm import plugins

    from retire.engine.seams import endpoint

    monkeypatch.setattr(plugins, "load_endpoint_plugins", lambda tasks=None: [])
    endpoint.install()
    with pytest.raises(SystemExit, match="retire_api"):
        plugins.load_endpoint_plugins(("generate",))
    assert plugins.load_endpoint_plugins(("embed",)) == []
    loaded = [type("P", (), {"name": "retire_api"})()]
    monkeypatch.setattr(plugins, "load_endpoint_plugins", lambda tasks=None: loaded)
    endpoint.install()
    assert plugins.load_endpoint_plugins(("generate",)) == loaded


def test_a_paused_stream_is_not_mistaken_for_a_late_one() -> None:
    """Events of the helper: a control that the chunk decoder of these tests loses nothing."""
    body = b'data: {"n": 1}\n\n'
    raw = b"HTTP/1.1 200 OK\r\n\r\n" + b"%x\r\n%s\r\n" % (len(body), body) * 2 + b"0\r\n\r\n"
    assert events(raw) == [{"n": 1}, {"n": 1}]

"""G6: what reaches the transport around a switch. Real uvicorn, real sockets, a real mailbox."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import uvloop
from engine_api_world import (
    KEY,
    V2,
    Node,
    SlowReader,
    StreamingApp,
    events,
    serving,
    stalled,
    until,
)

from retire.engine.asgi import GuardedSend
from retire.engine.publication import CURRENT, Ended

SCOPED = {"x-retire-scope": "plan"}
HTTP = ("httptools", "h11")


async def _slow_reader_over_a_switch(node: Node, http: str) -> tuple[int, list[dict[str, Any]]]:
    """Frames handed over when the switch was acked, and everything the client reads afterwards."""
    app = StreamingApp(node, frames=1000, size=64 * 1024)
    async with serving(node, app, http) as port:
        reader = SlowReader(port)
        await reader.request()
        await stalled(app)
        node.advance()
        node.switch()
        handed_at_ack = app.handed
        received = events(await reader.read_to_end())
        reader.close()
    return handed_at_ack, received


@pytest.mark.parametrize("http", HTTP)
async def test_a_paused_socket_holds_no_old_frame_past_the_ack(node: Node, http: str) -> None:
    """A client that stopped reading gets nothing that was not handed over before the ack."""
    handed, received = await _slow_reader_over_a_switch(node, http)
    numbers = [event["n"] for event in received if "n" in event]
    assert numbers == list(range(handed))
    assert received[-1]["error"]["code"] == "superseded"
    assert sum("error" in event for event in received) == 1


@pytest.mark.parametrize("http", HTTP)
async def test_control_without_our_drain_a_late_frame_appears(
    node: Node, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: checked before uvicorn's own drain, an old frame goes out after the ack."""

    def never(self: GuardedSend) -> bool:
        del self
        return False

    monkeypatch.setattr(GuardedSend, "_blocked", never)
    handed, received = await _slow_reader_over_a_switch(node, http)
    numbers = [event["n"] for event in received if "n" in event]
    assert max(numbers) >= handed


@pytest.mark.parametrize("planted", [False, True])
def test_the_same_on_the_loop_that_vllm_runs(
    node: Node, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop buffers and pauses in its own way; with its control."""

    def never(self: GuardedSend) -> bool:
        del self
        return False

    if planted:
        monkeypatch.setattr(GuardedSend, "_blocked", never)
    handed, received = uvloop.run(_slow_reader_over_a_switch(node, "httptools"))
    numbers = [event["n"] for event in received if "n" in event]
    late = [number for number in numbers if number >= handed]
    assert bool(late) is planted


async def test_every_event_carries_its_version(node: Node) -> None:
    """The version is in the header and in each JSON event; [DONE] stays what clients know."""
    async with (
        serving(node, StreamingApp(node, frames=3)) as port,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
    lines = [line for line in answer.text.split("\n\n") if line]
    assert answer.headers["x-retire-version"] == "1.4"
    assert [json.loads(line[6:])["retire"] for line in lines[:-1]] == [{"version": "1.4"}] * 3
    assert lines[-1] == "data: [DONE]"


async def test_an_untagged_call_is_untouched(node: Node) -> None:
    """No tag: no publication, no header, no changed byte."""
    async with (
        serving(node, StreamingApp(node, frames=2)) as port,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(f"http://127.0.0.1:{port}/v1/completions")
    frames = [f'{{"n": {n}, "pad": "", "choices": [{{"index": 0}}]}}' for n in range(2)]
    assert answer.text == "".join(f"data: {frame}\n\n" for frame in (*frames, "[DONE]"))
    assert "x-retire-version" not in answer.headers


@pytest.mark.parametrize(
    ("why", "code"), [(Ended.SUPERSEDED, "superseded"), (Ended.CANCELLED, "cancelled")]
)
async def test_the_terminal_event_is_the_last_thing_said(node: Node, why: Ended, code: str) -> None:
    """One terminal event with both versions, then the body ends: no [DONE], no frame."""
    app = StreamingApp(node, frames=10_000, pause_s=0.005)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await until(lambda: app.handed > 5)
        node.advance()
        node.switch(why)
        text = (await reading).text
    last = json.loads(text.strip().split("\n\n")[-1][6:])
    assert last["error"] | {"message": ""} == {
        "code": code, "type": "conflict", "message": "", "scope": "plan",
        "version": "1.4", "current": "1.5", "last_published_index": None,
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }  # fmt: skip
    assert "[DONE]" not in text
    assert text.count("error") == 1


async def test_a_gate_that_sees_the_word_first_needs_no_switch(node: Node) -> None:
    """A Switch that never arrives changes nothing: the store alone ends the stream."""
    app = StreamingApp(node, frames=10_000, pause_s=0.005)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await until(lambda: app.handed > 5)
        node.advance()
        handed = app.handed
        text = (await reading).text
    assert text.count('"n"') == handed
    assert json.loads(text.strip().split("\n\n")[-1][6:])["error"]["current"] == "1.5"


class JsonApp:
    """Answers one JSON document after ``gate`` is set, as a non-streaming call does."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.gate = asyncio.Event()
        self.started = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        publication = CURRENT.get()
        assert publication is not None
        publication.bind(self.node.tag(), self.node.view)
        head = [(b"content-type", b"application/json"), (b"content-length", b"10")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        self.started.set()
        await self.gate.wait()
        await send({"type": "http.response.body", "body": b'{"old": 1}'})


@pytest.mark.parametrize("http", HTTP)
async def test_a_stale_result_becomes_a_409(node: Node, http: str) -> None:
    """A non-streaming result of a retired version is replaced as a whole, whenever it comes."""
    app = JsonApp(node)
    async with serving(node, app, http) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await app.started.wait()
        node.advance()
        app.gate.set()
        answer = await reading
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "superseded"
    assert "old" not in answer.text


async def test_a_switch_answers_a_waiting_call_at_once(node: Node) -> None:
    """The caller of a non-streaming request learns of the switch before the engine is done."""
    app = JsonApp(node)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await app.started.wait()
        node.advance()
        node.switch()
        answer = await reading
        app.gate.set()
    assert answer.status_code == 409


async def test_an_expired_lease_holds_the_stream_and_lets_it_go_on(node: Node) -> None:
    """Nothing is published while the lease is away; the same stream goes on when it is back."""
    app = StreamingApp(node, frames=200, pause_s=0.002)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await until(lambda: app.handed > 5)
        node.lease(held=False)
        held = app.handed
        await asyncio.sleep(0.2)
        assert app.handed == held
        node.lease(held=True)
        text = (await reading).text
    assert text.count('"n"') == 200


async def test_a_lease_that_stays_away_ends_the_stream(node: Node) -> None:
    """After the hold time the stream ends as unavailable, with a hint to retry."""
    node.publications.hold_s = 0.1
    app = StreamingApp(node, frames=10_000, pause_s=0.002)
    async with serving(node, app) as port, httpx.AsyncClient() as client:
        reading = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/v1/completions", headers=SCOPED)
        )
        await until(lambda: app.handed > 5)
        node.lease(held=False)
        text = (await reading).text
    error = json.loads(text.strip().split("\n\n")[-1][6:])["error"]
    assert (error["code"], error["retry_after_s"]) == ("lease_expired", 1)


async def test_a_superseded_connection_can_be_used_again(node: Node) -> None:
    """Keep-alive: the retired application cannot write into the next response of its connection."""
    app = StreamingApp(node, frames=10_000, pause_s=0.005)
    limits = httpx.Limits(max_connections=1)
    async with serving(node, app) as port, httpx.AsyncClient(limits=limits) as client:
        url = f"http://127.0.0.1:{port}/v1/completions"
        reading = asyncio.create_task(client.post(url, headers=SCOPED))
        await until(lambda: app.handed > 5)
        node.advance()
        node.switch()
        await reading
        app.frames = 3
        answer = await client.post(url)
    assert answer.text.count('"n"') == 3


async def test_twenty_slow_streams_do_not_block_the_loop(node: Node) -> None:
    """One Switch ends every stream of the scope; the ack does not wait for slow readers."""
    app = StreamingApp(node, frames=200, size=64 * 1024)
    async with serving(node, app) as port:
        readers = [SlowReader(port) for _ in range(20)]
        for reader in readers:
            await reader.request()
        await until(lambda: len(list(node.publications.live(KEY))) == 20)
        await stalled(app)
        node.advance(V2)
        before = asyncio.get_running_loop().time()
        node.switch()
        assert asyncio.get_running_loop().time() - before < 0.5  # they never read
        for reader in readers:
            reader.close()
    await until(lambda: not node.publications.scopes(), 30)

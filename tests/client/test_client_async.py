"""The asyncio client: the same surface and, over a connection, the same behaviour."""

import asyncio
import inspect
import threading

import pytest

from retire import client as package
from retire.client import AsyncRetire, RetryPolicy, StreamInterrupted, Superseded
from retire.protocol import errors
from retire.protocol.versions import Version

CHAT = "/v1/chat/completions"
SUPERSEDE = "/v1/scopes/plan-7/supersede"
MESSAGES = [{"role": "user", "content": "plan"}]
PAIRS = [
    (getattr(package, name), getattr(package, f"Async{name}"))
    for name in ("Retire", "Scope", "Stream", "Successor")
]
DUNDERS = {"__aiter__": "__iter__", "__anext__": "__next__", "__aenter__": "__enter__"} | {
    "__aexit__": "__exit__"
}


def surface(kind: type) -> dict[str, list[tuple[str, object]]]:
    """Name -> parameters (names and defaults) of everything callable or readable."""
    found = {}
    for name, member in inspect.getmembers(kind):
        public = not name.startswith("_") or name in DUNDERS or name in DUNDERS.values()
        if public and callable(member):
            parameters = inspect.signature(member).parameters.values()
            found[DUNDERS.get(name, name)] = [(p.name, p.default) for p in parameters]
        elif public:
            found[name] = [("property", isinstance(member, property))]
    return found


@pytest.mark.parametrize(("sync", "mirror"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_surface(sync: type, mirror: type) -> None:
    """Every method and property, with the same parameters and defaults."""
    assert surface(sync) == surface(mirror)


async def test_no_old_chunk_after_an_acknowledged_supersede(server, play) -> None:
    """As in the sync client: the late chunk is dropped and counted, the stream ends Superseded."""
    held = threading.Event()
    late = [
        play.chunk("a", "1.4"),
        held,
        play.chunk("LATE", "1.4"),
        play.superseded("1.4", "1.5", 0),
    ]
    server.add(CHAT, play.Answer(late))
    server.add(SUPERSEDE, play.successor("1.4", "1.5", "b", "c"))
    async with AsyncRetire(server.url) as client:
        scope = client.scope("plan-7")
        old = await scope.chat(MESSAGES, model="m")
        assert (await anext(old)).text == "a"
        successor = await scope.supersede(request={"model": "m", "messages": MESSAGES})
        held.set()
        assert [chunk.text async for chunk in successor] == ["b", "c"]
        with pytest.raises(Superseded) as ended:
            await anext(old)
        assert ended.value.last_published_index == 0
        assert scope.dropped == 1


async def test_a_waiting_reader_is_told_at_once(server, play) -> None:
    """A task that reads the old stream ends as Superseded while another task reads the new one."""
    held = threading.Event()
    server.add(CHAT, play.Answer([play.chunk("a", "1.4"), held, play.superseded("1.4", "1.5", 0)]))
    server.add(SUPERSEDE, play.successor("1.4", "1.5", "b"))
    async with AsyncRetire(server.url) as client:
        scope = client.scope("plan-7")

        async def read() -> list[str]:
            return [chunk.text async for chunk in await scope.chat(MESSAGES)]

        reading = asyncio.create_task(read())
        while scope.version is None:
            await asyncio.sleep(0.01)
        successor = await scope.supersede()
        held.set()
        with pytest.raises(Superseded):
            await reading
        assert [chunk.text async for chunk in successor] == ["b"]


async def test_repeats_errors_and_breaks(server, play) -> None:
    """Retries keep the key; errors keep their class; a broken stream is no end."""
    server.add(SUPERSEDE, play.Answer([play.BREAK]), play.successor("1.4", "1.5"))
    server.add(CHAT, play.Answer([play.chunk("a", "1.5"), play.BREAK]))
    wire = {"error": {"code": "unknown_scope", "message": "no scope"}}
    server.add_json("/v1/scopes/plan-7", wire, 404)
    server.add_json("/v1/scopes/plan-7/cancel", {"receipt": play.receipt("1.5", "1.6")})
    server.add_json("/v1/scopes", {"scopes": []})
    async with AsyncRetire(server.url, retries=RetryPolicy(backoff_s=0.01)) as client:
        scope = client.scope("plan-7")
        await scope.supersede(expected_version=Version(1, 4))
        with pytest.raises(StreamInterrupted):
            assert [chunk.text async for chunk in await scope.chat(MESSAGES)] == ["a"]
        with pytest.raises(errors.UnknownScope):
            await scope.get()
        done = await scope.cancel()
        assert done.receipt is not None and scope.version == Version(1, 6)
        assert await client.scopes() == ()
    assert len({got.headers["idempotency-key"] for got in server.got[:2]}) == 1


async def test_a_replayed_supersede_starts_its_successor_anew(server, play) -> None:
    """As in the sync client, streamed or not."""
    replay = {"receipt": play.receipt("1.4", "1.5", replayed=True), "response": None}
    server.add_json(SUPERSEDE, replay)
    server.add_json("/v1/completions", {"choices": [{"text": "b"}]}, x_retire_version="1.5")
    async with AsyncRetire(server.url) as client:
        request = {"prompt": "p", "stream": False}
        successor = await client.scope("plan-7").supersede(
            expected_version=Version(1, 4), request=request
        )
        assert successor.reply is not None and successor.reply.text == "b"
        assert [chunk async for chunk in successor] == []


async def test_closing_a_stream_hangs_up(server, play) -> None:
    """``async with`` on a stream releases its connection before the answer is over."""
    held = threading.Event()
    server.add(CHAT, play.Answer([play.chunk("a", "1.4"), held, play.DONE]))
    async with AsyncRetire(server.url) as client:
        async with await client.scope("plan-7").chat(MESSAGES) as stream:
            await anext(stream)
        held.set()

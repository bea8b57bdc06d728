"""Streams and SUPERSEDE over a real connection: order, late chunks, ends."""

import threading

import pytest

from retire.client import (
    NotVersioned,
    Retire,
    StreamCorrupt,
    StreamInterrupted,
    Superseded,
)
from retire.client.floor import VersionFloor
from retire.protocol.contract import Contract, Inherit, StopReason
from retire.protocol.versions import Version

CHAT = "/v1/chat/completions"
SUPERSEDE = "/v1/scopes/plan-7/supersede"
MESSAGES = [{"role": "user", "content": "plan"}]
V4, V5 = Version(1, 4), Version(1, 5)


def late_story(server, play):
    """An old stream whose last chunk the network holds back until the successor has spoken."""
    held = threading.Event()
    old = [
        play.chunk("a", "1.4"),
        held,
        play.chunk("LATE", "1.4"),
        play.superseded("1.4", "1.5", 0),
    ]
    server.add(CHAT, play.Answer(old))
    server.add(SUPERSEDE, play.successor("1.4", "1.5", "b", "c"))
    return held


def test_no_old_chunk_after_an_acknowledged_supersede(server, play) -> None:
    """A chunk of the old version that arrives after the receipt is dropped and counted."""
    held = late_story(server, play)
    with Retire(server.url) as client:
        scope = client.scope("plan-7")
        old = scope.chat(MESSAGES, model="m")
        assert next(old).text == "a"
        successor = scope.supersede(request={"model": "m", "messages": MESSAGES})
        assert scope.version == V5
        held.set()
        assert [c.text for c in successor] == ["b", "c"]
        with pytest.raises(Superseded) as ended:
            next(old)
        assert (ended.value.version, ended.value.current) == (V4, V5)
        assert ended.value.last_published_index == 0
        assert scope.dropped == 1


def test_without_the_filter_the_late_chunk_comes_out(server, play, monkeypatch) -> None:
    """Negative control: with the version floor off, the same bytes yield the old chunk."""
    monkeypatch.setattr(VersionFloor, "admits", lambda self, version: True)
    held = late_story(server, play)
    with Retire(server.url) as client:
        scope = client.scope("plan-7")
        old = scope.chat(MESSAGES, model="m")
        next(old)
        list(scope.supersede(request={"model": "m", "messages": MESSAGES}, expected_version=V4))
        held.set()
        assert next(old).text == "LATE"


def test_buffered_chunks_do_not_outlive_a_supersede(server, play) -> None:
    """Old chunks that had already arrived, unread, when SUPERSEDE returned are dropped too."""
    old = b"".join([play.chunk("a", "1.4"), play.chunk("b", "1.4"), play.chunk("c", "1.4")])
    server.add(CHAT, play.Answer([old, play.superseded("1.4", "1.5", 2)]))
    server.add(SUPERSEDE, play.successor("1.4", "1.5"))
    with Retire(server.url) as client:
        stream = client.scope("plan-7").chat(MESSAGES, model="m")
        next(stream)
        client.scope("plan-7").supersede()  # another handle of the same scope
        with pytest.raises(Superseded):
            next(stream)
        assert client.scope("plan-7").dropped == 2


def test_a_newer_chunk_is_an_acknowledgement_too(server, play) -> None:
    """Whoever superseded: after one chunk of 1.5 this client yields none of 1.4."""
    go = threading.Event()
    server.add(CHAT, play.Answer([play.chunk("a", "1.4"), go, play.chunk("b", "1.4"), play.DONE]))
    server.add(CHAT, play.Answer([play.chunk("new", "1.5"), play.DONE]))
    with Retire(server.url) as client:
        old = client.scope("plan-7").chat(MESSAGES)
        assert next(old).version == V4
        assert [c.text for c in client.scope("plan-7").chat(MESSAGES)] == ["new"]
        go.set()
        assert list(old) == []


def test_other_scopes_are_untouched(server, play) -> None:
    """A floor belongs to one scope of one tenant."""
    server.add(SUPERSEDE, play.successor("1.4", "1.5", "b"))
    server.add(CHAT, play.Answer([play.chunk("x", "1.0"), play.DONE]))
    server.add(CHAT, play.Answer([play.chunk("y", "1.0"), play.DONE]))
    with Retire(server.url) as client:
        list(client.scope("plan-7").supersede(expected_version=V4))
        assert [c.text for c in client.scope("other").chat(MESSAGES)] == ["x"]
        assert [c.text for c in client.scope("plan-7", tenant="b").chat(MESSAGES)] == ["y"]


def test_the_call_and_its_receipt(server, play) -> None:
    """Body, headers and receipt of a SUPERSEDE are what the API says."""
    server.add(SUPERSEDE, play.successor("1.4", "1.5", "b"))
    with Retire(server.url + "/v1", tenant="acme", api_key="s3") as client:
        successor = client.scope("plan-7").supersede(
            expected_version=V4,
            request={"model": "m", "messages": MESSAGES},
            contract=Contract(inherit=Inherit.NEVER, ttl_s=5),
            idempotency_key="k1",
        )
        assert successor.receipt.to_version == V5
        assert successor.receipt.stop_reason is StopReason.BLOCK_BOUNDARY
        assert [c.version for c in successor] == [V5]
    got = server.got[0]
    assert got.headers["idempotency-key"] == "k1"
    assert got.headers["x-retire-tenant"] == "acme"
    assert got.headers["authorization"] == "Bearer s3"
    assert got.body["expected_version"] == "1.4"
    assert got.body["contract"]["inherit"] == "never"
    assert got.body["request"] == {"stream": True, "model": "m", "messages": MESSAGES}


def test_expected_defaults_to_what_is_known_or_asked(server, play) -> None:
    """Without a known version the client reads the scope first; then it uses what it has seen."""
    view = {"scope": "plan-7", "tenant": "default", "version": "1.4", "phase": "running"}
    server.add_json("/v1/scopes/plan-7", view)
    server.add(SUPERSEDE, play.successor("1.4", "1.5"), play.successor("1.5", "1.6"))
    with Retire(server.url) as client:
        client.scope("plan-7").supersede()
        client.scope("plan-7").supersede()
    assert [g.path for g in server.got] == ["/v1/scopes/plan-7", SUPERSEDE, SUPERSEDE]
    assert [g.body["expected_version"] for g in server.got[1:]] == ["1.4", "1.5"]


def test_unstreamed_answers(server, play) -> None:
    """``stream: false`` gives the receipt and the whole answer; so does a plain completion."""
    answer = {"choices": [{"index": 0, "message": {"content": "done"}}]}
    server.add_json(SUPERSEDE, {"receipt": play.receipt("1.4", "1.5"), "response": answer})
    server.add_json("/v1/completions", {"choices": [{"text": "hi"}]}, x_retire_version="1.5")
    with Retire(server.url) as client:
        scope = client.scope("plan-7")
        successor = scope.supersede(expected_version=V4, request={"stream": False})
        assert successor.reply is not None and successor.reply.text == "done"
        assert list(successor) == []
        reply = scope.complete("p", stream=False)
        assert (reply.text, reply.version) == ("hi", V5)


def test_a_late_whole_answer_is_an_error(server, play) -> None:
    """An unstreamed answer of an older version is Superseded, not a reply."""
    server.add(SUPERSEDE, play.successor("1.4", "1.5"))
    server.add_json("/v1/completions", {"choices": [{"text": "hi"}]}, x_retire_version="1.4")
    with Retire(server.url) as client:
        client.scope("plan-7").supersede(expected_version=V4)
        with pytest.raises(Superseded):
            client.scope("plan-7").complete("p", stream=False)


def test_a_stream_without_versions_is_refused(server, play) -> None:
    """A server without the plugin would give unversioned text: the client says so."""
    server.add(CHAT, play.Answer([play.event({"choices": [{"delta": {"content": "x"}}]})]))
    with Retire(server.url) as client, pytest.raises(NotVersioned, match="VLLM_PLUGINS"):
        next(client.scope("plan-7").chat(MESSAGES))


@pytest.mark.parametrize(
    ("raw", "error"),
    [(b"data: {not json}\n\n", StreamCorrupt), (b"data: [1]\n\n", StreamCorrupt)],
)
def test_what_is_no_json_object_is_refused(server, play, raw, error) -> None:
    """A broken chunk is an error that quotes it."""
    server.add(CHAT, play.Answer([raw]))
    with Retire(server.url) as client, pytest.raises(error):
        next(client.scope("plan-7").chat(MESSAGES))


def test_a_broken_connection_is_told_from_an_end(server, play) -> None:
    """Chunks that arrived are yielded; then StreamInterrupted, never a silent end."""
    server.add(CHAT, play.Answer([play.chunk("a", "1.4"), play.BREAK]))
    with Retire(server.url) as client:
        stream = client.scope("plan-7").chat(MESSAGES)
        assert next(stream).text == "a"
        with pytest.raises(StreamInterrupted):
            next(stream)


def test_a_connection_broken_by_a_supersede_says_superseded(server, play) -> None:
    """A stream of a version known to be old ends as Superseded, last event or not."""
    go = threading.Event()
    server.add(CHAT, play.Answer([play.chunk("a", "1.4"), go, play.BREAK]))
    server.add(SUPERSEDE, play.successor("1.4", "1.5"))
    with Retire(server.url) as client:
        stream = client.scope("plan-7").chat(MESSAGES)
        next(stream)
        client.scope("plan-7").supersede()
        go.set()
        with pytest.raises(Superseded) as ended:
            next(stream)
        assert ended.value.current == V5


def test_the_openai_client_carries_the_tag_and_shares_the_floor(server, play) -> None:
    """An unmodified openai client streams with scope.headers() and can ask the same floor."""
    from openai import OpenAI

    raw = [
        b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"hi"},"finish_reason":null}],"retire":{"version":"1.4"}}\n\n',
        play.DONE,
    ]
    server.add(CHAT, play.Answer(raw))
    with (
        Retire(server.url, tenant="acme") as client,
        OpenAI(base_url=server.url + "/v1", api_key="x") as openai,
    ):
        scope = client.scope("plan-7")
        stream = openai.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, extra_headers=scope.headers()
        )
        seen = [item for item in stream if scope.admits(item.model_extra["retire"]["version"])]
        assert [item.choices[0].delta.content for item in seen] == ["hi"]
        assert scope.version == V4
    assert server.got[0].headers["x-retire-scope"] == "plan-7"
    assert server.got[0].headers["x-retire-tenant"] == "acme"

"""Tokens, keys and policies as the clients send them, and what a refusal becomes."""

import pytest

from retire.client import AsyncRetire, Retire
from retire.protocol import errors
from retire.protocol.contract import Policy
from retire.protocol.versions import Version

SCOPES = "/v1/scopes"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "plan"}]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests has none."""
    monkeypatch.delenv("RETIRE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("given", "environment", "sent"),
    [
        ({}, None, {}),
        ({"token": "t"}, None, {"authorization": "Bearer t"}),
        ({}, "e", {"authorization": "Bearer e"}),
        ({"token": "t"}, "e", {"authorization": "Bearer t"}),
        ({"token": ""}, "e", {}),
        ({"api_key": "k"}, None, {"authorization": "Bearer k"}),
        (
            {"api_key": "k", "token": "t"},
            None,
            {"authorization": "Bearer k", "x-retire-token": "t"},
        ),
    ],
)
def test_where_a_token_and_a_key_go(server, monkeypatch, given, environment, sent) -> None:
    """One of them is the Authorization; both together do not hide each other."""
    if environment is not None:
        monkeypatch.setenv("RETIRE_TOKEN", environment)
    server.add_json(SCOPES, {"scopes": []})
    with Retire(server.url, **given) as client:
        client.scopes()
    got = server.got[0].headers
    names = ("authorization", "x-retire-token")
    assert {name: got[name] for name in names if name in got} == sent


async def test_the_async_client_sends_the_same(server, monkeypatch) -> None:
    """From the environment too."""
    monkeypatch.setenv("RETIRE_TOKEN", "e")
    server.add_json(SCOPES, {"scopes": []})
    async with AsyncRetire(server.url, api_key="k") as client:
        await client.scopes()
    got = server.got[0].headers
    assert (got["authorization"], got["x-retire-token"]) == ("Bearer k", "e")


@pytest.mark.parametrize("bad", ["a\nb", "ключ"])
def test_a_token_that_cannot_be_sent_is_not_repeated(bad) -> None:
    """The message names the argument only."""
    with pytest.raises(errors.InvalidField, match="token must be printable ASCII") as raised:
        Retire("http://127.0.0.1:1", token=bad)
    assert bad not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (
            401,
            {"error": {"code": "unauthenticated", "message": "this call needs a token"}},
            errors.Unauthenticated,
            "^this call needs a token$",
        ),
        (401, {"error": "Unauthorized"}, errors.Unauthenticated, "pass api_key"),  # vLLM's own
        (
            403,
            {"error": {"code": "forbidden", "message": "x-retire-tenant must be absent"}},
            errors.Forbidden,
            "^x-retire-tenant must be absent$",
        ),
    ],
)
def test_a_refusal_is_told_apart_and_not_tried_again(server, status, body, kind, says) -> None:
    """401 and 403 have classes of their own; a second attempt would not help."""
    server.add_json(SCOPES, body, status)
    with Retire(server.url) as client, pytest.raises(kind, match=says):
        client.scopes()
    assert len(server.got) == 1


def test_a_handle_may_say_what_its_inputs_do(server, play) -> None:
    """The header goes with new inputs only; handles of one scope share their version."""
    server.add(CHAT, play.Answer([play.chunk("a", "1.4"), play.DONE]))
    with Retire(server.url) as client:
        loud = client.scope("plan-7", on_new_input=Policy.INTERRUPT)
        assert [chunk.text for chunk in loud.chat(MESSAGES, model="m")] == ["a"]
        assert client.scope("plan-7").version == loud.version == Version(1, 4)
        assert "x-retire-on-new-input" not in loud.headers(Version(1, 4))
    assert server.got[0].headers["x-retire-on-new-input"] == "interrupt"


def test_an_answer_to_an_interrupt_raises_the_floor(server, play) -> None:
    """Its head comes after UNPUBLISHABLE: no older chunk is yielded from then on."""
    versioned = {"content-type": "text/event-stream", "x-retire-version": "1.5"}
    old = [play.chunk("a", "1.4"), play.chunk("LATE", "1.4"), play.DONE]
    server.add(CHAT, play.Answer(old), play.Answer([play.chunk("b", "1.5"), play.DONE]))
    with Retire(server.url) as client:
        scope = client.scope("plan-7", on_new_input=Policy.INTERRUPT)
        stream = scope.chat(MESSAGES, model="m")
        assert next(stream).text == "a"
        server._answers[CHAT][0].headers.update(versioned)
        newer = scope.chat(MESSAGES, model="m")
        assert [chunk.text for chunk in stream] == []
        assert scope.dropped == 1
        assert [chunk.text for chunk in newer] == ["b"]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(409, "policy_refused", errors.PolicyRefused), (429, "queue_full", errors.QueueFull)],
)
def test_what_a_policy_refuses_has_a_class(server, status, code, kind) -> None:
    """An agent can tell a busy scope from a bad request."""
    server.add_json(CHAT, {"error": {"code": code, "message": "2 running requests"}}, status)
    with Retire(server.url) as client, pytest.raises(kind, match="2 running requests"):
        client.scope("plan-7", on_new_input=Policy.REJECT).chat(MESSAGES, model="m")

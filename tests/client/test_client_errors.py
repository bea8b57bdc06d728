"""Wire errors become the tree's classes; repeatable calls are repeated, others are not."""

import time

import pytest

from retire.client import RequestRejected, Retire, RetryPolicy, StreamCorrupt, Unreachable
from retire.client.errors import error_of
from retire.protocol import errors
from retire.protocol.versions import Version

SUPERSEDE = "/v1/scopes/plan-7/supersede"
V4 = Version(1, 4)


def tree(kind: type[errors.RetireError]) -> list[type[errors.RetireError]]:
    """The class and everything below it."""
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in tree(child))]


PROTOCOL = [kind for kind in tree(errors.RetireError)[1:] if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", PROTOCOL, ids=lambda kind: kind.code)
def test_every_code_of_the_tree_comes_back_as_its_class(server, kind) -> None:
    """Same class, the server's own message, its facts as attributes."""
    facts = {"version": "1.4", "current": "1.6", "field": "x", "quota_left": 3}
    wire = {"error": {"code": kind.code, "type": "t", "message": "why it failed", **facts}}
    server.add_json("/v1/scopes/plan-7/cancel", wire, kind.http_status)
    client = Retire(server.url, retries=RetryPolicy(attempts=1))
    with client, pytest.raises(kind, match="^why it failed$") as raised:
        client.scope("plan-7").cancel(expected_version=V4)
    assert type(raised.value) is kind
    assert (raised.value.current, raised.value.left) == (Version(1, 6), 3)


def test_a_conflict_names_both_versions(server, play) -> None:
    """409 at SUPERSEDE: nothing happened, and the caller can read the current version."""
    wire = {"code": "version_conflict", "message": "stale", "version": "1.4", "current": "1.6"}
    server.add_json(SUPERSEDE, {"error": wire}, 409)
    with Retire(server.url) as client, pytest.raises(errors.VersionConflict) as raised:
        client.scope("plan-7").supersede(expected_version=V4)
    assert (raised.value.expected, raised.value.current) == (V4, Version(1, 6))
    assert len(server.got) == 1


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, {"error": {"message": "too long", "type": "BadRequest", "code": 400}}, "too long"),
        (404, {"object": "error", "message": "no such model"}, "no such model"),
        (500, "Internal Server Error", "Internal"),
    ],
)
def test_errors_of_the_engine_keep_status_and_message(server, status, body, said) -> None:
    """What is none of our codes is RequestRejected with the engine's own words."""
    server.add_json("/v1/completions", body, status)
    with Retire(server.url) as client, pytest.raises(RequestRejected, match=said) as raised:
        client.scope("plan-7").complete("p")
    assert raised.value.status == status


def test_an_error_of_the_engine_in_a_stream_keeps_its_status(server, play) -> None:
    """The stream began with 200; the error event names the status it would have had."""
    wire = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    server.add("/v1/completions", play.Answer([play.chunk("a", "1.4"), play.event(wire)]))
    with Retire(server.url) as client, pytest.raises(RequestRejected, match="HTTP 400: too long"):
        list(client.scope("plan-7").complete("p"))


def test_a_cancelled_stream_ends_as_a_closed_scope(server, play) -> None:
    """The terminal event of a cancel is the same class as a call to the cancelled scope."""
    wire = {"error": {"code": "cancelled", "message": "cancelled", "current": "1.5"}}
    server.add("/v1/completions", play.Answer([play.chunk("a", "1.4"), play.event(wire)]))
    with Retire(server.url) as client, pytest.raises(errors.ScopeClosed) as raised:
        list(client.scope("plan-7").complete("p"))
    assert raised.value.current == Version(1, 5)


def test_a_superseded_error_needs_a_version() -> None:
    """An error that does not say which version ended cannot be believed."""
    with pytest.raises(StreamCorrupt):
        error_of({"error": {"code": "superseded"}}, status=409)


def test_supersede_is_repeated_with_the_same_key(server, play) -> None:
    """Lost before an answer, lost before the receipt, 503: one Idempotency-Key for all attempts."""
    server.add(SUPERSEDE, play.Answer([play.BREAK]))
    server.add(SUPERSEDE, play.Answer([b": nothing yet\n\n", play.BREAK]))
    server.add_json(SUPERSEDE, {"error": {"code": "need_register", "message": "wait"}}, 503)
    server.add(SUPERSEDE, play.successor("1.4", "1.5", "b"))
    with Retire(server.url, retries=RetryPolicy(backoff_s=0.01)) as client:
        successor = client.scope("plan-7").supersede(expected_version=V4)
        assert [c.text for c in successor] == ["b"]
    keys = {got.headers["idempotency-key"] for got in server.got}
    assert len(server.got) == 4
    assert len(keys) == 1


def test_a_replayed_supersede_starts_its_successor_anew(server, play) -> None:
    """The commit was made, its stream was lost: the request is sent under the new version."""
    replay = play.event(play.receipt("1.4", "1.5", replayed=True), "retire.receipt")
    server.add(SUPERSEDE, play.Answer([play.BREAK]), play.Answer([replay, play.DONE]))
    server.add("/v1/completions", play.Answer([play.chunk("b", "1.5"), play.DONE]))
    with Retire(server.url, retries=RetryPolicy(backoff_s=0.01)) as client:
        request = {"prompt": "p"}
        successor = client.scope("plan-7").supersede(expected_version=V4, request=request)
        assert successor.receipt.replayed
        assert [c.text for c in successor] == ["b"]
    assert server.got[2].headers["x-retire-version"] == "1.5"
    assert server.got[2].body == {"prompt": "p", "stream": True}


def test_a_replayed_supersede_that_was_overtaken_says_so(server, play) -> None:
    """When a newer version is current by then, the caller gets the conflict, not an old answer."""
    replay = {"receipt": play.receipt("1.4", "1.5", replayed=True), "response": None}
    server.add_json(SUPERSEDE, replay)
    wire = {"code": "version_conflict", "message": "stale", "version": "1.5", "current": "1.6"}
    server.add_json("/v1/completions", {"error": wire}, 409)
    with Retire(server.url) as client, pytest.raises(errors.VersionConflict):
        client.scope("plan-7").supersede(
            expected_version=V4, request={"prompt": "p", "stream": False}, idempotency_key="k"
        )


def test_two_calls_have_two_keys(server, play) -> None:
    """Negative control: the key belongs to a call, not to the client."""
    server.add(SUPERSEDE, play.successor("1.4", "1.5"), play.successor("1.5", "1.6"))
    with Retire(server.url) as client:
        client.scope("plan-7").supersede(expected_version=V4)
        client.scope("plan-7").supersede()
    assert len({got.headers["idempotency-key"] for got in server.got}) == 2


def test_retry_after_is_waited_for_and_bounded(server, play) -> None:
    """The server's Retry-After replaces a shorter backoff, up to the policy's longest wait."""
    body = {"error": {"code": "registry_unavailable", "message": "no registry"}}
    server.add_json("/v1/scopes/plan-7/pause", body, 503, retry_after="30")
    server.add_json("/v1/scopes/plan-7/pause", {"version": "1.4"})
    with Retire(server.url, retries=RetryPolicy(backoff_s=0.01, wait_max_s=0.3)) as client:
        start_s = time.monotonic()
        assert client.scope("plan-7").pause(expected_version=V4).version == V4
        assert 0.3 <= time.monotonic() - start_s < 15.0


def test_attempts_are_bounded(server) -> None:
    """A registry that stays away ends as its own error after the policy's attempts."""
    for _ in range(5):
        body = {"error": {"code": "registry_unavailable", "message": "no registry"}}
        server.add_json("/v1/scopes/plan-7/resume", body, 503)
    client = Retire(server.url, retries=RetryPolicy(attempts=3, backoff_s=0.0))
    with client, pytest.raises(errors.RegistryUnavailable):
        client.scope("plan-7").resume(expected_version=V4)
    assert len(server.got) == 3


def test_inference_is_never_repeated(server, play) -> None:
    """A completion that broke may have run: the caller decides."""
    server.add("/v1/completions", play.Answer([play.BREAK]))
    with Retire(server.url) as client, pytest.raises(Unreachable):
        client.scope("plan-7").complete("p")
    assert len(server.got) == 1


def test_no_server_is_one_clear_line() -> None:
    """The message names method and address."""
    client = Retire("http://127.0.0.1:9", retries=RetryPolicy(attempts=1))
    said = r"GET http://127.0.0.1:9/v1/scopes: .*refused"
    with client, pytest.raises(Unreachable, match=said):
        client.scopes()


def test_scopes_are_read(server) -> None:
    """The listing gives typed values and keeps the rest."""
    item = {"scope": "a", "tenant": "t", "version": "1.2", "phase": "running", "pinned_blocks": 3}
    server.add_json("/v1/scopes", {"scopes": [item]})
    with Retire(server.url) as client:
        (info,) = client.scopes()
    assert (info.name, info.tenant, info.version, info.pinned_blocks) == (
        "a",
        "t",
        Version(1, 2),
        3,
    )


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Retire("127.0.0.1:8000"), "url"),
        (lambda: Retire("http://x").scope(""), "scope"),
        (lambda: Retire("http://x").scope("a\nb"), "scope"),
        (lambda: Retire("http://x", tenant="A!").scope("a"), "tenant"),
        (lambda: Retire("http://x").scope("größe").headers(), "scope"),
        (lambda: RetryPolicy(attempts=0), "retries.attempts"),
    ],
)
def test_bad_values_name_their_field(make, field) -> None:
    """Nothing is sent for a value that cannot be right."""
    with pytest.raises(errors.InvalidField) as raised:
        make()
    assert raised.value.field == field


def test_a_scope_of_any_name_reaches_the_server(server, play) -> None:
    """UTF-8 in the header, percent-encoded in the path."""
    server.add("/v1/completions", play.Answer([play.chunk("a", "1.4"), play.DONE]))
    server.add("/v1/scopes/gr%C3%B6%C3%9Fe%2F1/supersede", play.successor("1.4", "1.5"))
    with Retire(server.url) as client:
        scope = client.scope("größe/1")
        list(scope.complete("p"))
        scope.supersede()
    sent = server.got[0].headers["x-retire-scope"].encode("latin-1").decode()
    assert sent == "größe/1"

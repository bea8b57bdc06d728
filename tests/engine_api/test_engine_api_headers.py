"""What a call may claim in headers, path and body: every bad value names its field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from retire.engine import scope_calls
from retire.engine.headers import Claim, claim_of, path_scope, tag_headers
from retire.engine.settings import Settings
from retire.protocol.contract import Contract, Inherit
from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey, Version

PLAIN = Settings()


def _claim(
    *headers: tuple[str, str | bytes], settings: Settings = PLAIN, auth: bool = False
) -> Any:
    raw = [(n.encode(), v if isinstance(v, bytes) else v.encode()) for n, v in headers]
    return claim_of(raw, settings, authenticated=auth)


@pytest.mark.parametrize(
    ("headers", "claim"),
    [
        ((), None),
        ((("x-retire-scope", "plan"),), Claim(ScopeKey("default", "plan"), None)),
        (
            (("x-retire-scope", "plan"), ("x-retire-version", "1.4")),
            Claim(ScopeKey("default", "plan"), Version(1, 4)),
        ),
        (
            (("x-retire-scope", "plan"), ("x-retire-tenant", "team-a")),
            Claim(ScopeKey("team-a", "plan"), None),
        ),
        ((("x-retire-scope", "план/α b"),), Claim(ScopeKey("default", "план/α b"), None)),
        (
            (("x-retire-scope", "part"), ("x-retire-parent", "plan α")),
            Claim(ScopeKey("default", "part"), None, parent="plan α"),
        ),
        ((("session-id", "s"),), None),  # only where the node derives scopes from sessions
    ],
)
def test_good_claims(headers: Any, claim: Claim | None) -> None:
    """A tag is read as it was meant."""
    assert _claim(*headers) == claim


@pytest.mark.parametrize("name", ["x-claude-code-session-id", "session-id", "x-session-id"])
def test_a_session_header_names_the_scope_where_the_node_says_so(name: str) -> None:
    """A coding agent that knows nothing of Retire still gets a scope a session."""
    settings = Settings(scope_from_session=True)
    assert _claim((name, "abc"), settings=settings) == Claim(ScopeKey("default", "abc"), None)
    assert name.encode() in tag_headers(settings)
    assert name.encode() not in tag_headers(PLAIN)


@pytest.mark.parametrize(
    ("headers", "field", "fix"),
    [
        ((("x-retire-scope", ""),), "x-retire-scope", "1 to 255 bytes"),
        ((("x-retire-scope", "x" * 256),), "x-retire-scope", "1 to 255 bytes"),
        ((("x-retire-scope", "x" * 2**20),), "x-retire-scope", "1 to 255 bytes"),
        ((("x-retire-scope", "a\tb"),), "x-retire-scope", "printable"),
        ((("x-retire-scope", b"\xff\xfe"),), "x-retire-scope", "UTF-8"),
        ((("x-retire-scope", "a"), ("x-retire-scope", "b")), "x-retire-scope", "given once"),
        ((("x-retire-version", "1.4"),), "x-retire-scope", "present"),
        ((("x-retire-parent", "plan"),), "x-retire-scope", "present when x-retire-parent is"),
        ((("x-retire-scope", "a"), ("x-retire-parent", "a")), "x-retire-parent", "another scope"),
        ((("x-retire-scope", "a"), ("x-retire-parent", "")), "x-retire-parent", "1 to 255 bytes"),
        ((("x-retire-scope", "a"), ("x-retire-parent", b"\xff")), "x-retire-parent", "UTF-8"),
        ((("x-retire-scope", "a"), ("x-retire-version", "4")), "x-retire-version", "term.epoch"),
        ((("x-retire-scope", "a"), ("x-retire-version", "1.-4")), "x-retire-version", "term.epoch"),
        ((("x-retire-scope", "a"), ("x-retire-version", "01.4")), "x-retire-version", "term.epoch"),
        ((("x-retire-scope", "a"), ("x-retire-version", "99999999.1")), "x-retire-version", "2^24"),
        ((("x-retire-scope", "a"), ("x-retire-tenant", "A_b")), "x-retire-tenant", "DNS label"),
        ((("x-retire-scope", "a"), ("x-retire-tenant", "a/b")), "x-retire-tenant", "DNS label"),
    ],
)
def test_bad_claims_name_the_header_and_the_fix(headers: Any, field: str, fix: str) -> None:
    """The message names the header, says what it must be, and repeats no long value."""
    with pytest.raises(InvalidField) as caught:
        _claim(*headers)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} must be ")
    assert fix in str(caught.value)
    assert len(str(caught.value)) < 400


def test_where_the_server_authenticates_a_header_cannot_choose_the_tenant() -> None:
    """Unless a trusted gateway sets it."""
    headers = (("x-retire-scope", "a"), ("x-retire-tenant", "victim"))
    with pytest.raises(InvalidField, match="x-retire-tenant must be absent"):
        _claim(*headers, auth=True)
    trusted = _claim(*headers, auth=True, settings=Settings(trust_tenant_header=True))
    assert trusted.key.tenant == "victim"


@pytest.mark.parametrize(
    ("raw", "verb", "scope"),
    [
        (b"/v1/scopes/plan/supersede", "supersede", "plan"),
        (b"/v1/scopes/a%2Fb/cancel", "cancel", "a/b"),
        (b"/v1/scopes/a/b/cancel", "cancel", "a/b"),
        (b"/v1/scopes/%D0%BF%20%2525/pause", "pause", "п %25"),
        (b"/v1/scopes/supersede/supersede", "supersede", "supersede"),
        (b"/root/v1/scopes/plan?x=1", "", "plan"),
    ],
)
def test_scope_names_in_paths(raw: bytes, verb: str, scope: str) -> None:
    """Percent-encoding is undone once; a slash may be part of a name."""
    assert path_scope({"raw_path": raw, "path": ""}, verb) == scope


def test_a_path_that_is_not_utf8_is_refused() -> None:
    """Not replaced by U+FFFD in silence: that would be another scope."""
    with pytest.raises(InvalidField, match="percent-encoded UTF-8"):
        path_scope({"raw_path": b"/v1/scopes/%FF/cancel", "path": ""}, "cancel")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.expected_version"),
        ({"expected_version": None}, "body.expected_version"),
        ({"expected_version": 4}, "body.expected_version"),
        ({"expected_version": "4"}, "body.expected_version"),
        ({"expected_version": "99999999.1"}, "body.expected_version"),
        ({"expected_version": "1.4", "expected": 1}, "body.expected"),
        ({"expected_version": "1.4", "contract": {"ttl": 1}}, "contract.ttl"),
        ({"expected_version": "1.4", "contract": {"ttl_s": -1}}, "contract.ttl_s"),
        ({"expected_version": "1.4", "contract": {"inherit": "always"}}, "contract.inherit"),
        ({"expected_version": "1.4", "request": "hi"}, "body.request"),
        ({"expected_version": "1.4", "request": {"model": "m"}}, "body.request"),
        (
            {"expected_version": "1.4", "stream": True, "request": {"prompt": "", "stream": False}},
            "body.stream",
        ),
        ({"expected_version": "1.4", "stream": "no"}, "body.stream"),
    ],
)
def test_bad_supersede_bodies_name_the_field(body: dict[str, Any], field: str) -> None:
    """Refused before anything is committed."""
    with pytest.raises(InvalidField) as caught:
        scope_calls.read_supersede(body, {})
    assert caught.value.field == field


@pytest.mark.parametrize("raw", [b"{", b"[1]", b'"x"', b"\xff"])
def test_bodies_that_are_no_json_object(raw: bytes) -> None:
    """The error is about the body, not a traceback."""
    with pytest.raises(InvalidField) as caught:
        scope_calls.read_object(raw)
    assert caught.value.field == "body"


@pytest.mark.parametrize(
    ("outer", "inner", "stream"),
    [(None, None, True), (False, None, False), (None, False, False), (True, True, True)],
)
def test_streaming_is_the_default(outer: bool | None, inner: bool | None, stream: bool) -> None:
    """``stream`` of the call, else of the request, else true."""
    body: dict[str, Any] = {"expected_version": "1.4", "request": {"prompt": "x"}}
    if outer is not None:
        body["stream"] = outer
    if inner is not None:
        body["request"]["stream"] = inner
    call = scope_calls.read_supersede(body, {})
    assert call.request is not None and call.request["stream"] is stream


def test_a_supersede_call_is_read_whole() -> None:
    """Version, contract, idempotency key, digest and trace."""
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"expected_version": "1.4", "contract": {"inherit": "never"}}
    call = scope_calls.read_supersede(body, {b"idempotency-key": b"k", b"traceparent": trace})
    assert call.mutation.expected == Version(1, 4)
    assert call.mutation.idempotency_key == "k"
    assert call.contract == Contract(inherit=Inherit.NEVER)
    assert call.mutation.traceparent == trace.decode()
    assert call.request is None


def test_an_idempotency_key_is_made_where_none_is_given_and_stands_for_the_body() -> None:
    """Two calls without one differ; the digest does not depend on the order of keys."""
    keys = {
        scope_calls.read_mutation({"expected_version": "1.4"}, {}).idempotency_key for _ in "ab"
    }
    assert len(keys) == 2
    assert scope_calls.digest({"a": 1, "b": 2}) == scope_calls.digest({"b": 2, "a": 1})
    assert scope_calls.digest({"a": 1}) != scope_calls.digest({"a": 2})


@pytest.mark.parametrize("key", [b"", b"a b", b"\xff", b"x" * 256])
def test_bad_idempotency_keys(key: bytes) -> None:
    """Named, with the fix."""
    with pytest.raises(InvalidField, match="idempotency-key must be"):
        scope_calls.read_mutation({"expected_version": "1.4"}, {b"idempotency-key": key})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETIRE_SIDECAR", "127.0.0.1:1"),
        ("RETIRE_HOLD_S", "soon"),
        ("RETIRE_HOLD_S", "-1"),
        ("RETIRE_TENANT", "A"),
        ("RETIRE_TENANT_HEADER", "yes"),
        ("RETIRE_SCOPE_FROM_SESSION", "true"),
    ],
)
def test_bad_settings_name_the_variable(name: str, value: str) -> None:
    """A bad value stops the process and says which."""
    with pytest.raises(InvalidField, match=name):
        Settings.from_env({name: value})

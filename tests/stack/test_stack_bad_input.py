"""Bad input over HTTP: the exact error, and nothing has changed.

Every refused call is made while a stream of the same scope runs: its version stays and it goes on.
What only the engine can refuse is in ``test_stack_refused_successor.py``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bench.stack_streams import Agent, Flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from bench.stack import Stack

FORM = 'written "term.epoch", for example "1.4"'
RANGE = "within 0..2^24-1 . 0..2^40-1"
KEYS = "contract, expected_version, request, stream"
CONTRACT_KEYS = "equivalence, fence_bound_ms, inherit, tier, ttl_s"
PRESENT = 'present: the version you believe is current, for example "1.4"'
VERBS = ("supersede", "cancel", "pause", "resume")


@pytest.fixture(scope="module")
def live(stack: Stack) -> Iterator[dict[str, Flow]]:
    """The stream that the tests of this module share."""
    held: dict[str, Flow] = {}
    yield held
    for flow in held.values():
        flow.close()


@pytest.fixture
def agent(stack: Stack, live: dict[str, Flow]) -> Iterator[Agent]:
    """A scope with a running stream. Afterwards: same version, same stream, no new receipt."""
    agent = Agent(stack, "bad-input")
    if "flow" not in live or live["flow"].over:
        live["flow"] = agent.stream("a long plan", max_tokens=4000)
        live["flow"].tokens_at_least(1)
    before = agent.view()
    yield agent
    after, flow = agent.view(), live["flow"]
    for fact in ("version", "phase", "paused", "cancelled", "receipts"):
        assert after[fact] == before[fact], fact
    seen = flow.tokens
    flow.until(lambda f: f.tokens > seen or f.done)
    assert flow.error is None and flow.broken is None


def refused(answer: httpx.Response, status: int, **error: Any) -> None:
    """The answer is exactly this error."""
    assert answer.status_code == status, answer.text
    assert answer.json() == {"error": error}


def field_error(field: str, must_be: str, got: object) -> dict[str, Any]:
    """The error of one bad value."""
    message = f"{field} must be {must_be}; got {got!r}"
    return {"code": "invalid_field", "type": "invalid_request", "message": message, "field": field}


def conflict(agent: Agent, stated: str, kind: str, current: str) -> dict[str, Any]:
    """The error of a version that is not current."""
    message = f"scope {agent.scope!r}: expected version {stated} is {kind}; current is {current}"
    found = {"code": "version_conflict", "type": "conflict", "message": message}
    return {**found, "version": stated, "current": current}


@pytest.mark.parametrize(
    ("value", "must_be"),
    [
        ("", FORM),
        ("1", FORM),
        ("1.x", FORM),
        ("01.0", FORM),
        ("-1.0", FORM),
        ("1.0.0", FORM),
        ("1,0", FORM),
        ("99999999.0", RANGE),
        ("1.9999999999999999", RANGE),
    ],
)
def test_a_malformed_version_is_refused_by_name(agent: Agent, value: str, must_be: str) -> None:
    """In the header and in the body, before anything is asked of the sidecar."""
    tagged = {**agent.headers, "x-retire-version": value}
    answer = agent.stack.http.post("/v1/completions", json=agent.stack.body("x"), headers=tagged)
    refused(answer, 400, **field_error("x-retire-version", must_be, value))
    answer = agent.post("supersede", {"expected_version": value})
    refused(answer, 400, **field_error("body.expected_version", must_be, value))


@pytest.mark.parametrize(
    ("body", "field", "must_be", "got"),
    [
        ({}, "body.expected_version", PRESENT, None),
        ({"expected_version": None}, "body.expected_version", PRESENT, None),
        ({"expected_version": 1.0}, "body.expected_version", FORM, 1.0),
        ({"expected_version": [1, 0]}, "body.expected_version", FORM, [1, 0]),
        ({"epoch": 1}, "body.epoch", f"absent; known keys are {KEYS}", 1),
        ({"stream": "yes"}, "body.stream", "true or false", "yes"),
        ({"request": "hi"}, "body.request", "a JSON object", "hi"),
        (
            {"request": {"model": "m"}},
            "body.request",
            'a chat ("messages") or completion ("prompt") body',
            ["model"],
        ),
        (
            {"request": {"prompt": "x", "stream": True}, "stream": False},
            "body.stream",
            "the same as body.request.stream, or absent",
            False,
        ),
        ([], "body", "a JSON object", []),
        ({"contract": "exact"}, "contract", "a JSON object", "exact"),
        ({"contract": {"ttl_s": 0}}, "contract.ttl_s", "above 0, at most 3600", 0),
        ({"contract": {"ttl_s": 3601}}, "contract.ttl_s", "above 0, at most 3600", 3601),
        ({"contract": {"ttl_s": True}}, "contract.ttl_s", "a number", True),
        (
            {"contract": {"equivalence": "near"}},
            "contract.equivalence",
            "one of exact, batch-invariant, none",
            "near",
        ),
        ({"contract": {"inherit": 1}}, "contract.inherit", "one of certified, never", 1),
        ({"contract": {"tier": "ssd"}}, "contract.tier", "one of hbm, dram", "ssd"),
        (
            {"contract": {"fence_bound_ms": 0}},
            "contract.fence_bound_ms",
            "above 0, or absent",
            0,
        ),
        ({"contract": {"ttl": 5}}, "contract.ttl", f"absent; known keys are {CONTRACT_KEYS}", 5),
    ],
)
def test_a_malformed_supersede_names_its_field(
    agent: Agent, body: Any, field: str, must_be: str, got: object
) -> None:
    """400 with the field's path and what it must be; a misspelt option is never dropped."""
    if isinstance(body, dict) and field != "body.expected_version":
        body = {"expected_version": agent.version, **body}
    refused(agent.post("supersede", body), 400, **field_error(field, must_be, got))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"{no", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b'{"a":"\xff"}', "'utf-8' codec can't decode byte 0xff in position 6: invalid start byte"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", None),
    ],
    ids=["syntax", "not UTF-8", "too deep", "too long an integer"],
)
def test_a_body_that_is_no_json_is_refused(agent: Agent, raw: bytes, why: str | None) -> None:
    """400 naming the body, and at most 80 bytes of it are repeated."""
    answer = agent.stack.http.post(f"/v1/scopes/{agent.scope}/supersede", content=raw)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == ("invalid_field", "body")
    assert error["message"].startswith(f"body must be JSON ({why or ''}")
    assert len(error["message"]) < 400


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_the_other_verbs_take_a_version_and_nothing_else(agent: Agent, verb: str) -> None:
    """400 for a missing version and for a key that they would not read."""
    refused(agent.post(verb, {}), 400, **field_error("body.expected_version", PRESENT, None))
    body = {"expected_version": agent.version, "request": {}}
    only = "absent; known keys are expected_version"
    refused(agent.post(verb, body), 400, **field_error("body.request", only, {}))


@pytest.mark.parametrize("verb", VERBS)
def test_a_stale_or_future_version_is_a_conflict(agent: Agent, verb: str) -> None:
    """409 naming the current version, for every verb."""
    current = agent.version
    term, epoch = current.split(".")
    future = f"{term}.{int(epoch) + 7}"
    answer = agent.post(verb, {"expected_version": "0.9"})
    refused(answer, 409, **conflict(agent, "0.9", "stale", current))
    answer = agent.post(verb, {"expected_version": future})
    refused(answer, 409, **conflict(agent, future, "not committed yet", current))


def test_a_tagged_call_under_another_version_is_a_conflict(agent: Agent) -> None:
    """409 for a stale and for a future header; no token is computed for either."""
    current = agent.version
    for stated, kind in (("0.9", "stale"), ("1.77", "not committed yet")):
        tagged = {**agent.headers, "x-retire-version": stated}
        body = agent.stack.body("x")
        answer = agent.stack.http.post("/v1/completions", json=body, headers=tagged)
        refused(answer, 409, **conflict(agent, stated, kind, current))
        assert "x-retire-version" not in answer.headers


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "\u00e9"])
def test_a_malformed_idempotency_key_is_refused(agent: Agent, key: str) -> None:
    """400 naming the header and its form."""
    body = {"expected_version": agent.version}
    path = f"/v1/scopes/{agent.scope}/supersede"
    answer = agent.stack.http.post(path, json=body, headers={b"idempotency-key": key.encode()})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == ("invalid_field", "idempotency-key")
    assert "1 to 255 printable ASCII characters, no space" in error["message"]


def test_headers_that_contradict_each_other_are_refused(agent: Agent) -> None:
    """A version without a scope, two scopes, a tenant that is no DNS label."""
    body, http = agent.stack.body("x"), agent.stack.http
    answer = http.post("/v1/completions", json=body, headers={"x-retire-version": "1.0"})
    alone = field_error("x-retire-scope", "present when x-retire-version is", None)
    refused(answer, 400, **alone)
    twice = [("x-retire-scope", agent.scope), ("x-retire-scope", "other")]
    answer = http.post("/v1/completions", json=body, headers=twice)
    refused(answer, 400, **field_error("x-retire-scope", "given once", "other"))
    answer = http.post(
        "/v1/completions", json=body, headers=agent.stack.headers("s", "Not_A_Label")
    )
    label = "a DNS label: a-z, 0-9 and '-', at most 63"
    refused(answer, 400, **field_error("x-retire-tenant", label, "Not_A_Label"))


def test_a_scope_of_another_tenant_looks_like_none(agent: Agent) -> None:
    """404 for every verb, byte for byte what a scope nobody has answers: no leak, no effect."""
    stranger = {"x-retire-tenant": "stranger"}
    message = "no scope {!r} for this tenant; open it with a tagged request first"
    for verb in (*VERBS, ""):
        path = "/v1/scopes/{}" + f"/{verb}" * bool(verb)
        method, body = ("POST", {"expected_version": agent.version}) if verb else ("GET", None)
        answers = {
            name: agent.stack.http.request(method, path.format(name), json=body, headers=stranger)
            for name in (agent.scope, "bad-never")
        }
        for name, answer in answers.items():
            error = {"code": "unknown_scope", "type": "not_found", "message": message.format(name)}
            refused(answer, 404, **error)
        theirs, nobodys = answers[agent.scope], answers["bad-never"]
        assert theirs.content.replace(agent.scope.encode(), b"bad-never") == nobodys.content
        assert set(theirs.headers) == set(nobodys.headers)
    listed = agent.stack.http.get("/v1/scopes", headers=stranger).json()["scopes"]
    assert agent.scope not in [scope["scope"] for scope in listed]


def test_an_idempotency_key_is_for_one_body(stack: Stack) -> None:
    """The same body again: the same receipt, ``replayed``, one commit. Another body: 422."""
    agent = Agent.new(stack, "idempotent")
    first = agent.opened()
    key, body = {"idempotency-key": f"once-{agent.scope}"}, {"expected_version": first}
    body["request"] = stack.body("hello", max_tokens=3)
    made = agent.post("supersede", {**body, "stream": False}, key)
    assert made.status_code == 200 and made.headers["idempotency-key"] == key["idempotency-key"]
    receipt = made.json()["receipt"]
    assert receipt["replayed"] is False and receipt["from_version"] == first
    again = agent.post("supersede", {**body, "stream": False}, key)
    assert again.status_code == 200
    assert again.json() == {"receipt": {**receipt, "replayed": True}, "response": None}
    other = agent.post("supersede", {**body, "stream": True}, key)
    message = f"Idempotency-Key 'once-{agent.scope}' was used with another body; use a new key"
    refused(other, 422, code="idempotency", type="conflict", message=message)
    cancelled = agent.post("cancel", {"expected_version": receipt["to_version"]}, key)
    refused(cancelled, 422, code="idempotency", type="conflict", message=message)
    assert agent.version == receipt["to_version"]
    assert len(agent.view()["receipts"]) == 1


def test_a_cancelled_scope_refuses_everything(stack: Stack) -> None:
    """409 for every verb, whatever version it states, and for tagged work; it can still be read."""
    agent = Agent.new(stack, "cancelled")
    flow = agent.stream("a plan", max_tokens=3000).tokens_at_least(2)
    first = agent.version
    done = agent.post(
        "cancel", {"expected_version": first}, {"idempotency-key": f"end-{agent.scope}"}
    )
    assert done.status_code == 200
    current = done.json()["version"]
    assert flow.ended().error is not None and flow.error is not None
    assert flow.error["code"] == "cancelled"
    message = f"scope {agent.scope!r} was cancelled at {current}; use another scope name"
    closed = {"code": "scope_cancelled", "type": "conflict", "message": message}
    closed["current"] = current
    for verb in VERBS:
        for stated in (first, current):
            refused(agent.post(verb, {"expected_version": stated}), 409, **closed)
    for stated in (first, current, None):
        tagged = agent.headers | ({"x-retire-version": stated} if stated else {})
        answer = stack.http.post("/v1/completions", json=stack.body("x"), headers=tagged)
        refused(answer, 409, **closed)
    replayed = agent.post(
        "cancel", {"expected_version": first}, {"idempotency-key": f"end-{agent.scope}"}
    )
    assert replayed.json() == {
        **done.json(),
        "receipt": replayed.json()["receipt"],
        "replayed": True,
    }
    assert replayed.json()["receipt"] | {"replayed": False} == done.json()["receipt"]
    assert agent.view()["phase"] == "cancelled" and agent.version == current


def test_a_deeply_nested_successor_does_not_hurt_the_server(stack: Stack) -> None:
    """A body at the edge of what JSON may nest is answered, whatever it asks."""
    agent = Agent.new(stack, "deep")
    version = agent.opened()
    nested = json.dumps({"expected_version": version, "stream": False, "request": {"prompt": 0}})
    raw = nested.replace('"prompt": 0', '"prompt": ' + "[" * 900 + "]" * 900)
    answer = stack.http.post(f"/v1/scopes/{agent.scope}/supersede", content=raw.encode())
    assert answer.status_code in (200, 400), answer.text
    assert stack.http.get("/health").status_code == 200

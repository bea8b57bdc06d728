"""Thousands of calls nobody wrote, as one tenant, against a real sidecar and registry: no 5xx,
answers as documented, nothing of another tenant. Controls: a planted crash, a planted leak.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import schemathesis
from http_contract_world import SECRET, TOKENS, Api, api_at
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from page_world import World
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.responses import JSONResponse, Response

from retire.engine import openapi, scope_calls
from retire.engine.routes import ScopeRoutes
from retire.protocol.errors import UnknownScope

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
# Made before any thread runs: schemathesis imports much of itself only then.
OPERATIONS = [
    found.ok() for found in schemathesis.openapi.from_dict(openapi.document()).get_all_operations()
]
SCOPES = ("plan", "other", SECRET, "never-opened", "a/b", "ü", "%", "x" * 256)


@dataclass
class Fuzz:
    """One run: what was sent, what came back, what is wrong with it."""

    api: Api
    examples: int
    statuses: dict[str, set[int]] = field(default_factory=dict)
    calls: int = 0

    def all(self) -> None:
        """Every operation; raises the first finding."""
        for operation in OPERATIONS:
            self._operation(operation)

    def _operation(self, operation: Any) -> None:
        quiet = settings(
            max_examples=self.examples, deadline=None, database=None, derandomize=True,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        chosen = st.one_of(operation.as_strategy(), _sharper(operation, self.api))
        quiet(given(chosen)(self._call))()

    def _call(self, case: Any) -> None:
        headers = {"authorization": f"Bearer {TOKENS['acme']}"}
        answer = case.call(base_url=self.api.url, headers=headers, timeout=60)
        self.calls += 1
        self.statuses.setdefault(case.operation.label, set()).add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)
        sent = f"{answer.request.url} {answer.request.headers} {answer.request.body!r}"
        assert SECRET in sent or SECRET not in answer.text, f"a leak: {answer.text}"
        if SECRET in str(answer.request.url):
            assert answer.status_code in (400, 403, 404, 405), answer.text


def _sharper(operation: Any, api: Api) -> st.SearchStrategy[Any]:
    """The same with scopes that exist (one of them another tenant's) and versions that may be
    current: what is drawn blindly seldom gets past the first check."""

    def sharpen(case: Any, scope: str, version: str, tenant: str | None) -> Any:
        if case.path_parameters:
            case.path_parameters["scope"] = scope
        if isinstance(case.body, dict) and "expected_version" in case.body:
            at = scope if scope in ("plan", "other") else "plan"
            case.body["expected_version"] = version or api.version(at)
        case.headers = {**(case.headers or {})}
        case.headers.pop("x-retire-tenant", None)
        if tenant:
            case.headers["x-retire-tenant"] = tenant
        return case

    return st.builds(
        sharpen,
        operation.as_strategy(),
        st.sampled_from(SCOPES),
        st.sampled_from(("", "", "", "1.0", "1.1", "0.0")),
        st.sampled_from((None, None, "acme", "globex")),
    )


def test_no_call_breaks_it(api: Api):
    """No 5xx, every answer as the document says, nothing of the other tenant; and the calls got
    through: reads and changes succeeded, or were refused as stale, unknown or malformed."""
    before = api.get(f"/v1/scopes/{SECRET}", "globex")
    fuzz = Fuzz(api, examples=40)
    fuzz.all()
    print(f"{fuzz.calls} calls: {fuzz.statuses}")
    seen = set().union(*fuzz.statuses.values())
    assert {200, 400, 403, 404, 409} <= seen
    assert 200 in fuzz.statuses["POST /v1/scopes/{scope}/supersede"]
    assert api.get(f"/v1/scopes/{SECRET}", "globex") == before, "nobody else moved it"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe", b'{"a":' * 20_000, b"null", b"0"])
@pytest.mark.parametrize("verb", ["supersede", "cancel", "pause", "resume"])
def test_what_is_no_json_object_is_refused(api: Api, verb: str, raw: bytes):
    """400, naming the body; schemathesis only sends JSON."""
    headers = {"authorization": f"Bearer {TOKENS['acme']}"}
    url = f"{api.url}/v1/scopes/plan/{verb}"
    answer = httpx.post(url, content=raw, headers=headers, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["field"].startswith("body")


class Crashing(ScopeRoutes):
    """A planted fault: a scope without a letter in its name is taken for a number."""

    async def get_scope(self, request: Any) -> Response:
        name = self._key(request).scope
        if not any(c.isalpha() for c in name):
            return JSONResponse({"error": {"code": "error", "type": "x", "message": "x"}}, 500)
        return await super().get_scope(request)


class Leaking(ScopeRoutes):
    """A planted fault: a list of every tenant's scopes, unfiltered."""

    async def list_scopes(self, request: Any) -> Response:
        views = await self._server.link().client().list("")
        return JSONResponse({"scopes": [scope_calls.scope_json(view) for view in views]})


class Confused(ScopeRoutes):
    """A planted fault: a scope that this tenant does not have is looked for in the other's."""

    async def get_scope(self, request: Any) -> Response:
        with contextlib.suppress(UnknownScope):
            return await super().get_scope(request)
        view = await self._server.link().client().inspect(_other(self._key(request)))
        return JSONResponse(scope_calls.scope_json(view))


def _other(key: Any) -> Any:
    return type(key)("globex", SECRET)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(Crashing, "Server error"), (Leaking, "a leak"), (Confused, "a leak|in \\(400")],
    ids=["crash", "leaking-list", "leaking-scope"],
)
def test_a_planted_fault_would_be_found(world: World, fault: type[ScopeRoutes], said: str):
    """Controls: the same run finds a crash, a list that is not filtered, a scope that leaks."""
    with api_at(world, fault) as broken, pytest.raises(BaseException) as found:
        Fuzz(broken, examples=30).all()
    assert re.search(said, f"{found.value!r} {found.value}")

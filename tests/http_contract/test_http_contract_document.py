"""The OpenAPI document: fresh, served, complete, and true of what the server says."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from http_contract_world import Api
from jsonschema import Draft202012Validator
from starlette.applications import Starlette

from retire.engine import openapi
from retire.engine.openapi_schemas import ERROR_STATUS, error_codes
from retire.engine.routes import ScopeRoutes

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


def undocumented(app: Starlette, document: dict) -> set[tuple[str, str]]:
    """(method, path) of routes that the document does not name, or names without one."""
    routes = {
        (method.lower(), route.path.replace(":path", ""))
        for route in app.routes
        for method in route.methods - {"HEAD"}
        if route.path != openapi.PATH
    }
    named = {
        (method, path)
        for path, item in document["paths"].items()
        for method in item.keys() - {"parameters"}
    }
    return routes ^ named


def test_the_committed_document_is_fresh_and_served(api: Api):
    """`python -m retire.engine.openapi > docs/openapi.json` when not; no token is needed."""
    served = httpx.get(f"{api.url}{openapi.PATH}", timeout=60)
    assert served.json() == openapi.document() == json.loads(COMMITTED.read_text())


def test_every_route_is_documented():
    """And nothing else is; control: one route more would be seen."""
    app = Starlette()
    ScopeRoutes(None).attach(app)  # type: ignore[arg-type]
    assert undocumented(app, openapi.document()) == set()
    app.router.add_route("/v1/scopes/{scope}/forget", lambda _: None, methods=["POST"])
    assert undocumented(app, openapi.document()) == {("post", "/v1/scopes/{scope}/forget")}


def test_every_error_of_the_tree_has_its_place():
    """Each status of the tree is described with its codes."""
    assert set(ERROR_STATUS) == set(openapi._STATUS_TEXT)
    assert error_codes(404) == ["unknown_scope"]
    assert {"superseded", "version_conflict", "scope_cancelled"} <= set(error_codes(409))
    assert "lease_expired" in error_codes(503)


@pytest.mark.parametrize("name", sorted(openapi.document()["components"]["schemas"]))
def test_each_schema_is_one(name: str):
    """JSON Schema, draft 2020-12, as OpenAPI 3.1 says."""
    Draft202012Validator.check_schema(openapi.document()["components"]["schemas"][name])

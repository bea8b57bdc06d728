"""The HTTP contract as an OpenAPI document: made from the code that enforces it. Pure.

Owns what is said of each ``/v1/scopes`` route; ``docs/openapi.json`` is this document, and every
server answers it at ``/retire/openapi.json``. Must never import vLLM.

``python -m retire.engine.openapi`` prints it.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from retire.engine.openapi_schemas import ERROR_STATUS, SCHEMAS, error_codes

if TYPE_CHECKING:
    from collections.abc import Iterable

PATH: Final = "/retire/openapi.json"
_TITLE: Final = "Retire: scopes and versions"
_ABOUT: Final = """Routes that Retire adds to vLLM's OpenAI-compatible server.

Any OpenAI call is tagged by the header `x-retire-scope` (components/parameters describes the tags);
the answer carries its version in the header `x-retire-version` and in every chunk."""
_READS: Final = (400, 401, 403, 404, 503)
_CHANGES: Final = (400, 401, 403, 404, 409, 422, 429, 503)
_STATUS_TEXT: Final = {
    400: "A value that names its field and what it must be",
    401: "No bearer token, or nobody vouches for it",
    403: "The token is of another tenant than the header, or of none",
    404: "Never opened, or another tenant's: the answers are the same",
    409: "Another version is current, or the scope does not take this now; nothing has happened",
    422: "The idempotency key was used with another body",
    429: "Over quota, or too many inputs wait",
    503: "Not now; retry with the same idempotency key",
}


def document() -> dict[str, Any]:
    """The whole document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": _TITLE,
            "version": metadata.version("retire"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8000"}],
        "security": [{}, {"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "parameters": _parameters(),
            "headers": _headers(),
            "responses": {f"Error{status}": _error(status) for status in ERROR_STATUS},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, Any]:
    scope = "/v1/scopes/{scope}"
    supersede = _change("supersede", "Supersede", "Retire the version and start its successor")
    supersede["responses"]["200"]["content"]["text/event-stream"] = {
        "schema": {
            "type": "object",
            "required": ["data"],
            "properties": {
                "data": {"type": "string"},
                "event": {"enum": ["retire.receipt", "message"]},
            },
            "description": (
                "Each event. The first is retire.receipt, its data a Receipt as JSON; then come"
                " the successor's ordinary chunks, and [DONE]"
            ),
        }
    }
    return {
        "/v1/scopes": {
            "get": _operation("listScopes", "Every scope of the caller's tenant", "ScopeList"),
        },
        scope: {
            "parameters": [_ref("parameters", "scope")],
            "get": _operation("getScope", "One scope: version, requests, pins, receipts", "Scope"),
        },
        f"{scope}/supersede": {"parameters": [_ref("parameters", "scope")], "post": supersede},
        **{
            f"{scope}/{verb}": {
                "parameters": [_ref("parameters", "scope")],
                "post": _change(verb, "Change", summary),
            }
            for verb, summary in (
                ("cancel", "Retire the scope for good"),
                ("pause", "Stop the work; its authority stays"),
                ("resume", "Let it go on"),
            )
        },
    }


def _operation(name: str, summary: str, answer: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_ref("parameters", "x-retire-tenant")],
        "responses": _responses(answer, _READS),
    }


def _change(verb: str, body: str, summary: str) -> dict[str, Any]:
    answer = "Superseded" if verb == "supersede" else "Changed"
    responses = _responses(answer, _CHANGES)
    responses["200"]["headers"] = {"idempotency-key": _ref("headers", "idempotency-key")}
    names = ("x-retire-tenant", "idempotency-key", "traceparent")
    return {
        "operationId": f"{verb}Scope",
        "summary": summary,
        "parameters": [_ref("parameters", name) for name in names],
        "requestBody": {"required": True, "content": _json(body)},
        "responses": responses,
    }


def _responses(answer: str, refusals: Iterable[int]) -> dict[str, Any]:
    refused = {str(status): _ref("responses", f"Error{status}") for status in refusals}
    return {"200": {"description": "Done", "content": _json(answer)}, **refused}


def _error(status: int) -> dict[str, Any]:
    codes = error_codes(status)
    one = {"allOf": [{"$ref": "#/components/schemas/Error"}], "properties": {}}
    one["properties"]["error"] = {"properties": {"code": {"enum": codes}}}
    found: dict[str, Any] = {
        "description": _STATUS_TEXT[status],
        "content": {"application/json": {"schema": one}},
    }
    if status in (429, 503):
        found["headers"] = {"retry-after": _ref("headers", "retry-after")}
    return found


def _headers() -> dict[str, Any]:
    return {
        "idempotency-key": {
            "description": "The key of the call, made here where none was sent",
            "schema": {"type": "string"},
        },
        "retry-after": {"description": "Seconds", "schema": {"type": "integer", "minimum": 0}},
    }


def _parameters() -> dict[str, Any]:
    version = {"$ref": "#/components/schemas/Version"}
    name = {"type": "string", "minLength": 1, "maxLength": 255, "not": {"enum": [".", ".."]}}
    tenant = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
    policy = {"$ref": "#/components/schemas/Policy"}
    key = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"}
    return {
        "scope": {
            "name": "scope", "in": "path", "required": True, "schema": name,
            "description": "Percent-encoded UTF-8; %2F is a slash within the name",
        },
        "x-retire-tenant": _header("x-retire-tenant", tenant, "Where no token names the tenant"),
        "idempotency-key": _header("idempotency-key", key, "Repeats a call safely"),
        "traceparent": _header("traceparent", {"type": "string"}, "W3C trace context"),
        "x-retire-scope": _header("x-retire-scope", name, "Tags any OpenAI call"),
        "x-retire-version": _header("x-retire-version", version, "Absent: the current one"),
        "x-retire-parent": _header("x-retire-parent", name, "Scope that this one is part of"),
        "x-retire-on-new-input": _header("x-retire-on-new-input", policy, "While work runs"),
    }  # fmt: skip


def _header(name: str, schema: dict[str, Any], about: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": schema, "description": about}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


if __name__ == "__main__":
    print(json.dumps(document(), indent=1))

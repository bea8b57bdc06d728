"""Schemas of the HTTP contract, from the enums, limits and errors of the protocol. Data only.

Must never import vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from retire.protocol.contract import TTL_DEFAULT_S, TTL_MAX_S, Equivalence, Inherit, Policy, Tier
from retire.protocol.errors import RetireError
from retire.protocol.schema import RECEIPT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import Enum

# Of a call whose version lost its authority while it ran (engine/publication.py).
_ENDED: Final = ("superseded", "cancelled")
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}


def error_codes(status: int) -> list[str]:
    """Every ``code`` that comes with an HTTP status."""
    ended = _ENDED if status == 409 else ()
    codes = {kind.code for kind in _tree(RetireError) if kind.http_status == status}
    return sorted({*codes, *ended})


def _tree(kind: type[RetireError]) -> Iterator[type[RetireError]]:
    for child in kind.__subclasses__():
        if child.__module__ == RetireError.__module__:  # others are never sent over HTTP
            yield child
            yield from _tree(child)


ERROR_STATUS: Final = tuple(sorted({kind.http_status for kind in _tree(RetireError)}))


def _words(kind: type[Enum]) -> dict[str, Any]:
    return {"enum": [member.value for member in kind]}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _answer(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object that is told: everything is there."""
    return {"type": "object", "properties": properties, "required": [*properties], **more}


def _body(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """An object that is asked: what it does not know is refused."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


_CONTRACT: Final = _body(
    {
        "equivalence": {**_words(Equivalence), "default": Equivalence.EXACT.value},
        "inherit": {**_words(Inherit), "default": Inherit.CERTIFIED.value},
        "tier": {**_words(Tier), "default": Tier.HBM.value},
        "ttl_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": TTL_MAX_S,
            "default": TTL_DEFAULT_S,
            "description": "How long an unclaimed prefix stays pinned, in seconds",
        },
        "fence_bound_ms": {
            "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}],
            "description": "Longest residual work that the caller accepts; null: the engine's own",
        },
    }
)
_REQUEST: Final = {
    "type": "object",
    "description": 'An OpenAI chat ("messages") or completion ("prompt") body',
    "anyOf": [{"required": ["messages"]}, {"required": ["prompt"]}],
    "properties": {"stream": {"type": ["boolean", "null"]}},
}
_LIVE_REQUEST: Final = _answer(
    {
        "request_id": {"type": "string"},
        "state": {"type": "string"},
        "prompt_tokens": _COUNT,
        "output_tokens": _COUNT,
    }
)

SCHEMAS: Final[dict[str, Any]] = {
    "Version": {
        "type": "string",
        "pattern": r"^(0|[1-9][0-9]{0,7})\.(0|[1-9][0-9]{0,12})$",
        "description": "term.epoch, compared lexicographically",
        "examples": ["1.4"],
    },
    "Policy": {**_words(Policy), "description": "A new input while work of the scope runs"},
    "Contract": _CONTRACT,
    "Supersede": _body(
        {
            "expected_version": _ref("Version"),
            "contract": _or_null(_ref("Contract")),
            "request": _or_null(_REQUEST),
            "stream": {"type": ["boolean", "null"], "description": "Of the call; default true"},
        },
        "expected_version",
    ),
    "Change": _body({"expected_version": _ref("Version")}, "expected_version"),
    "Receipt": RECEIPT_SCHEMA,
    "Superseded": _answer(
        {"receipt": _ref("Receipt"), "response": {"type": ["object", "null"]}},
    )
    | {"description": "With `error` where the engine refused the successor"},
    "Changed": _answer(
        {
            "from_version": _ref("Version"),
            "version": _ref("Version"),
            "receipt": _or_null(_ref("Receipt")),
            "replayed": _FLAG,
        }
    ),
    "Scope": _answer(
        {
            "scope": {"type": "string"},
            "tenant": {"type": "string"},
            "version": _ref("Version"),
            "phase": {"type": "string"},
            "on_new_input": _or_null(_ref("Policy")),
            "parent": _TEXT_OR_NULL,
            "paused": _FLAG,
            "cancelled": _FLAG,
            "pinned_blocks": _COUNT,
            "nodes": _list_of({"type": "string"}),
            "requests": _list_of(_LIVE_REQUEST),
            "receipts": _list_of(_ref("Receipt")),
        }
    ),
    "ScopeList": _answer({"scopes": _list_of(_ref("Scope"))}),
    "Error": _answer(
        {
            "error": {
                "type": "object",
                "required": ["code", "type", "message"],
                "properties": {
                    "code": {"type": "string"},
                    "type": {"type": "string"},
                    "message": {"type": "string"},
                },
            }
        }
    ),
}

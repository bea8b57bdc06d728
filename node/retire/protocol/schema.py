"""The JSON Schema (draft 2020-12) of a receipt on the wire (promise C8). Data only."""

from __future__ import annotations

from typing import Any, Final

RECEIPT_SCHEMA_NUMBER: Final = 1

_COUNT: Final = {"type": "integer", "minimum": 0}
_COUNT_OR_NULL: Final = {"type": ["integer", "null"], "minimum": 0}
_MS: Final = {"type": "number", "minimum": 0}
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_VERSION: Final = {"type": "string", "pattern": r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


_GATE: Final = _object(
    {"gate": _TEXT, "outcome": {"enum": ["acked", "lease_ended"]}, "ms": _MS},
)
_PARTICIPANT: Final = _object(
    {
        "node": _TEXT,
        "boot_id": _TEXT,
        "pp_rank": _COUNT,
        "tp_rank": _COUNT,
        "kv_group": _COUNT,
        "frontier_tokens": _COUNT,
        "closed": {"type": "boolean"},
    }
)
_REQUEST: Final = _object(
    {
        "request_id": _TEXT,
        "state": {"enum": ["queued", "prefill", "decode", "finished"]},
        "prompt_tokens": _COUNT,
        "frontier_tokens": _COUNT,
        "last_published_index": _COUNT_OR_NULL,
    }
)
_FENCE: Final = _object(
    {
        "branch": {"enum": ["quantum", "layer_stop", "finish"]},
        "predicted_ms": {"type": ["number", "null"], "minimum": 0},
    }
)
_PIN: Final = _object(
    {
        "blocks": _COUNT,
        "tier": {"enum": ["hbm", "dram"]},
        "expires_s": {"type": "number"},
        "quota_left": _COUNT_OR_NULL,
    }
)
_STOP_REASONS: Final = [
    "whole_prompt",
    "first_difference",
    "frontier",
    "block_boundary",
    "window",
    "quota",
    "contract",
    "fingerprint",
    "generation",
    "restore",
    "no_predecessor",
]

RECEIPT_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Receipt of a SUPERSEDE",
    **_object(
        {
            "schema": {"const": RECEIPT_SCHEMA_NUMBER},
            "tenant": _TEXT,
            "scope": _TEXT,
            "from_version": _VERSION,
            "to_version": _VERSION,
            "stages_ms": {"type": "object", "additionalProperties": _MS},
            "gates": _list_of(_GATE),
            "participants": _list_of(_PARTICIPANT),
            "requests": _list_of(_REQUEST),
            "residual_ms": {"type": ["number", "null"], "minimum": 0},
            "fence": {"anyOf": [_FENCE, {"type": "null"}]},
            "frontier_tokens": _COUNT,
            "inheritable_tokens": _COUNT,
            "certified_tokens": _COUNT,
            "first_difference": _COUNT_OR_NULL,
            "stop_reason": {"enum": [*_STOP_REASONS, None]},
            "pin": {"anyOf": [_PIN, {"type": "null"}]},
            "successor_request_id": _TEXT_OR_NULL,
            "error": {"type": ["object", "null"]},
            "trace_id": _TEXT_OR_NULL,
            "replayed": {"type": "boolean"},
            "extra": {"type": "object"},
        }
    ),
}

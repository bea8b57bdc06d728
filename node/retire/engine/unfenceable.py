"""Calls that could not be fenced, refused before they act: never served as if they were. Pure.

Owns the reasons that a path or a body shows; those that only the engine's parameters show are in
``seams/tags.py``, those of a whole model in ``seams/fenceable.py``. Must never do IO.
"""

from __future__ import annotations

import json
from typing import Any, Final

from retire.protocol.errors import InvalidField

# The last part of paths whose requests make no tokens and carry no version.
POOLING: Final = frozenset(("embeddings", "embed", "pooling", "classify", "score", "rerank"))
_RESPONSES: Final = "/v1/responses"
_LATER: Final = "its output is kept and read later, by calls that no version guards"


def is_pooling(path: str) -> bool:
    """Whether a call asks for vectors or scores instead of tokens."""
    return path.rstrip("/").rpartition("/")[2] in POOLING


def keeps_output(path: str) -> bool:
    """Whether the body of a call may ask that its output is kept; then look into it."""
    return path.rstrip("/").endswith(_RESPONSES)


def refuse_pooling(path: str, scope: str) -> InvalidField:
    """A pooling call that names a scope."""
    return InvalidField(
        "x-retire-scope", scope, f"absent for {path}: it makes no tokens, so nothing can be fenced"
    )


def refuse_websocket(path: str) -> InvalidField:
    """A WebSocket whose headers name a scope."""
    return InvalidField(
        "x-retire-scope", "a WebSocket",
        f"absent for {path}: only answers over HTTP are gated; use POST /v1/chat/completions",
    )  # fmt: skip


def refusal_of_kept(body: bytes, *, store: bool) -> InvalidField | None:
    """A Responses call that would outlive its answer; None: it does not, or is no such body.

    ``store``: this server keeps answers unless it is told not to.
    """
    try:
        asked: Any = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return None  # vLLM says what is wrong with it
    if not isinstance(asked, dict):
        return None
    if asked.get("background"):
        return _must("background", asked["background"], "absent or false")
    if store and asked.get("store", True) is not False:
        return _must("store", asked.get("store"), "false")
    return None


def _must(field: str, value: object, must_be: str) -> InvalidField:
    return InvalidField(field, value, f"{must_be} in a request with x-retire-scope: {_LATER}")

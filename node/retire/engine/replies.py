"""Errors as HTTP: the JSON of the error tree, written once. Must never decide anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import RetireError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from retire.engine.asgi import Send

NO_SIDECAR: Final = (
    "this server has no sidecar, so it cannot serve scopes; set RETIRE_SIDECAR to its socket "
    "and RETIRE_MAILBOX to its mailbox, or leave out x-retire-scope"
)
CONFLICT: Final = 409
# OpenAI's and Anthropic's clients send a 409 again by themselves unless they are told not to. An
# input whose version was superseded would come back as a new one, and may abandon what replaced it.
NO_RETRY: Final = {"x-should-retry": "false"}
_TYPES: Final = {
    400: "invalid_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    422: "conflict",
    429: "quota",
}


def error_json(error: RetireError) -> dict[str, Any]:
    """``{"error": {"code", "type", "message", ...details}}``."""
    kind = _TYPES.get(error.http_status, "unavailable")
    return {"error": {"code": error.code, "type": kind, "message": str(error), **error.details()}}


def error_headers(error: RetireError) -> dict[str, str]:
    """What a client's HTTP library should know: whether a retry helps, how to authenticate."""
    if error.http_status == Unauthenticated.http_status:
        return {"www-authenticate": 'Bearer realm="retire"'}
    if error.http_status == CONFLICT:
        return NO_RETRY
    if error.http_status not in (Unavailable.http_status, 429):
        return {}
    return {"retry-after": str(getattr(error, "retry_after_s", Unavailable.retry_after_s))}


async def send_error(send: Send, error: RetireError) -> None:
    """Answer an ASGI call with ``error``."""
    body = json.dumps(error_json(error)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    raw = [(k.encode(), v.encode()) for k, v in (headers | error_headers(error)).items()]
    await send({"type": "http.response.start", "status": error.http_status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

"""Errors of the Kubernetes API, translated once, here. The rest is ``retire.protocol.errors``.

RetireError
├── ObjectMissing        the object is not there (404)
├── WriteConflict        somebody changed the object meanwhile (409): read it again
├── AccessDenied         RBAC does not allow the call (401, 403)
├── ObjectRefused        the API server refuses what was written (other 4xx)
└── Unavailable
    └── ApiUnavailable   no answer, or one that is to be tried again (429, 5xx)
"""

from __future__ import annotations

import json
from typing import Any

from retire.protocol.errors import RetireError, Unavailable


class ObjectMissing(RetireError):
    """The object is not there."""

    code = "object_missing"
    http_status = 404


class WriteConflict(RetireError):
    """The object was changed meanwhile, or exists already; nothing was written."""

    code = "write_conflict"
    http_status = 409


class AccessDenied(RetireError):
    """The operator's role does not allow the call."""

    code = "access_denied"
    http_status = 403


class ObjectRefused(RetireError):
    """The API server refuses the object as it was written."""

    code = "object_refused"
    http_status = 400


class ApiUnavailable(Unavailable):
    """The API server does not answer, or asks to be tried again."""

    code = "api_unavailable"


_BY_STATUS: dict[int, type[RetireError]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: ObjectMissing,
    409: WriteConflict,
    410: ApiUnavailable,  # a list or watch position that expired
    429: ApiUnavailable,
}


def from_api(what: str, *, status: int | None, body: object) -> RetireError:
    """The error for an answer of the API server; ``what`` names the call ("get secret a/b")."""
    if not status or status >= 500:
        kind: type[RetireError] = ApiUnavailable
    else:
        kind = _BY_STATUS.get(status, ObjectRefused)
    return kind(f"{what}: {_message(body) or f'HTTP {status}'}")


def _message(body: object) -> str:
    """The message of a Kubernetes Status object, else the text itself."""
    try:
        parsed: Any = json.loads(body) if isinstance(body, (str, bytes)) else body
        return str(parsed["message"])
    except (ValueError, KeyError, TypeError):
        return str(body or "")[:500]

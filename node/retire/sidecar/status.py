"""Errors of the tree on the wire: gRPC status plus ``retire-error-bin`` (JSON) in trailing
metadata.

The one place where an exception becomes a status and a status an exception. Must never decide.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import grpc

from retire.protocol import errors
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

METADATA_KEY: Final = "retire-error-bin"

_STATUS: Final[tuple[tuple[type[errors.RetireError], grpc.StatusCode], ...]] = (
    (errors.InvalidField, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (errors.UnknownScope, grpc.StatusCode.NOT_FOUND),
    (errors.IdempotencyConflict, grpc.StatusCode.ALREADY_EXISTS),
    (errors.QuotaExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.CapacityExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.RetireError, grpc.StatusCode.FAILED_PRECONDITION),
)

# wire field -> (attribute of the exception, how to read it)
_ATTRIBUTES: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "version": ("expected", Version.parse),
    "current": ("current", Version.parse),
    "field": ("field", str),
    "quota_left": ("left", int),
}


def status_of(error: errors.RetireError) -> grpc.StatusCode:
    """The gRPC status of an error of the tree."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def encode(error: errors.RetireError) -> bytes:
    """``{"code", "message", ...details}`` as UTF-8 JSON."""
    body = {"code": error.code, "message": str(error), **error.details()}
    return json.dumps(body, separators=(",", ":")).encode("utf-8", "backslashreplace")


def decode(blob: bytes) -> errors.RetireError:
    """The exception that :func:`encode` wrote, in the same class with the same attributes."""
    body = json.loads(blob)
    kind = _by_code().get(body.get("code"), errors.RetireError)
    error = kind.__new__(kind)
    Exception.__init__(error, body.get("message", ""))
    for name, (attribute, read) in _ATTRIBUTES.items():
        if name in body:
            setattr(error, attribute, read(body[name]))
    return error


def from_rpc(error: grpc.aio.AioRpcError) -> errors.RetireError:
    """The same exception the server raised; Unavailable when there was no server to raise one."""
    for key, value in error.trailing_metadata() or ():
        if key == METADATA_KEY:
            return decode(value if isinstance(value, bytes) else value.encode())
    return errors.Unavailable(f"sidecar: {error.code().name.lower()}: {error.details()}")


def _by_code() -> dict[str, type[errors.RetireError]]:
    return {kind.code: kind for kind in _tree(errors.RetireError)}


def _tree(kind: type[errors.RetireError]) -> Iterable[type[errors.RetireError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)

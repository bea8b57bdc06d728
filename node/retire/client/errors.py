"""What a call can raise: the protocol's tree, plus what only a client can see.

RetireError
├── Superseded           409   the stream's version lost its authority; its terminal error
├── RequestRejected            the engine refused the OpenAI request (any other 4xx or 5xx)
├── NotVersioned               the server answered without versions: no Retire plugin there
├── StreamCorrupt              bytes that are no event stream, no JSON or no receipt
└── Unavailable
    ├── Unreachable            no connection, or it broke before an answer
    └── StreamInterrupted      the connection broke in the middle of a stream

Owns the mapping of wire errors to classes. Must never import httpx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from retire.protocol import errors
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


CANCELLED: Final = "cancelled"  # how the stream of a scope ends that was cancelled meanwhile


class Superseded(errors.RetireError):
    """A newer version of the scope is current. Everything yielded before this error was valid then.

    ``last_published_index`` is the index of the last output token the server delivered; None: none.
    """

    code = "superseded"
    http_status = 409

    def __init__(
        self, version: Version, current: Version | None, last_published_index: int | None
    ) -> None:
        newer = f"; current is {current}" if current is not None else ""
        super().__init__(f"version {version} was superseded{newer}")
        self.version = version
        self.current = current
        self.last_published_index = last_published_index


class RequestRejected(errors.RetireError):
    """The serving engine refused the request; ``status`` is its HTTP status."""

    code = "request_rejected"

    def __init__(self, status: int, message: str, body: object = None) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.body = body


class NotVersioned(errors.RetireError):
    """A scoped call was answered without a version."""

    code = "not_versioned"


class StreamCorrupt(errors.RetireError):
    """The server sent something that cannot be read."""

    code = "stream_corrupt"


class Unreachable(errors.Unavailable):
    """The server could not be reached, or hung up before it answered."""

    code = "unreachable"


class StreamInterrupted(errors.Unavailable):
    """The stream ended without its end mark; what was yielded is valid, the rest is unknown."""

    code = "stream_interrupted"


def error_of(
    body: object, *, status: int, version: Version | None = None, retry_after_s: float | None = None
) -> errors.RetireError:
    """The exception for a wire error ``{"error": {"code", "message", ...}}``.

    ``version`` stands in for a superseded stream's own version when the server left it out.
    """
    wire = _wire(body)
    code = wire.get("code")
    if code == Superseded.code:
        return _superseded(wire, version)
    kind = _by_code().get(code) if isinstance(code, str) else None
    if kind is None:
        kind = errors.Unavailable if status == errors.Unavailable.http_status else None
    message = str(wire.get("message") or f"no message; body {str(body)[:200]!r}")
    if kind is None and status == errors.Unauthenticated.http_status:  # vLLM's own answer
        return errors.Unauthenticated(f"{message}: the server wants its own API key; pass api_key")
    if kind is None:
        # In a stream the status line was 200 long ago: the engine's own error names its status.
        return RequestRejected(code if isinstance(code, int) else status, message, body)
    return _restored(kind, message, wire, retry_after_s)


def _wire(body: object) -> Mapping[str, Any]:
    if isinstance(body, dict):
        inner = body.get("error", body)
        return inner if isinstance(inner, dict) else {"message": inner}
    return {}


def _superseded(wire: Mapping[str, Any], version: Version | None) -> Superseded:
    stated = _version(wire.get("version")) or version
    if stated is None:
        raise StreamCorrupt(f"a superseded error without a version: {dict(wire)}")
    last = wire.get("last_published_index")
    return Superseded(
        stated, _version(wire.get("current")), last if isinstance(last, int) else None
    )


def _restored(
    kind: type[errors.RetireError], message: str, wire: Mapping[str, Any], retry: float | None
) -> errors.RetireError:
    # Constructors build messages from facts the wire does not carry; the server's own is better.
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    found: dict[str, Any] = {
        "expected": _version(wire.get("version")),
        "current": _version(wire.get("current")),
        "field": wire.get("field"),
        "left": wire.get("quota_left"),
        "retry_after_s": retry if retry is not None else wire.get("retry_after_s"),
    }
    for name, value in found.items():
        if value is not None:
            setattr(error, name, value)
    return error


def _version(value: object) -> Version | None:
    return Version.parse(value) if isinstance(value, str) else None


def _by_code() -> dict[str, type[errors.RetireError]]:
    return {kind.code: kind for kind in _tree(errors.RetireError)} | {CANCELLED: errors.ScopeClosed}


def _tree(kind: type[errors.RetireError]) -> Iterator[type[errors.RetireError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _tree(child)

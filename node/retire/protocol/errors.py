"""The error tree of Retire. Adapters translate at the edge, once.

RetireError                     code            HTTP
├── InvalidField                invalid_field    400   a value that names its field and the fix
├── Unauthenticated             unauthenticated  401   no bearer token, or nobody vouches for it
├── Forbidden                   forbidden        403   known, but not allowed to do this here
├── IllegalTransition           illegal          409   an event the scope's phase does not allow
├── UnknownScope                unknown_scope    404   also: a scope of another tenant (no leak)
├── VersionConflict             version_conflict 409   expected version is stale or in the future
├── ScopeClosed                 scope_cancelled  409   the scope was cancelled, terminally
├── PolicyRefused               policy_refused   409   onNewInput=reject and work is running
├── IdempotencyConflict         idempotency      422   same key, another body
├── QuotaExceeded               quota_exceeded   429   pins over quota; reuse falls back to cold
├── QueueFull                   queue_full       429   too many inputs of the scope wait already
├── CapacityExceeded            capacity         503   mailbox or table full
└── Unavailable                 unavailable      503   retry after ``retry_after_s``
    ├── RegistryUnavailable     registry_unavailable   cannot reach the registry
    ├── NeedRegister            need_register          the registry does not know this key
    ├── TermMismatch            term_mismatch          the registry was rebuilt or lost its data
    └── LeaseExpired            lease_expired          the node's publish lease has ended
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from retire.protocol.versions import ScopeKey, Version

_SHOWN = 120  # characters of a bad value that a message repeats


class RetireError(Exception):
    """Base of every operating error; ``code`` is stable and goes on the wire."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500

    def details(self) -> dict[str, Any]:
        """Extra fields of the wire form, besides ``code`` and ``message``."""
        return {}


class InvalidField(RetireError):
    """A malformed value. The message names the field and what it must be."""

    code = "invalid_field"
    http_status = 400

    def __init__(self, field: str, value: object, must_be: str) -> None:
        shown = repr(value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}... ({len(shown)} characters)"
        super().__init__(f"{field} must be {must_be}; got {shown}")
        self.field = field
        self.must_be = must_be

    def renamed(self, field: str, value: object) -> InvalidField:
        """The same complaint under the name by which the caller gave the value."""
        return InvalidField(field, value, self.must_be)

    def details(self) -> dict[str, Any]:
        """The field that is wrong."""
        return {"field": self.field}


class Unauthenticated(RetireError):
    """The caller has not shown who it is. The message never repeats the token."""

    code = "unauthenticated"
    http_status = 401


class Forbidden(RetireError):
    """The caller is known and may not do this: another tenant, another role, another transport."""

    code = "forbidden"
    http_status = 403


class IllegalTransition(RetireError):
    """The event does not fit the scope's phase; nothing changed."""

    code = "illegal"
    http_status = 409


class UnknownScope(RetireError):
    """No such scope for this tenant. A scope of another tenant answers exactly the same."""

    code = "unknown_scope"
    http_status = 404

    def __init__(self, scope: str) -> None:
        super().__init__(f"no scope {scope!r} for this tenant; open it with a tagged request first")


class VersionConflict(RetireError):
    """The expected version is not the current one; no effect."""

    code = "version_conflict"
    http_status = 409

    def __init__(self, key: ScopeKey, *, expected: Version, current: Version) -> None:
        kind = "stale" if expected < current else "not committed yet"
        super().__init__(
            f"scope {key.scope!r}: expected version {expected} is {kind}; current is {current}"
        )
        self.expected = expected
        self.current = current

    def details(self) -> dict[str, Any]:
        """What was expected and what is current."""
        return {"version": str(self.expected), "current": str(self.current)}


class ScopeClosed(RetireError):
    """The scope was cancelled; cancel is terminal."""

    code = "scope_cancelled"
    http_status = 409

    def __init__(self, key: ScopeKey, current: Version) -> None:
        super().__init__(f"scope {key.scope!r} was cancelled at {current}; use another scope name")
        self.current = current

    def details(self) -> dict[str, Any]:
        """The version at which the scope was cancelled."""
        return {"current": str(self.current)}


class PolicyRefused(RetireError):
    """The scope's policy does not admit this input while other work runs."""

    code = "policy_refused"
    http_status = 409


class IdempotencyConflict(RetireError):
    """An Idempotency-Key was used again with another body."""

    code = "idempotency"
    http_status = 422

    def __init__(self, idempotency_key: str) -> None:
        super().__init__(
            f"Idempotency-Key {idempotency_key!r} was used with another body; use a new key"
        )


class QuotaExceeded(RetireError):
    """A reservation over the tenant's quota."""

    code = "quota_exceeded"
    http_status = 429

    def __init__(self, tenant: str, *, asked: int, left: int) -> None:
        super().__init__(
            f"tenant {tenant!r}: {asked} pinned blocks asked, {left} left in its quota"
        )
        self.left = left

    def details(self) -> dict[str, Any]:
        """Blocks left in the quota."""
        return {"quota_left": self.left}


class QueueFull(RetireError):
    """Too many inputs of the scope wait already; this one was not queued."""

    code = "queue_full"
    http_status = 429


class CapacityExceeded(RetireError):
    """A fixed table of the node is full."""

    code = "capacity"
    http_status = 503


class Unavailable(RetireError):
    """Cannot answer now; nothing is known to have changed. Retry with the same idempotency key."""

    code = "unavailable"
    http_status = 503
    retry_after_s: ClassVar[int] = 1

    def details(self) -> dict[str, Any]:
        """When to try again."""
        return {"retry_after_s": self.retry_after_s}


class RegistryUnavailable(Unavailable):
    """The registry does not answer."""

    code = "registry_unavailable"


class NeedRegister(Unavailable):
    """The registry holds no such key. It is never taken as "start at 0"."""

    code = "need_register"


class TermMismatch(Unavailable):
    """The registry's term or incarnation is not ours: it was rebuilt, restored or lost its data."""

    code = "term_mismatch"
    held: int | None = None  # the registry's term, where that is what differs


class LeaseExpired(Unavailable):
    """The node's publish lease ended; scoped output is closed until it is renewed."""

    code = "lease_expired"

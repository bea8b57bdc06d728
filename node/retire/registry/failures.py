"""Translates what the server refuses, and what redis-py raises, into the error tree. Once, here."""

from __future__ import annotations

from typing import Final

import redis.exceptions as redis_errors

from retire.protocol.errors import (
    CapacityExceeded,
    IdempotencyConflict,
    InvalidField,
    NeedRegister,
    QuotaExceeded,
    RegistryUnavailable,
    RetireError,
    ScopeClosed,
    TermMismatch,
    UnknownScope,
    VersionConflict,
)
from retire.protocol.versions import EPOCH_MAX, ScopeKey, Version
from retire.registry.calls import Subject

_LOSS: Final = {
    "lost": "the registry lost this tenant's data",
    "behind": "the registry was rolled back: its commit sequence is {0}",
    "rewritten": "the registry was rolled back: an event seen before is not in it (tail {0})",
    "trimmed": "the stream was trimmed up to {0}: resync with a snapshot",
    "incarnation": "the tenant was created anew (incarnation {0})",
    "term": "the registry's term is {0}",
}


def refusal(text: str, subject: Subject) -> RetireError | None:
    """The error of a script's error reply ``CODE details``; None when no script of ours wrote
    it."""
    code, _, details = text.partition(" ")
    match code:
        case "TERMMISMATCH":
            return _term_mismatch(details, subject)
        case "NEEDREGISTER":
            return _need_register(details, subject)
        case "IDEMPOTENCY":
            return IdempotencyConflict(subject.idempotency_key)
        case "QUOTAEXCEEDED":
            return QuotaExceeded(subject.tenant, asked=subject.blocks, left=int(details))
        case "EPOCHS":
            return CapacityExceeded(f"scope {subject.key}: epoch {EPOCH_MAX} has no successor")
        case _ if subject.key is not None:
            return _scope_refusal(code, details, subject.key, subject)
        case _:
            return None


def _scope_refusal(code: str, details: str, key: ScopeKey, subject: Subject) -> RetireError | None:
    match code:
        case "VERSIONCONFLICT" if subject.expected is not None:
            return VersionConflict(key, expected=subject.expected, current=Version.parse(details))
        case "SCOPECLOSED":
            closed = ScopeKey(subject.tenant, subject.parent) if subject.parent else key
            return ScopeClosed(closed, Version.parse(details))
        case "UNKNOWNSCOPE":
            return UnknownScope(key.scope)
        case "PARENT":
            return InvalidField("parent", subject.parent, f"{details!r}: a parent never changes")
        case "CYCLE":
            return InvalidField(
                "parent", subject.parent, f"a scope that is not below {key.scope!r}"
            )
        case _:
            return None


def _term_mismatch(details: str, subject: Subject) -> TermMismatch:
    kind, _, value = details.partition(" ")
    asked = "" if subject.term is None else f"; the caller's term is {subject.term}"
    error = TermMismatch(f"tenant {subject.tenant!r}: {_LOSS[kind].format(value)}{asked}")
    error.held = int(value) if kind == "term" else None
    return error


def _need_register(details: str, subject: Subject) -> NeedRegister:
    match details:
        case "registry":
            text = "the registry is empty: it is new (open it with its first term) or lost its data"
        case "tenant":
            text = f"the registry holds no tenant {subject.tenant!r}: say hello, or rebuild it"
        case "parent":
            text = f"the registry holds no parent scope {subject.parent!r}: register it first"
        case "boot":
            text = "this boot of the node was replaced or forgotten: restart it under a new boot id"
        case _:
            scope = subject.key.scope if subject.key else ""
            text = f"the registry holds no scope {scope!r}: register it first"
    return NeedRegister(text)


def _is_acl(error: redis_errors.ResponseError) -> bool:
    # Redis 7.0 words a refusal inside a script in its own way, without NOPERM.
    inside = str(error).startswith("The user executing the script can't")
    return inside or isinstance(error, redis_errors.NoPermissionError)


def unavailable(error: Exception, where: str) -> RegistryUnavailable:
    """What redis-py raised, as RegistryUnavailable that names the registry and, if known, the
    fix."""
    match error:
        case (
            redis_errors.AuthenticationError() | redis_errors.AuthenticationWrongNumberOfArgsError()
        ):
            text = "refused the user name or password; check the registry URL"
        case redis_errors.ResponseError() if _is_acl(error):
            text = f"this user's ACL is too narrow ({error}); see retire.registry.acl"
        case redis_errors.OutOfMemoryError():
            text = "is out of memory and keeps what it has; raise its maxmemory"
        case redis_errors.ReadOnlyError():
            text = "is a read-only replica; the URL must name the primary"
        case redis_errors.MovedError():
            text = "is part of a cluster; set cluster=True"
        case redis_errors.TimeoutError() | TimeoutError():
            text = "did not answer in time"
        case _:
            text = f"cannot be used: {error or type(error).__name__}"
    return RegistryUnavailable(f"registry {where} {text}")

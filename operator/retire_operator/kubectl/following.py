"""Writes, and waits for what was written to come true.

Owns the loop over conflicts and over watches. What to write and when it is true: revisions.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Protocol

from retire_operator.kubectl import revisions
from retire_operator.kubectl.failures import Changed, PluginError, TooLate

Body = dict[str, Any]
_CONFLICTS_MAX: Final = 20
RECEIPT_S: Final = 3.0  # how long the receipt may come after the version


class Port(Protocol):
    """What is asked of the cluster (cluster.Scopes)."""

    def get(self, name: str) -> Body:
        """See cluster.py."""
        ...

    def patch(self, name: str, patch: Mapping[str, Any]) -> Body:
        """See cluster.py."""
        ...

    def changes(self, name: str, after: Body, *, limit_s: float) -> Generator[Body]:
        """See cluster.py."""
        ...


def write(scopes: Port, name: str, made: Callable[[Body], Mapping[str, Any] | None]) -> Body:
    """Patch the object with what ``made`` makes of it; on a conflict, of what it is by then. None:
    nothing to write."""
    for _ in range(_CONFLICTS_MAX):
        body = scopes.get(name)
        patch = made(body)
        if patch is None:
            return body
        try:
            return scopes.patch(name, patch)
        except Changed:
            continue
    raise PluginError(
        f"servingscope {name!r} was changed by others {_CONFLICTS_MAX} times while it was being"
        " written; nothing was written, try again"
    )


def wait(
    scopes: Port,
    body: Body,
    done: Callable[[Body], bool],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Body:
    """The object once ``done``; TooLate says what stands in the way."""
    name, until_s = body["metadata"]["name"], clock() + timeout_s
    while not done(body):
        left_s = until_s - clock()
        if left_s <= 0:
            raise TooLate(_late(body, timeout_s))
        with contextlib.closing(scopes.changes(name, body, limit_s=left_s)) as changes:
            for changed in changes:
                body = changed
                if done(body) or clock() >= until_s:
                    break
            else:
                body = scopes.get(name)  # the watch has ended; something may have been missed
    return body


def with_receipt(
    scopes: Port,
    body: Body,
    found: Callable[[Body], Mapping[str, Any] | None],
    *,
    timeout_s: float = RECEIPT_S,
) -> Body:
    """The same object once its receipt is complete, or as it is after a while."""
    try:
        return wait(scopes, body, lambda b: revisions.complete(found(b)), timeout_s=timeout_s)
    except TooLate:
        return scopes.get(body["metadata"]["name"])


def _late(body: Body, timeout_s: float) -> str:
    name = body["metadata"]["name"]
    why = revisions.obstacle(body)
    at = revisions.status(body).get("version", "no version")
    return (
        f"servingscope {name!r} is written, but after {timeout_s:g} s it is still at {at}"
        f"{f'; {why}' if why else ''}"
    )

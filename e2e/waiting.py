"""Waits for a condition of a real system, saying what it waits for and what it last saw.

Must never sleep as a substitute for a condition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx

from e2e.api import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.api import Api

T = TypeVar("T")
_POLL_S: Final = 0.05
_SAY_EVERY_S: Final = 10.0


class NotInTime(AssertionError):
    """What was waited for did not come; the last thing seen is in the text."""


def wait_for(what: str, look: Callable[[], T], limit_s: float = 60.0) -> T:
    """The first truthy ``look()``. An API server that is away, or an object that is not there yet,
    is waited for as well; every ten seconds it says so.
    """
    began = time.monotonic()
    said = began
    last: object = None
    while True:
        try:
            if found := look():
                return found
            last = found
        except (ApiError, httpx.TransportError, LookupError) as error:
            last = error
        now = time.monotonic()
        if now - began > limit_s:
            raise NotInTime(f"{what}: not within {limit_s:.0f} s; last seen: {last!r}")
        if now - said > _SAY_EVERY_S:
            said = now
            print(f"waiting for {what}: {now - began:.0f} s, last seen {last!r}", flush=True)
        time.sleep(_POLL_S)


def condition(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object's status; empty when it has none of that type."""
    # An API server writes a new CustomResourceDefinition's conditions as null.
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def wait_condition(
    api: Api, path: str, kind: str, *, status: str = "True", reason: str = "", limit_s: float = 60.0
) -> dict[str, Any]:
    """Until an object's condition has a status (and a reason); the object."""

    def look() -> dict[str, Any] | None:
        item = api.get(path)
        one = condition(item, kind)
        fits = one.get("status") == status and (not reason or one.get("reason") == reason)
        if not fits:
            raise LookupError(one or item.get("status"))
        return item

    return wait_for(f"{path} {kind}={status} {reason}".strip(), look, limit_s) or {}


def wait_gone(api: Api, path: str, limit_s: float = 60.0) -> None:
    """Until an object does not exist any more."""
    wait_for(f"{path} to be gone", lambda: not api.exists(path), limit_s)


def wait_replicas(api: Api, path: str, limit_s: float = 120.0) -> dict[str, Any]:
    """Until a Deployment or StatefulSet has rolled out what its spec says."""

    def look() -> dict[str, Any] | None:
        item = api.get(path)
        status, wanted = item.get("status", {}), item["spec"].get("replicas", 1)
        seen = status.get("observedGeneration", 0) >= item["metadata"]["generation"]
        counts = [status.get(f"{word}Replicas", 0) for word in ("ready", "updated")]
        if not seen or counts != [wanted, wanted]:
            raise LookupError(status)
        return item

    return wait_for(f"{path} to be rolled out", look, limit_s) or {}

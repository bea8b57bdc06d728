"""Asks one engine to compute the KV of a context, so that the successor finds it.

Checks that the version is the current one, once: the API process's gates check it to the end. Must
never change a scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retire.protocol.errors import RetireError, ScopeClosed, Unavailable, VersionConflict
from retire.protocol.events import Admission
from retire.sidecar import convert, status
from retire.sidecar.links import LinkLost
from retire.sidecar.pb import node_pb2 as pb

if TYPE_CHECKING:
    from retire.sidecar.links import Links
    from retire.sidecar.scopes import Entry


async def warm(
    links: Links, entry: Entry, request: pb.WarmRequest, *, node: str, wait_s: float
) -> pb.WarmReply:
    """What the first API process that answers came to; a process that goes away is replaced."""
    _check_current(entry, request)
    body = pb.Warm(
        key=request.key,
        version=request.version,
        request_json=request.request_json,
        traceparent=request.traceparent,
    )
    for link in [link for link in links if link.ready]:
        try:
            report = await links.ask(link, pb.GateCommand(warm=body), timeout_s=wait_s)
        except LinkLost:
            continue
        except TimeoutError:
            raise Unavailable(f"the engine did not warm the context within {wait_s:g} s") from None
        if report.warm.error:
            raise _error(report.warm.error)
        return pb.WarmReply(
            prompt_tokens=report.warm.prompt_tokens,
            cached_tokens=report.warm.cached_tokens,
            node=node,
        )
    raise Unavailable(links.not_ready_reason() or "every API process of the engine detached")


def _check_current(entry: Entry, request: pb.WarmRequest) -> None:
    current, key = entry.state.version, entry.state.key
    assert current is not None
    version = convert.required_version(request, "version")
    if entry.state.admission is Admission.CANCELLED:
        raise ScopeClosed(key, current)
    if version != current:
        raise VersionConflict(key, expected=version, current=current)


def _error(text: str) -> RetireError:
    """An error of the tree as the process raised it; any other text as it is."""
    try:
        error = status.decode(text.encode())
    except (ValueError, AttributeError, KeyError, TypeError):  # not JSON of ours
        return RetireError(text)
    return error if str(error) else RetireError(text)

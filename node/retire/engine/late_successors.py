"""Successors that come after their SUPERSEDE: tells the sidecar what ALIGN came to for them.

A SUPERSEDE by the operator, or one without a ``request``, has no hand-off that waits for the
certificate. Its receipt is completed when the first request of the new version enters the engine.
Owns the waiting. Must never import vLLM, nor hold up a FENCE.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from retire.engine.handoff import saved
from retire.protocol.contract import LATE, Receipt, StopReason
from retire.protocol.errors import RetireError
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from retire.engine.core_calls import CoreCalls
    from retire.protocol.versions import ScopeKey
    from retire.sidecar.pb import node_pb2 as pb

_log = logging.getLogger("retire.engine")
WAITING_MAX: Final = 4096  # scopes whose successor may be waited for at once

Report = Callable[[Receipt], Awaitable[None]]


class LateSuccessors:
    """Those of one API process. ``report`` hands a receipt to the sidecar."""

    def __init__(self, core: CoreCalls, report: Report) -> None:
        self._core = core
        self._report = report
        self._waiting: dict[ScopeKey, asyncio.Task[None]] = {}

    def expect(self, key: ScopeKey, to: Version) -> None:
        """Before the FENCE is asked for: a successor may come as soon as the streams have ended."""
        self.forget(key)
        if len(self._waiting) < WAITING_MAX and to.epoch > 0:
            task = asyncio.get_running_loop().create_task(self._wait(key, to))
            self._waiting[key] = task
            task.add_done_callback(lambda done: self._done(key, done))

    def fenced(self, key: ScopeKey, fenced: pb.Fenced) -> None:
        """What the FENCE left: nobody waits where there is nothing to inherit."""
        if not fenced.requests and not fenced.pinned_blocks:
            self.forget(key)

    def forget(self, key: ScopeKey) -> None:
        """Another version, or none, comes next."""
        task = self._waiting.pop(key, None)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        """Wait for nobody any more."""
        for key in tuple(self._waiting):
            self.forget(key)

    async def _wait(self, key: ScopeKey, to: Version) -> None:
        certificate = await self._core.await_successor(key, to)
        if self._core.expected(key, to):
            return  # a hand-off of this process has the certificate, and the whole receipt
        receipt = late_receipt(key, to, certificate)
        if receipt is None:
            return
        try:
            await self._report(receipt)
        except RetireError as error:
            _log.warning("a successor's certificate was not reported: %s", error)

    def _done(self, key: ScopeKey, task: asyncio.Task[None]) -> None:
        if self._waiting.get(key) is task:
            del self._waiting[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("waiting for the successor of %s failed", key, exc_info=error)


def late_receipt(key: ScopeKey, to: Version, certificate: dict[str, Any]) -> Receipt | None:
    """What is to be added to the receipt of ``to``; None: none came, or it had no predecessor."""
    reason = StopReason(certificate["stop_reason"])
    if not certificate.get("request_id") or reason is StopReason.NO_PREDECESSOR:
        return None
    return Receipt(
        key=key,
        from_version=Version(to.term, to.epoch - 1),
        to_version=to,
        stages_ms={},
        frontier_tokens=certificate["frontier_tokens"],
        inheritable_tokens=certificate["inheritable_tokens"],
        certified_tokens=certificate["certified_tokens"],
        first_difference=certificate["first_difference"],
        stop_reason=reason,
        successor_request_id=certificate["request_id"],
        extra={LATE: True, **saved(certificate)},
    )

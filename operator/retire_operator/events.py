"""Kubernetes Events: one per transition, Warnings for what blocks, repeated ones counted.

Names are made from what happened, so two operators, or one that comes back, write one Event. Events
are for people: one that cannot be written is dropped, nothing waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from retire.protocol.errors import RetireError
from retire.telemetry.logs import fields
from retire_operator.errors import WriteConflict
from retire_operator.receipts import Line, rfc3339
from retire_operator.resource import API_VERSION, GROUP, KIND

if TYPE_CHECKING:
    from retire_operator.resource import Desired
    from retire_operator.verdicts import Verdict

_log = logging.getLogger("retire.operator")
COMPONENT: Final = "retire-operator"
_NAME_CHARS: Final = 200
_NOTE_CHARS: Final = 1000
_BLOCKING: Final = ("Blocked", "Degraded", "Deleting")


class Sink(Protocol):
    """Where Events go (kube.Kube)."""

    async def create_event(self, namespace: str, body: Mapping[str, Any]) -> None:
        """See kube.py."""
        ...

    async def count_event(self, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        """See kube.py."""
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """One thing worth an Event. ``once`` names a thing that happens once; empty: it is counted."""

    type: str  # Normal | Warning
    reason: str
    text: str
    once: str = ""


def of_transition(line: Line) -> Note:
    """A transition that this operator made."""
    before = f"{line.from_version} -> " if line.from_version else ""
    took = (
        "" if line.unpublishable_ms is None else f", unpublishable in {line.unpublishable_ms:g} ms"
    )
    reason = {"supersede": "Superseded", "cancel": "Cancelled", "pause": "Paused"}
    text = f"{before}{line.to_version}{took}"
    once = f"{line.kind}/{line.to_version}" if line.moves else ""
    return Note("Normal", reason.get(line.kind, "Resumed"), text, once)


def of_verdict(verdict: Verdict, *, before: tuple[str, str]) -> Note | None:
    """What blocks, when it is news. ``before``: status and reason of Ready as written last."""
    if before == (verdict.state.value, verdict.reason) or not verdict.message:
        return None
    if verdict.phase.value in _BLOCKING and verdict.state.value != "True":
        if verdict.reason in ("Deleting", "Cancelling"):
            return None
        return Note("Warning", verdict.reason, verdict.message)
    if before[0] == "False" and verdict.state.value == "True":
        return Note("Normal", "Ready", verdict.message)
    return None


class Recorder:
    """Writes Events in the background, in order."""

    def __init__(self, sink: Sink, *, wall_s: Callable[[], float], backlog: int = 1000) -> None:
        self._sink = sink
        self._wall_s = wall_s
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(backlog)

    def record(self, desired: Desired, note: Note) -> None:
        """Hand one over; dropped when too many wait."""
        try:
            self._queue.put_nowait((desired.ref.namespace, body(desired, note, self._wall_s())))
        except asyncio.QueueFull:
            _log.warning("event dropped", extra=fields(scope=desired.ref, reason=note.reason))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            namespace, event = await self._queue.get()
            try:
                await self._write(namespace, event)
            except RetireError as error:
                _log.info("event not written", extra=fields(reason=event["reason"], why=error))

    async def _write(self, namespace: str, event: dict[str, Any]) -> None:
        once = event.pop("once")
        try:
            await self._sink.create_event(namespace, event)
        except WriteConflict:
            if not once:
                again = {"lastTimestamp": event["lastTimestamp"]}
                await self._sink.count_event(namespace, event["metadata"]["name"], again)


def body(desired: Desired, note: Note, now_s: float) -> dict[str, Any]:
    """A core/v1 Event, and whether it is written once."""
    identity = note.once or f"{note.reason}/{note.text}"
    digest = hashlib.sha256(f"{desired.uid}/{identity}".encode()).hexdigest()[:16]
    at = rfc3339(now_s)
    return {
        "once": bool(note.once),
        "metadata": {
            "name": f"{desired.ref.name[:_NAME_CHARS]}.{digest}",
            "namespace": desired.ref.namespace,
        },
        "involvedObject": {
            "apiVersion": f"{GROUP}/{API_VERSION}",
            "kind": KIND,
            "namespace": desired.ref.namespace,
            "name": desired.ref.name,
            "uid": desired.uid,
        },
        "type": note.type,
        "reason": note.reason,
        "message": note.text[:_NOTE_CHARS],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }

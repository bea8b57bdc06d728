"""One Supersede, Cancel, Pause or Resume that waits for answers. Must never decide anything."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retire.protocol.contract import Contract
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry.spans import NOTHING, Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retire.protocol.errors import RetireError
    from retire.protocol.events import Change
    from retire.protocol.versions import ScopeKey, Version

_NAMES = itertools.count(1)


@dataclass(slots=True, eq=False)
class Call:
    """One Supersede, Cancel, Pause or Resume that waits for answers."""

    key: ScopeKey
    change: Change
    expected: Version
    idempotency_key: str
    started_s: float
    body_digest: str = ""
    contract: Contract = field(default_factory=Contract)
    traceparent: str = ""
    span: Span = NOTHING
    driver: bool = False  # the caller completes the receipt
    name: str = field(default_factory=lambda: f"c{next(_NAMES)}")
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # by the registry
    error: RetireError | None = None  # what the registry raised, for Refuse to repeat
    children: tuple[tuple[ScopeKey, Version], ...] = ()  # descendants that its commit moved
    stored_receipt: str = ""  # of the first call, when this one is a replay
    receipt_json: str = ""  # built here at the end, unless a driver does
    committed: pb.Committed | None = None
    unpublishable: pb.Unpublishable | None = None
    fenced: pb.Fenced | None = None
    _events: asyncio.Queue[pb.TransitionEvent | RetireError | None] = field(
        default_factory=asyncio.Queue
    )

    def tell(self, event: pb.TransitionEvent) -> None:
        """Hand one event to whoever reads :meth:`events`."""
        self._events.put_nowait(event)

    def end(self, error: RetireError | None = None) -> None:
        """No event follows."""
        self._events.put_nowait(error)

    async def events(self) -> AsyncIterator[pb.TransitionEvent]:
        """Each answer once, in order; raises the error that ended the call."""
        while (event := await self._events.get()) is not None:
            if not isinstance(event, pb.TransitionEvent):
                raise event
            yield event

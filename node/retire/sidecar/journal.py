"""The transitions this node has seen, for WatchTransitions: a bounded ring that readers catch
up on.

Sequence numbers start at the wall clock in microseconds, so they rise across restarts too.
Memory only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retire.sidecar import convert
from retire.sidecar.pb import node_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from retire.protocol.versions import ScopeKey, Version

RECORDS_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the journal."""

    key: ScopeKey
    kind: str  # a Change's value, "register" or "receipt"
    from_version: Version
    to_version: Version
    receipt_json: str = ""
    idempotency_key: str = ""  # of a call of this node


class Journal:
    """Appends records and lets any number of watchers follow."""

    def __init__(self, *, wall_s: Callable[[], float], kept: int = RECORDS_KEPT) -> None:
        self._wall_s = wall_s
        self._sequence = int(wall_s() * 1e6)
        self._records: deque[pb.TransitionRecord] = deque(maxlen=kept)
        self._grown = asyncio.Event()
        self.on_append: Callable[[Transition], None] = lambda _: None

    @property
    def sequence(self) -> int:
        """Number of the newest record; 0 is never one."""
        return self._sequence

    def append(self, line: Transition) -> None:
        """Record a transition and wake the watchers."""
        self._sequence += 1
        record = pb.TransitionRecord(
            sequence=self._sequence,
            key=convert.key_to(line.key),
            kind=line.kind,
            to=convert.version_to(line.to_version),
            receipt_json=line.receipt_json,
            at_unix_s=self._wall_s(),
            idempotency_key=line.idempotency_key,
        )
        getattr(record, "from").CopyFrom(convert.version_to(line.from_version))
        self._records.append(record)
        self.on_append(line)
        self._grown.set()
        self._grown = asyncio.Event()

    def newest_first(self) -> Iterator[pb.TransitionRecord]:
        """What is kept, without waiting for more."""
        return reversed(self._records)

    async def watch(self, tenant: str, *, after: int) -> AsyncIterator[pb.TransitionRecord]:
        """Records past ``after`` (0: from now on), then new ones, without end; "" is every
        tenant.
        """
        position = after or self._sequence
        while True:
            grown = self._grown
            for record in [r for r in self._records if r.sequence > position]:
                position = record.sequence
                if tenant in ("", record.key.tenant):
                    yield record
            if grown is self._grown:
                await grown.wait()

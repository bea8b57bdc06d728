"""Gates that say when a version became unpublishable: the link of an API process, no engine.

Owns what each gate saw. A Switch counts only when the mailbox refuses the tag that was current
before it. Must never talk to the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from e2e.sidecar_nodes import Gate
from retire.mailbox import GateState, SlotRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from e2e.sidecar_nodes import Sidecar
    from retire.protocol.versions import ScopeKey
    from retire.sidecar.pb import node_pb2 as pb

POLL_S: Final = 0.002
JOINS: Final = 16  # side by side: a node has a pool of connections to the registry


@dataclass(frozen=True, slots=True)
class Switched:
    """One version of a scope that a gate switched to."""

    epoch: int
    at_s: float  # perf_counter, when the ack was given


class RecordingGate(Gate):
    """Holds the tag of every scope that it joined, as streams would."""

    def __init__(self, sidecar: Sidecar) -> None:
        super().__init__(sidecar, f"gate of {sidecar.node}")
        self.seen: dict[str, list[Switched]] = defaultdict(list)  # by the scope's name
        self.inspected: Counter[str] = Counter()
        self.open_at_switch = 0  # Switches at which the mailbox did not refuse the old tag
        self._tags: dict[str, SlotRef] = {}

    async def take(self, keys: Iterable[ScopeKey]) -> None:
        """Join scopes, and take their current tags."""
        few = asyncio.Semaphore(JOINS)

        async def tag(key: ScopeKey) -> bool:
            async with few:
                return await self._tag(key)

        joined = await asyncio.gather(*map(tag, keys))
        assert all(joined), f"{self.name}: a tag that was just taken is refused"

    def publishable(self, scope: str) -> bool:
        """Whether the tag that was taken last may still publish."""
        return self.view.gate(self._tags[scope]) is GateState.OPEN

    async def switch(self, command: pb.Switch) -> dict[str, int]:
        """Ack; the mailbox must refuse the tag until now, and have another one."""
        scope = command.key.scope
        tag = self._tags[scope]
        now = self.view.current(tag.index, tag.tenure)
        if now is None or self.view.gate(tag) is not GateState.STALE:
            self.open_at_switch += 1
        else:
            self._tags[scope] = now.ref
        self.seen[scope].append(Switched(command.to.epoch, time.perf_counter()))
        return {}

    async def inspect(self, command: pb.Inspect) -> pb.InspectReply:
        """Nothing lives here; the question is counted."""
        self.inspected[command.key.scope] += 1
        return await super().inspect(command)

    async def _tag(self, key: ScopeKey) -> bool:
        joined = await self.client.join(key)
        slot = joined.slot
        self._tags[key.scope] = SlotRef(slot.index, slot.tenure, slot.stamp)
        return self.publishable(key.scope)


def switched_s(gates: Iterable[RecordingGate], scope: str, epoch: int) -> float | None:
    """When the last gate gave its ack; None while one has not."""
    times: list[float] = []
    for gate in gates:
        found = next((one.at_s for one in gate.seen[scope] if one.epoch == epoch), None)
        if found is None:
            return None
        times.append(found)
    return max(times)


def faults(gates: Iterable[RecordingGate], wanted: dict[str, int]) -> dict[str, int]:
    """Epochs 1..n of each scope that a gate did not see (lost), saw twice or saw too late."""
    counts = Counter(lost=0, repeated=0, disordered=0)
    for gate in gates:
        counts["open"] += gate.open_at_switch
        for scope, last in wanted.items():
            epochs = [one.epoch for one in gate.seen[scope]]
            counts["lost"] += len(set(range(1, last + 1)) - set(epochs))
            counts["repeated"] += len(epochs) - len(set(epochs))
            counts["disordered"] += epochs != sorted(epochs)
    return dict(counts)


async def until(what: str, holds: Callable[[], bool], limit_s: float) -> None:
    """Until ``holds()``; TimeoutError names what did not come."""
    end_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what}: not within {limit_s:.0f} s")
        await asyncio.sleep(POLL_S)

"""What the shell tallies while a transition runs on this node: who answered when, receipts, timers.

Facts beside the protocol's state, for answers and receipts. Must never decide, never do IO.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retire.protocol.contract import GateOutcome, GateResult, Tier
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry.spans import NOTHING, Span

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.calls import Call
    from retire.sidecar.links import Answer, SwitchRound


@dataclass(slots=True, eq=False)
class Group:
    """One commit that moved several scopes: this host is behind it when every member is."""

    key: ScopeKey  # the scope the commit was made on
    version: Version
    waiting: set[ScopeKey]  # descendants joined here whose gates are not accounted for yet


@dataclass(slots=True, eq=False)
class Track:
    """One transition of one scope, here."""

    started_s: float
    mine: bool = False  # committed by a call of this node
    sole: bool = False  # and no other node is a gate, as far as known: nobody waits for our ack
    unsaid: bool = False  # this host is behind the commit, and nobody was told
    local: list[Answer] = field(default_factory=list)  # API processes of this host
    remote: dict[str, float] = field(default_factory=dict)  # other nodes' gates: when they acked
    ended: dict[str, float] = field(default_factory=dict)  # the same for leases that ended
    last_published: dict[str, int] = field(default_factory=dict)
    settled: bool = False  # every API process of this host has answered, or its lease has ended
    unreported: list[pb.Fenced] | None = None  # receipts that wait for that, to be sent
    fences: list[pb.Fenced] = field(default_factory=list)  # of engines, here and elsewhere
    group: Group | None = None
    moved_by: Call | None = None  # the call on an ancestor whose commit moved this scope
    held: SwitchRound | None = None  # settled here, waits for the rest of the group
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    fence_watched: bool = False
    span: Span = NOTHING  # of the call here, or of following another node's commit
    fenced_ns: int = 0  # Unix time; 0: not yet

    def close(self) -> None:
        """Cancel what is still timed."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        if not self.mine and self.moved_by is None:
            self.span.end()

    def gate_results(
        self, node: str, gates: tuple[tuple[str, GateOutcome], ...], *, started_s: float
    ) -> list[GateResult]:
        """One result per API process of this host and per other node; ms since the call."""
        results: list[GateResult] = []
        for gate, outcome in gates:
            if gate == node and self.local:
                results += self.local_results(node, started_s=started_s)
            else:
                times = self.remote if outcome is GateOutcome.ACKED else self.ended
                at_s = times.get(gate, started_s)
                results.append(GateResult(gate, outcome, elapsed_ms(started_s, at_s)))
        return results

    def local_results(self, node: str, *, started_s: float) -> list[GateResult]:
        """One result per API process of this host."""
        return [
            GateResult(f"{node}/{a.gate}", a.outcome, elapsed_ms(started_s, a.at_s))
            for a in self.local
        ]

    def fenced(self) -> pb.Fenced:
        """Receipts of all engines in one: requests together, residual the longest, pins the sum."""
        return self._merged(self.fences)

    def with_deliveries(self, fences: list[pb.Fenced]) -> pb.Fenced:
        """Receipts of this host's engines for another node, with what its gates delivered."""
        merged = self._merged(fences)
        for part in fences:
            merged.participants.extend(part.participants)
        return merged

    def _merged(self, fences: list[pb.Fenced]) -> pb.Fenced:
        merged = pb.Fenced()
        for part in fences:
            merged.requests.extend(part.requests)
            if part.HasField("residual_ms"):
                _keep_longest(merged, part)
            if part.HasField("quota_left"):
                known = merged.HasField("quota_left")
                left = min(merged.quota_left, part.quota_left) if known else part.quota_left
                merged.quota_left = left
            _add_kept(merged, part)
        self._add_delivery(merged)
        return merged

    def _add_delivery(self, merged: pb.Fenced) -> None:
        """Delivery is known to the API processes, the rest to the engine: join them by request."""
        left = dict(self.last_published)
        for request in merged.requests:
            if request.request_id in left:
                request.last_published_index = left.pop(request.request_id)
        for request_id, index in left.items():
            merged.requests.add(request_id=request_id, state="finished", last_published_index=index)


def _add_kept(merged: pb.Fenced, part: pb.Fenced) -> None:
    """Blocks are added up; if any of them stay in HBM, the scarcer memory is named."""
    merged.pinned_blocks += part.pinned_blocks
    if part.tier:
        merged.tier = part.tier if merged.tier in ("", part.tier) else Tier.HBM.value
    merged.host_refused = merged.host_refused or part.host_refused


def _keep_longest(merged: pb.Fenced, part: pb.Fenced) -> None:
    """Of several engines, the one that was last to end its old work speaks for the fence."""
    if merged.HasField("residual_ms") and merged.residual_ms >= part.residual_ms:
        return
    merged.residual_ms, merged.branch = part.residual_ms, part.branch
    merged.ClearField("predicted_ms")
    if part.HasField("predicted_ms"):
        merged.predicted_ms = part.predicted_ms


class Tracks:
    """Every running transition of this node."""

    def __init__(self) -> None:
        self._tracks: dict[ScopeKey, dict[Version, Track]] = {}
        self.on_over: Callable[[Track], None] = lambda _: None  # reclaimed, not shut down

    def open(self, key: ScopeKey, version: Version, started_s: float) -> Track:
        """The track of this transition, made when it is new."""
        of_scope = self._tracks.setdefault(key, {})
        track = of_scope.get(version)
        if track is None:
            track = of_scope[version] = Track(started_s)
        return track

    def find(self, key: ScopeKey, version: Version) -> Track | None:
        """The track, or None when the transition is over or unknown here."""
        return self._tracks.get(key, {}).get(version)

    def prune(self, key: ScopeKey, running: set[Version]) -> None:
        """Forget the tracks of a scope whose transitions are over."""
        of_scope = self._tracks.get(key)
        if of_scope is None:
            return
        for version in of_scope.keys() - running:
            track = of_scope.pop(version)
            track.close()
            self.on_over(track)
        if not of_scope:
            del self._tracks[key]

    def close_all(self) -> None:
        """Cancel every timer (shutdown)."""
        self.on_over = lambda _: None
        for key in tuple(self._tracks):
            self.prune(key, set())

    def __len__(self) -> int:
        return sum(map(len, self._tracks.values()))


def elapsed_ms(since_s: float, at_s: float) -> float:
    """Milliseconds between two times of one clock, never negative."""
    return round(max(0.0, at_s - since_s) * 1e3, 3)

"""Effects that reach gates and engines: the mailbox store, Switch, leases, Fence, the node's ack.

Executes, never decides; what comes back is fed to the driver as facts. Must never answer a call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from retire.protocol import effects as fx
from retire.protocol import events as ev
from retire.protocol import gate
from retire.protocol.contract import GateOutcome
from retire.protocol.history import VersionSeen
from retire.sidecar import convert
from retire.sidecar.fencing import FenceFailed, Fencing, payload
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.protocol.versions import ScopeKey, Version
    from retire.registry.interface import Commit
    from retire.sidecar.links import SwitchRound
    from retire.sidecar.ports import Ports
    from retire.sidecar.scopes import Entry
    from retire.sidecar.tracks import Group, Track

_log = logging.getLogger(names.LOGGER_SIDECAR)


class GateEffects:
    """Executes the effects whose subject is a gate or an engine of this node."""

    def __init__(self, ports: Ports, apply: Callable[[ScopeKey, ev.Event], None]) -> None:
        self._ports = ports
        self._apply = apply
        self._fencing = Fencing(
            ports.links, node=ports.identity.node, wait_s=ports.settings.fence_wait_s
        )
        self.handlers: dict[type, Callable[..., None]] = {
            fx.StoreVersion: self._store_version,
            fx.SwitchGates: self._switch_gates,
            fx.WatchLease: self._watch_lease,
            fx.FenceEngine: self._fence_engine,
            fx.WatchFence: self._watch_fence,
            fx.ReportAck: self._report_ack,
            fx.ReclaimNode: self._reclaim_node,
        }

    def local(self) -> tuple[ev.Gate, ...]:
        """This host's API processes as one gate: its barrier is one round over every process.

        One fact for 64 processes, not 64: who of them acked is tallied in the track.
        """
        node = self._ports.identity.node
        return (ev.Gate(node, node),) if self._ports.links.may_publish else ()

    def remote(self, commit: Commit) -> tuple[ev.Gate, ...]:
        """The other gates of a commit, each with what was left of its lease.

        The newest boot of another node acks as that node. An older boot, of this node too, and
        leases of an older term ("*") can only run out.
        """
        own = self._ports.identity
        newest = {v.node: v.boot_id for v in sorted(commit.gates, key=lambda v: v.expires_in_s)}
        found: list[ev.Gate] = []
        for view in commit.gates:
            if (view.node, view.boot_id) == (own.node, own.boot_id):
                continue
            acks = view.node not in (own.node, "*") and newest[view.node] == view.boot_id
            name = view.node if acks else f"{view.node}#{view.boot_id}"
            node = own.node if view.node == "*" else view.node
            found.append(ev.Gate(name, node, view.expires_in_s))
        return tuple(found)

    def _store_version(self, entry: Entry, effect: fx.StoreVersion) -> None:
        self._ports.scopes.store_version(entry, effect.version, effect.generation)
        if self._ports.history.on:
            self._ports.history.write(
                VersionSeen(
                    time.monotonic_ns(), self._ports.identity.node, entry.state.key, effect.version
                )
            )

    def _switch_gates(self, entry: Entry, effect: fx.SwitchGates) -> None:
        key, version = entry.state.key, effect.version
        body = pb.Switch(
            key=convert.key_to(key),
            to=convert.version_to(version),
            slot_index=entry.slot,
            kind=effect.change.value,
        )
        if not effect.change.moves_version:
            self._ports.links.switch(body, lambda _: None)
            return
        track = self._ports.tracks.open(key, version, self._ports.clock())
        self._ports.links.switch(body, lambda done: self._settled(key, version, track, done))

    def _settled(self, key: ScopeKey, version: Version, track: Track, done: SwitchRound) -> None:
        track.local = done.answers
        track.last_published.update(done.last_published)
        track.settled = True
        if track.unreported is not None:
            self._report_receipts(key, version, track.unreported)
        group = track.group
        if group is not None and group.key == key and group.waiting:
            track.held = (
                done  # a descendant moved in the same commit: this host is not behind it yet
            )
            return
        self._account(key, version, done)

    def _account(self, key: ScopeKey, version: Version, done: SwitchRound) -> None:
        node = self._ports.identity.node
        acked = done.outcome is GateOutcome.ACKED
        self._apply(key, (ev.GateAcked if acked else ev.GateLeaseEnded)(node, version))

    def _watch_lease(self, entry: Entry, effect: fx.WatchLease) -> None:
        key = entry.state.key
        track = self._ports.tracks.open(key, effect.version, self._ports.clock())
        if effect.gate in track.remote:
            return
        delay_s = gate.wait_s(effect.lease_left_s)
        track.timers.append(
            asyncio.get_running_loop().call_later(
                delay_s, self._lease_ended, key, effect.version, effect.gate
            )
        )

    def _lease_ended(self, key: ScopeKey, version: Version, name: str) -> None:
        track = self._ports.tracks.find(key, version)
        if track is None or name in track.remote:
            return
        track.ended[name] = self._ports.clock()
        _log.warning(
            "a gate did not ack; its lease has ended",
            extra=fields(scope=key, gate=name, to=version),
        )
        self._apply(key, ev.GateLeaseEnded(name, version))
        if "#" not in name:  # cut off or dead: its receipts would come too late for this transition
            self._apply(key, ev.NodeLost(name))

    def acked(self, key: ScopeKey, node: str, version: Version) -> None:
        """Another node's ack from the tenant's stream: its gates are behind ``version``."""
        track = self._ports.tracks.find(key, version)
        if track is not None:
            track.remote.setdefault(node, self._ports.clock())
            self._apply(key, ev.GateAcked(node, version))

    def received(self, key: ScopeKey, node: str, *, version: Version, fenced: pb.Fenced) -> None:
        """Another node's receipts; they say nothing of its gates: a fence may end before Switch."""
        if self._ports.tracks.find(key, version) is not None:
            self._received(key, node, version, [fenced])

    def _received(
        self, key: ScopeKey, node: str, version: Version, fenced: list[pb.Fenced]
    ) -> None:
        track = self._ports.tracks.find(key, version)
        if track is not None:
            track.fences.extend(fenced)
        found = tuple(convert.participant_from(p) for part in fenced for p in part.participants)
        self._apply(key, ev.FenceReceipt(node, version, found))

    def _fence_engine(self, entry: Entry, effect: fx.FenceEngine) -> None:
        key, node = entry.state.key, self._ports.identity.node
        if not self._ports.links.may_publish:
            self._apply(key, ev.FenceReceipt(node, effect.version))
            self._report_receipts(key, effect.version, [])
            return
        self._ports.tasks.spawn(self._fence(key, effect), name=f"fence {key} to {effect.version}")

    async def _fence(self, key: ScopeKey, effect: fx.FenceEngine) -> None:
        node, track = self._ports.identity.node, self._ports.tracks.find(key, effect.version)
        trace = track.span.traceparent if track is not None else ""
        try:
            fenced = await self._fencing.fence(
                key, effect.version, effect.contract, terminal=effect.terminal, trace=trace
            )
        except FenceFailed as error:
            _log.warning("no fence receipt", extra=fields(scope=key, to=effect.version, why=error))
            return
        self._report_receipts(key, effect.version, fenced)
        self._received(key, node, effect.version, fenced)

    def _report_receipts(self, key: ScopeKey, version: Version, fenced: list[pb.Fenced]) -> None:
        """The committer is another node: send it what our engines said, and what was delivered
        here, which is known when the gates have answered.
        """
        track = self._ports.tracks.find(key, version)
        if track is None or track.mine:
            return
        if not track.settled and self._ports.links.may_publish:
            track.unreported = fenced
            return
        track.unreported = None
        group = track.group
        at = (key, version) if group is None else (group.key, group.version)
        self._ack(*at, payload(track.with_deliveries(fenced)))

    def _watch_fence(self, entry: Entry, effect: fx.WatchFence) -> None:
        key = entry.state.key
        track = self._ports.tracks.open(key, effect.version, self._ports.clock())
        if track.fence_watched:
            return
        track.fence_watched = True
        timer = asyncio.get_running_loop().call_later(
            self._ports.settings.fence_wait_s,
            lambda: self._apply(key, ev.FenceTimedOut(effect.version)),
        )
        track.timers.append(timer)

    def _report_ack(self, entry: Entry, effect: fx.ReportAck) -> None:
        key, version = entry.state.key, effect.version
        track = self._ports.tracks.find(key, version)
        group = None if track is None else track.group
        if track is not None and not track.mine and track.moved_by is None:
            track.span.end()  # this host follows
        if group is not None and group.key != key:
            self._member_behind(group, key)
        elif track is not None and track.sole:
            track.unsaid = True
        else:
            self._ack(key, version, "")

    def say_ack(self, key: ScopeKey, version: Version) -> None:
        """Other nodes turned out to be gates: a replay of this commit elsewhere waits for our
        ack.
        """
        track = self._ports.tracks.find(key, version)
        if track is not None and track.unsaid:
            track.unsaid = False
            self._ack(key, version, "")

    def _member_behind(self, group: Group, member: ScopeKey) -> None:
        """A descendant's gates are behind the commit; the last one releases the host's answer."""
        group.waiting.discard(member)
        if group.waiting:
            return
        track = self._ports.tracks.find(group.key, group.version)
        if track is not None and track.held is not None:
            self._account(group.key, group.version, track.held)
        elif group.key not in self._ports.scopes:
            self._ack(group.key, group.version, "")

    def _ack(self, key: ScopeKey, version: Version, text: str) -> None:
        own = self._ports.identity
        work = self._ports.registry.ack(
            key, term=own.term, node=own.node, version=version, payload=text
        )
        self._ports.tasks.spawn(work, name=f"ack of {key} at {version}")

    def _reclaim_node(self, entry: Entry, effect: fx.ReclaimNode) -> None:
        """Engines reclaim by themselves, after their last writer: nothing has to be sent."""
        track = self._ports.tracks.find(entry.state.key, effect.version)
        self._ports.stages.reclaimed(entry.state.key, effect.version, effect.node, track)
        self._apply(entry.state.key, ev.Reclaimed(effect.node, effect.version))

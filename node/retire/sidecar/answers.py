"""Effects that answer calls: committed, unpublishable, fenced, refused; and the receipts they
end in.

Executes, never decides. Must never touch a gate.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from retire.protocol import effects as fx
from retire.protocol import errors
from retire.protocol import events as ev
from retire.protocol.codec import receipt_from_dict
from retire.protocol.history import Acknowledged, ReceiptGiven
from retire.sidecar import convert, receipts
from retire.sidecar.journal import Transition
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.scopes import StoredReceipt
from retire.sidecar.tracks import elapsed_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.calls import Call
    from retire.sidecar.ports import Ports
    from retire.sidecar.scopes import Entry
    from retire.sidecar.tracks import Track


class Answers:
    """Executes the effects whose subject is a waiting call."""

    def __init__(self, ports: Ports, apply: Callable[[ScopeKey, ev.Event], None]) -> None:
        self.calls: dict[str, Call] = {}
        self._ports = ports
        self._apply = apply
        self.on_refused: Callable[[str, str], None] = lambda *_: None  # a change, and why
        self._retentions: dict[tuple[ScopeKey, Version], asyncio.TimerHandle] = {}
        self.handlers: dict[type, Callable[..., None]] = {
            fx.AnswerCommitted: self._committed,
            fx.Acknowledge: self._acknowledge,
            fx.AnswerFenced: self._fenced,
            fx.Refuse: self._refuse,
            fx.WatchRetention: self._watch_retention,
        }

    def close(self) -> None:
        """End every call: this sidecar is going away."""
        for call in self.calls.values():
            call.end(errors.Unavailable("the sidecar is shutting down; retry with the same key"))
        for timer in self._retentions.values():
            timer.cancel()

    def retention_over(self, key: ScopeKey, version: Version) -> None:
        """A successor took the prefix, or none will: no timer is needed any more."""
        timer = self._retentions.pop((key, version), None)
        if timer is not None:
            timer.cancel()

    def publish_receipt(self, key: ScopeKey, receipt: StoredReceipt, *, line: Transition) -> None:
        """Keep a finished receipt here, in the journal, and in the registry for replays
        anywhere.
        """
        entry = self._ports.scopes.find(key)
        if entry is not None:
            self._ports.scopes.keep_receipt(entry, receipt)
        self._ports.journal.append(line)
        own = self._ports.identity
        if self._ports.history.on:
            whole = receipt_from_dict(json.loads(receipt.json))
            self._ports.history.write(ReceiptGiven(time.monotonic_ns(), own.node, whole))
        work = self._ports.registry.report(
            key,
            term=own.term,
            node=own.node,
            version=receipt.to_version,
            receipt_json=receipt.json,
            idempotency_key=receipt.idempotency_key,
        )
        self._ports.tasks.spawn(work, name=f"receipt of {key} at {receipt.to_version}")

    def _committed(self, entry: Entry, effect: fx.AnswerCommitted) -> None:
        call = self.calls[effect.call]
        answer = pb.Committed(
            to=convert.version_to(effect.to_version),
            replayed=effect.replayed,
            ms=self._since(call),
            generation=effect.generation,
            receipt_json=call.stored_receipt,
        )
        getattr(answer, "from").CopyFrom(convert.version_to(effect.from_version))
        if entry.state.version == effect.to_version:  # else a later version has taken the slot over
            ref = self._ports.scopes.ref(entry)
            answer.slot.CopyFrom(pb.SlotRef(index=ref.index, tenure=ref.tenure, stamp=ref.stamp))
        call.committed = answer
        self._ports.stages.advanced(call, answer)
        call.tell(pb.TransitionEvent(committed=answer))
        if not effect.change.moves_version:
            self._end(call)
            if not effect.replayed:
                self._ports.journal.append(self._line(call))

    def _acknowledge(self, entry: Entry, effect: fx.Acknowledge) -> None:
        key = entry.state.key
        if self._ports.history.on:
            moved = [pair for name in effect.calls for pair in self.calls[name].children]
            for scope, version in ((key, effect.to_version), *moved):
                self._ports.history.write(Acknowledged(time.monotonic_ns(), scope, version))
        track = self._ports.tracks.open(key, effect.to_version, self._ports.clock())
        for name in effect.calls:
            call = self.calls[name]
            results = track.gate_results(
                self._ports.identity.node, effect.gates, started_s=call.started_s
            )
            answer = pb.Unpublishable(
                gates=[convert.gate_to(g) for g in results], ms=self._since(call)
            )
            call.unpublishable = answer
            self._ports.stages.unpublishable(call, answer)
            call.tell(pb.TransitionEvent(unpublishable=answer))

    def _fenced(self, entry: Entry, effect: fx.AnswerFenced) -> None:
        key = entry.state.key
        track = self._ports.tracks.open(key, effect.to_version, self._ports.clock())
        fenced, track.fenced_ns = track.fenced(), time.time_ns()
        fenced.participants.extend(convert.participant_to(p) for p in effect.participants)
        fenced.missing.extend(effect.missing)
        if track.moved_by is not None:
            self._finish_moved(key, effect.to_version, track, fenced)
        for name in effect.calls:
            call = self.calls[name]
            call.fenced = answer = pb.Fenced()
            answer.CopyFrom(fenced)
            answer.ms = self._since(call)
            self._ports.stages.fenced(call, answer)
            if not call.driver and not (call.committed and call.committed.replayed):
                self._finish(call, effect.to_version)
            call.tell(pb.TransitionEvent(fenced=answer))
            self._end(call)

    def _finish(self, call: Call, version: Version) -> None:
        call.receipt_json = receipts.to_json(receipts.build(call))
        stored = StoredReceipt(version, call.idempotency_key, call.receipt_json)
        self.publish_receipt(call.key, stored, line=self._line(call))

    def _finish_moved(
        self, key: ScopeKey, version: Version, track: Track, fenced: pb.Fenced
    ) -> None:
        """A scope that its ancestor's commit moved has a receipt of its own: of this host."""
        assert track.moved_by is not None
        gates = track.local_results(self._ports.identity.node, started_s=track.started_s)
        fenced.ms = elapsed_ms(track.started_s, self._ports.clock())
        receipt = receipts.of_moved(key, version, track.moved_by, gates, fenced)
        text = receipts.to_json(receipt)
        change = track.moved_by.change.value
        line = Transition(key, change, receipt.from_version, version, text)
        self.publish_receipt(key, StoredReceipt(version, "", text), line=line)

    def _refuse(self, entry: Entry, effect: fx.Refuse) -> None:
        call = self.calls[effect.call]
        self.on_refused(call.change.value, effect.refusal.value)
        self._end(call, call.error or self._error(entry, call, effect))

    def _error(self, entry: Entry, call: Call, effect: fx.Refuse) -> errors.RetireError:
        """What the protocol refused by itself, without asking the registry."""
        match effect.refusal:
            case ev.Refusal.TERM_MISMATCH:
                return errors.TermMismatch(
                    f"the registry was rebuilt: {call.key.scope!r} is at {entry.state.version}"
                )
            case ev.Refusal.UNAVAILABLE:
                return errors.RegistryUnavailable("the registry does not answer; retry later")
            case _:
                return errors.Unavailable(f"refused: {effect.refusal.value}")

    def _watch_retention(self, entry: Entry, effect: fx.WatchRetention) -> None:
        key, version = entry.state.key, effect.version
        self.retention_over(key, version)
        self._retentions[key, version] = asyncio.get_running_loop().call_later(
            effect.ttl_s, self._retention_ended, key, version
        )

    def _retention_ended(self, key: ScopeKey, version: Version) -> None:
        self._retentions.pop((key, version), None)
        self._apply(key, ev.RetentionEnded(version))

    def _line(self, call: Call) -> Transition:
        assert call.committed is not None
        return Transition(
            call.key,
            call.change.value,
            convert.version_from(getattr(call.committed, "from")),
            convert.version_from(call.committed.to),
            call.receipt_json,
            call.idempotency_key,
        )

    def _end(self, call: Call, error: errors.RetireError | None = None) -> None:
        del self.calls[call.name]
        self._ports.stages.end(call, error)
        call.end(error)

    def _since(self, call: Call) -> float:
        return elapsed_ms(call.started_s, self._ports.clock())

"""Builds the receipt of a call from its answers, for callers without a driver of their own
(C8). Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retire.protocol import codec
from retire.protocol.contract import Receipt
from retire.sidecar import convert
from retire.telemetry.spans import trace_id

if TYPE_CHECKING:
    from retire.protocol.contract import GateResult
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.calls import Call
    from retire.sidecar.pb import node_pb2 as pb


def build(call: Call) -> Receipt:
    """The receipt of a call that has all three answers."""
    assert call.committed and call.unpublishable and call.fenced, "the call is not over"
    committed = call.committed
    moved = Moved(
        call.key,
        convert.version_from(getattr(committed, "from")),
        convert.version_from(committed.to),
        {"commit": committed.ms, "unpublishable": call.unpublishable.ms},
        tuple(convert.gate_from(g) for g in call.unpublishable.gates),
    )
    return _receipt(call, moved, call.fenced, replayed=committed.replayed)


def of_moved(
    key: ScopeKey, to: Version, call: Call, gates: list[GateResult], fenced: pb.Fenced
) -> Receipt:
    """The receipt of a scope that ``call``, on an ancestor, moved: ``extra["ancestor"]``."""
    commit = {"commit": call.committed.ms} if call.committed else {}
    moved = Moved(
        key,
        replace(to, epoch=to.epoch - 1),  # commit.lua: each by one
        to,
        commit | {"unpublishable": max((gate.ms for gate in gates), default=0.0)},
        tuple(gates),
    )
    return _receipt(call, moved, fenced, extra={"ancestor": call.key.scope})


@dataclass(frozen=True, slots=True)
class Moved:
    """What a commit did to one scope, until its FENCE."""

    key: ScopeKey
    before: Version
    to: Version
    stages_ms: dict[str, float]
    gates: tuple[GateResult, ...]


def _receipt(
    call: Call,
    moved: Moved,
    fenced: pb.Fenced,
    *,
    replayed: bool = False,
    extra: dict[str, object] | None = None,
) -> Receipt:
    participants = tuple(convert.participant_from(p) for p in fenced.participants)
    return Receipt(
        key=moved.key,
        from_version=moved.before,
        to_version=moved.to,
        stages_ms={**moved.stages_ms, "fence": fenced.ms},
        gates=moved.gates,
        participants=participants,
        requests=tuple(convert.retired_from(r) for r in fenced.requests),
        residual_ms=fenced.residual_ms if fenced.HasField("residual_ms") else None,
        fence=convert.fence_from(fenced),
        frontier_tokens=min((p.frontier_tokens for p in participants), default=0),
        pin=convert.pin_from(fenced, call.contract),
        trace_id=trace_id(call.traceparent),
        replayed=replayed,
        extra=(extra or {}) | convert.extra_from(fenced),
    )


def to_json(receipt: Receipt) -> str:
    """One line."""
    return json.dumps(codec.receipt_to_dict(receipt), separators=(",", ":"))

"""Builds the receipt of a call from its answers, for callers without a driver of their own
(C8). Pure.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from retire.protocol import codec
from retire.protocol.contract import PinLease, Receipt
from retire.sidecar import convert
from retire.sidecar.calls import trace_id

if TYPE_CHECKING:
    from retire.protocol.contract import GateResult
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.calls import Call
    from retire.sidecar.pb import node_pb2 as pb


def build(call: Call) -> Receipt:
    """The receipt of a call that has all three answers."""
    assert call.committed and call.unpublishable and call.fenced, "the call is not over"
    committed, fenced = call.committed, call.fenced
    participants = tuple(convert.participant_from(p) for p in fenced.participants)
    return Receipt(
        key=call.key,
        from_version=convert.version_from(getattr(committed, "from")),
        to_version=convert.version_from(committed.to),
        stages_ms={
            "commit": committed.ms,
            "unpublishable": call.unpublishable.ms,
            "fence": fenced.ms,
        },
        gates=tuple(convert.gate_from(g) for g in call.unpublishable.gates),
        participants=participants,
        requests=tuple(convert.retired_from(r) for r in fenced.requests),
        residual_ms=fenced.residual_ms if fenced.HasField("residual_ms") else None,
        fence=convert.fence_from(fenced),
        frontier_tokens=min((p.frontier_tokens for p in participants), default=0),
        pin=_pin(call, fenced),
        trace_id=trace_id(call.traceparent),
        replayed=committed.replayed,
        extra={"missing": list(fenced.missing)} if fenced.missing else {},
    )


def of_moved(
    key: ScopeKey, to: Version, call: Call, gates: list[GateResult], fenced: pb.Fenced
) -> Receipt:
    """The receipt of a scope that ``call``, on an ancestor, moved: ``extra["ancestor"]``."""
    extra: dict[str, object] = {"ancestor": call.key.scope}
    if fenced.missing:
        extra["missing"] = list(fenced.missing)
    participants = tuple(convert.participant_from(p) for p in fenced.participants)
    closed_ms = max((gate.ms for gate in gates), default=0.0)
    stages_ms = {"unpublishable": closed_ms, "fence": fenced.ms}
    return Receipt(
        key=key,
        from_version=replace(to, epoch=to.epoch - 1),  # commit.lua: each by one
        to_version=to,
        stages_ms=({"commit": call.committed.ms} if call.committed else {}) | stages_ms,
        gates=tuple(gates),
        participants=participants,
        requests=tuple(convert.retired_from(r) for r in fenced.requests),
        residual_ms=fenced.residual_ms if fenced.HasField("residual_ms") else None,
        fence=convert.fence_from(fenced),
        frontier_tokens=min((p.frontier_tokens for p in participants), default=0),
        pin=_pin(call, fenced),
        trace_id=trace_id(call.traceparent),
        extra=extra,
    )


def to_json(receipt: Receipt) -> str:
    """One line."""
    return json.dumps(codec.receipt_to_dict(receipt), separators=(",", ":"))


def _pin(call: Call, fenced: pb.Fenced) -> PinLease | None:
    if not fenced.pinned_blocks:
        return None
    return PinLease(
        blocks=fenced.pinned_blocks,
        tier=call.contract.tier,
        expires_s=call.contract.ttl_s,
        quota_left=fenced.quota_left if fenced.HasField("quota_left") else None,
    )

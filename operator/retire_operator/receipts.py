"""The last transitions of a scope: from the sidecars' words into the lines of the status. Pure.

A transition is told several times (by the call that made it, by every node's stream, by receipts
kept on nodes, by the status itself); here they become one line. Must never do IO.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from retire.protocol import codec
from retire.protocol.contract import LATE, GateOutcome
from retire.protocol.errors import InvalidField
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from retire.protocol.contract import Receipt
    from retire.sidecar.pb import node_pb2 as pb

LINES_MAX: Final = 8
REVISION: Final = "revision"
RUNTIME: Final = "runtime"
MOVING: Final = ("supersede", "cancel")
HOLDING: Final = ("pause", "resume")
# A pause keeps the version, so two reports of one are told apart from two pauses by their times.
HOLDING_APART_S: Final = 10.0
_ERROR_CHARS: Final = 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One transition; field names are those of ``status.receipts`` in snake case."""

    kind: str
    to_version: Version
    by: str = RUNTIME
    at: str | None = None  # RFC 3339, whole seconds
    from_version: Version | None = None
    trace_id: str | None = None
    commit_ms: float | None = None
    unpublishable_ms: float | None = None
    fence_ms: float | None = None
    residual_ms: float | None = None
    gates: int | None = None
    gates_lease_ended: int | None = None
    retired_requests: int | None = None
    inheritable_tokens: int | None = None
    certified_tokens: int | None = None
    pinned_blocks: int | None = None
    stopped_by: str | None = None
    error: str | None = None
    idempotency_key: str | None = None  # of the call that made it; not in the status

    @property
    def moves(self) -> bool:
        """It changed the version."""
        return self.kind in MOVING


_NAMES: Final = {
    field.name: "".join(
        word if at == 0 else word.capitalize() for at, word in enumerate(field.name.split("_"))
    )
    for field in fields(Line)
    if field.name != "idempotency_key"
}


def rfc3339(unix_s: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def author_of(idempotency_key: str, uid: str) -> str:
    """``revision`` when the call was made for this object, by whichever operator."""
    return REVISION if uid and idempotency_key.startswith(f"cr/{uid}/") else RUNTIME


def by(line: Line, uid: str) -> Line:
    """The line as the object of ``uid`` tells it."""
    known = line.idempotency_key
    return line if known is None else replace(line, by=author_of(known, uid))


def to_status(line: Line) -> dict[str, Any]:
    """As it stands in ``status.receipts``."""
    found = {shown: getattr(line, name) for name, shown in _NAMES.items()}
    return {
        name: str(value) if isinstance(value, Version) else value
        for name, value in found.items()
        if value is not None
    }


def from_status(rows: Iterable[Mapping[str, Any]]) -> tuple[Line, ...]:
    """Lines of an earlier status; rows that cannot be read are left out."""
    found = []
    for row in rows:
        try:
            values: dict[str, Any] = {
                name: row.get(key) for name, key in _NAMES.items() if row.get(key) is not None
            }
            for name in ("from_version", "to_version"):
                if name in values:
                    values[name] = Version.parse(str(values[name]))
            found.append(Line(**values))
        except (InvalidField, TypeError):
            continue
    return tuple(found)


def from_record(record: pb.TransitionRecord) -> Line | None:
    """A line of a node's stream; None for what is no transition of a scope (register)."""
    if record.kind == "register":
        return None
    line = Line(
        kind="supersede" if record.kind == "receipt" else record.kind,
        to_version=Version(record.to.term, record.to.epoch),
        idempotency_key=record.idempotency_key or None,
        at=rfc3339(record.at_unix_s) if record.at_unix_s else None,
    )
    if record.kind != "receipt":
        before = getattr(record, "from")
        line = replace(line, from_version=Version(before.term, before.epoch))
    return with_receipt(line, record.receipt_json)


def with_receipt(line: Line, receipt_json: str) -> Line:
    """The line with what its receipt says; an unreadable one says nothing."""
    if not receipt_json:
        return line
    try:
        receipt = codec.receipt_from_dict(json.loads(receipt_json))
    except (ValueError, InvalidField):
        return line
    return _completed(line, receipt)


def _completed(line: Line, receipt: Receipt) -> Line:
    stages, ended = receipt.stages_ms, GateOutcome.LEASE_ENDED
    error = receipt.error or {}
    if receipt.stop_reason is not None:
        line = replace(
            line,
            inheritable_tokens=receipt.inheritable_tokens,
            certified_tokens=receipt.certified_tokens,
            stopped_by=receipt.stop_reason.value,
        )
    if receipt.extra.get(LATE):
        return line
    return replace(
        line,
        from_version=receipt.from_version,
        trace_id=receipt.trace_id or line.trace_id,
        commit_ms=_ms(stages.get("commit")),
        unpublishable_ms=_ms(stages.get("unpublishable")),
        fence_ms=_ms(stages.get("fence")),
        residual_ms=_ms(receipt.residual_ms),
        gates=len(receipt.gates),
        gates_lease_ended=sum(gate.outcome is ended for gate in receipt.gates),
        retired_requests=len(receipt.requests),
        pinned_blocks=receipt.pin.blocks if receipt.pin else 0,
        error=str(error.get("message") or error)[:_ERROR_CHARS] if error else None,
    )


def from_events(line: Line, events: Sequence[pb.TransitionEvent]) -> Line:
    """The line of a Supersede that this operator called, from the answers that came."""
    for event in events:
        match event.WhichOneof("event"):
            case "committed":
                line = replace(
                    line,
                    from_version=_version(getattr(event.committed, "from")),
                    to_version=_version(event.committed.to),
                    commit_ms=_ms(event.committed.ms),
                )
                line = with_receipt(line, event.committed.receipt_json)
            case "unpublishable" if line.gates is None or line.unpublishable_ms is None:
                gates = event.unpublishable.gates
                line = replace(
                    line,
                    unpublishable_ms=_ms(event.unpublishable.ms),
                    gates=len(gates),
                    gates_lease_ended=sum(gate.outcome == "lease_ended" for gate in gates),
                )
            case "fenced" if line.fence_ms is None:
                fenced = event.fenced
                residual = fenced.residual_ms if fenced.HasField("residual_ms") else None
                line = replace(
                    line,
                    fence_ms=_ms(fenced.ms),
                    residual_ms=_ms(residual),
                    retired_requests=len(fenced.requests),
                    pinned_blocks=fenced.pinned_blocks,
                )
            case _:
                continue
    return line


def merged(*sources: Iterable[Line]) -> tuple[Line, ...]:
    """One line a transition, newest first, at most LINES_MAX. Earlier sources are trusted first;
    later ones fill in what they left out."""
    lines: list[Line] = []
    for line in (line for source in sources for line in source):
        at = next((i for i, known in enumerate(lines) if _same(known, line)), None)
        if at is None:
            lines.append(line)
        else:
            lines[at] = _filled(lines[at], line)
    lines.sort(key=lambda line: (line.at or "", line.to_version), reverse=True)
    lines.sort(key=lambda line: line.to_version, reverse=True)
    return tuple(lines[:LINES_MAX])


def _same(one: Line, other: Line) -> bool:
    if one.to_version != other.to_version:
        return False
    if one.kind in HOLDING or other.kind in HOLDING:
        return one.kind == other.kind and abs(_seconds(one) - _seconds(other)) <= HOLDING_APART_S
    return True


def _seconds(line: Line) -> float:
    try:
        return datetime.fromisoformat(line.at or "").timestamp()
    except ValueError:
        return 0.0


def _filled(known: Line, other: Line) -> Line:
    """What is known stays; a revision's key says who made it, wherever it was seen."""
    missing = {
        field.name: getattr(other, field.name)
        for field in fields(Line)
        if getattr(known, field.name) is None and getattr(other, field.name) is not None
    }
    if REVISION in (known.by, other.by):
        missing["by"] = REVISION
    if known.kind == "supersede" and other.kind == "cancel":
        missing["kind"] = "cancel"  # a receipt alone does not say that it ended the scope
    return replace(known, **missing)


def _version(message: pb.Version) -> Version:
    return Version(message.term, message.epoch)


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)

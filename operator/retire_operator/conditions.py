"""Conditions after KEP-1623: a list keyed by type, times that change only with the status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from retire_operator.receipts import rfc3339

MESSAGE_CHARS: Final = 2048  # the schema allows 32768; a status is for reading


class Type(Enum):
    """Every condition of a ServingScope, in the order in which they are written."""

    READY = "Ready"
    FENCED = "Fenced"
    PREFIX_CERTIFIED = "PrefixCertified"
    SUCCESSOR_ADMITTED = "SuccessorAdmitted"
    RECLAIMED = "Reclaimed"
    REGISTRY_SYNCED = "RegistrySynced"
    QUOTA_AVAILABLE = "QuotaAvailable"


class State(Enum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition without its times."""

    type: Type
    state: State
    reason: str  # CamelCase
    message: str = ""


def merged(
    old: Sequence[Mapping[str, Any]],
    findings: Iterable[Finding],
    *,
    generation: int,
    now_s: float,
) -> list[dict[str, Any]]:
    """The list to write. Conditions of others are kept; a time moves only when the status does."""
    before = {str(row.get("type")): row for row in old}
    ours = {finding.type.value: finding for finding in findings}
    foreign = [dict(row) for name, row in before.items() if name not in ours]
    return [
        _row(finding, before.get(name), generation=generation, now_s=now_s)
        for name, finding in ours.items()
    ] + foreign


def _row(
    finding: Finding, before: Mapping[str, Any] | None, *, generation: int, now_s: float
) -> dict[str, Any]:
    same = before is not None and before.get("status") == finding.state.value
    since = before.get("lastTransitionTime") if before is not None and same else None
    return {
        "type": finding.type.value,
        "status": finding.state.value,
        "observedGeneration": generation,
        "lastTransitionTime": since or rfc3339(now_s),
        "reason": finding.reason,
        "message": finding.message[:MESSAGE_CHARS],
    }


def find(rows: Iterable[Mapping[str, Any]], kind: Type) -> Mapping[str, Any] | None:
    """The condition of that type in a status."""
    return next((row for row in rows if row.get("type") == kind.value), None)

"""What the history says about one scope: commits, late publications, the rules.

The invariants judge; this only picks the scope's records. Must never ask the running system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retire.protocol import invariants
from retire.protocol.events import Change
from retire.protocol.history import Acknowledged, CommitMade, Published

if TYPE_CHECKING:
    from e2e_plans import Plan

    from retire.protocol.history import Record


def records(plan: Plan) -> list[Record]:
    """In the order of time."""
    found = plan.deployment.history.records()
    return [one for one in found if _key(one) == (plan.tenant, plan.name)]


def commits(plan: Plan, change: Change = Change.SUPERSEDE) -> list[str]:
    """Versions that were committed, in order."""
    return [
        str(one.to_version)
        for one in records(plan)
        if isinstance(one, CommitMade) and one.change is change
    ]


def published(plan: Plan, version: str) -> list[Published]:
    """Frames of a version that were handed to a transport."""
    return [
        one for one in records(plan) if isinstance(one, Published) and str(one.version) == version
    ]


def acknowledged_ns(plan: Plan, version: str) -> int:
    """When UNPUBLISHABLE of everything below that version was answered, first."""
    times = [
        one.at_ns
        for one in records(plan)
        if isinstance(one, Acknowledged) and str(one.version) == version
    ]
    assert times, f"nobody acknowledged {version} of {plan.name}"
    return min(times)


def violations(given: list[Record]) -> list[str]:
    """Names of the rules that a history breaks."""
    return [one.name for one in invariants.check(given)]


def _key(record: Record) -> tuple[str, str]:
    key: Any = getattr(record, "key", None)
    return ("", "") if key is None else (key.tenant, key.scope)

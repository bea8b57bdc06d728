"""What a rule of the decision may find, and what several rules ask. Pure.

Phase, verdict and plan are values; the rules themselves are in decide.py. Must never do IO.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from retire_operator import actions as do
from retire_operator.conditions import State
from retire_operator.facts import Facts, Record, Unknown

# A blocked object looks again this often. What mends it is mostly seen at once (pods, parents,
# other ServingScopes); ConfigMaps, Secrets and annotations of a namespace are not watched.
RETRY_S: Final = 3.0


class Phase(Enum):
    """``status.phase``."""

    PENDING = "Pending"
    ACTIVE = "Active"
    RETIRING = "Retiring"
    PAUSED = "Paused"
    CANCELLED = "Cancelled"
    BLOCKED = "Blocked"
    DEGRADED = "Degraded"
    DELETING = "Deleting"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule found: the phase, the Ready condition, and what to do next."""

    phase: Phase
    state: State
    reason: str
    message: str = ""
    actions: tuple[do.Action, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and the status that is true before it is done."""

    actions: tuple[do.Action, ...]
    status: dict[str, Any]
    verdict: Verdict

    @property
    def settled(self) -> bool:
        """Nothing is left to do."""
        return all(isinstance(action, do.Requeue) for action in self.actions)


def idempotency_key(facts: Facts, kind: str, what: object) -> str:
    """``cr/<uid>/<kind>/<epoch or generation>``."""
    return f"cr/{facts.desired.uid}/{kind}/{what}"


def blocked(reason: str, message: str, *more: do.Action) -> Verdict:
    """Somebody has to mend something; it is looked at again meanwhile."""
    return Verdict(
        Phase.BLOCKED, State.FALSE, reason, message, actions=(*more, do.Requeue(RETRY_S))
    )


def suspicion(facts: Facts) -> tuple[do.TellGuard, ...]:
    """What was acknowledged must be in the registry."""
    known, record = facts.seen.version, facts.record
    if known is None or record is Unknown.UNREADABLE:
        return ()
    if isinstance(record, Record) and record.version >= known:
        return ()
    held = f"at {record.version}" if isinstance(record, Record) else "unknown to it"
    return (
        do.TellGuard(f"the status says {known}, but in the registry {facts.desired.key} is {held}"),
    )


def moving(facts: Facts, reason: str, action: do.Action) -> Verdict:
    """A transition goes through a sidecar; without one it waits."""
    stopped = cannot_move(facts)
    if stopped:
        return no_node(facts, phase=Phase.BLOCKED)
    assert isinstance(facts.record, Record)
    message = f"at {facts.record.version}"
    if facts.failure is not None:
        reason, message = facts.failure.reason, facts.failure.message
    return Verdict(Phase.RETIRING, State.FALSE, reason, message, actions=(action,))


def cannot_move(facts: Facts) -> str:
    """Why no transition can be made now; empty: one can."""
    if facts.nodes:
        return ""
    pool = facts.desired.pool
    if not facts.pool_exists:
        return f"spec.poolRef: no pod carries the label serving.retire.dev/pool={pool}"
    return f"no node of pool {pool!r} is ready"


def no_node(facts: Facts, *, phase: Phase) -> Verdict:
    """There is no sidecar to go through."""
    reason = "NoReadyNode" if facts.pool_exists else "UnknownPool"
    return Verdict(phase, State.FALSE, reason, cannot_move(facts), actions=(do.Requeue(RETRY_S),))

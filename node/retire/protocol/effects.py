"""What the sidecar's shell must do after a step, in the order given: one frozen value per deed.

An effect is an order, not a report: the shell executes it and feeds what happened back as events.
Must never import anything outside the standard library and ``retire.protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass

from retire.protocol.contract import Contract, GateOutcome, Participant
from retire.protocol.events import Change, Gate, Refusal
from retire.protocol.versions import Version


@dataclass(frozen=True, slots=True)
class CommitToRegistry:
    """Call the registry's compare-and-set; feed ``Committed`` or ``CommitRefused`` back."""

    call: str
    change: Change
    expected: Version
    idempotency_key: str
    body_digest: str


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """Write a new stamp for ``version`` to the scope's mailbox word. Always before SwitchGates."""

    version: Version
    generation: int


@dataclass(frozen=True, slots=True)
class SwitchGates:
    """Tell these API processes of this host that the word changed; each answers ``GateAcked``."""

    version: Version
    change: Change
    gates: tuple[Gate, ...]


@dataclass(frozen=True, slots=True)
class WatchLease:
    """Feed ``GateLeaseEnded(gate, version)`` when ``gate.wait_s(lease_left_s)`` has passed."""

    gate: str
    version: Version
    lease_left_s: float


@dataclass(frozen=True, slots=True)
class FenceEngine:
    """Fence this node's engine to ``version``; feed its ``FenceReceipt`` back."""

    version: Version
    contract: Contract
    terminal: bool  # no successor will come: keep nothing


@dataclass(frozen=True, slots=True)
class WatchFence:
    """Feed ``FenceTimedOut(version)`` when the node's fence timeout has passed."""

    version: Version


@dataclass(frozen=True, slots=True)
class ReportAck:
    """Every gate of this host is behind ``version``: tell the registry (other committers wait)."""

    version: Version


@dataclass(frozen=True, slots=True)
class AnswerCommitted:
    """First answer to ``call``: COMMIT. For pause and resume the only one."""

    call: str
    change: Change
    from_version: Version
    to_version: Version
    generation: int
    replayed: bool


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Second answer: UNPUBLISHABLE. Every gate is accounted for; ``gates`` says how."""

    calls: tuple[str, ...]
    from_version: Version
    to_version: Version
    gates: tuple[tuple[str, GateOutcome], ...]


@dataclass(frozen=True, slots=True)
class AnswerFenced:
    """Third answer: every receipt is in, or is not waited for any longer (``missing``)."""

    calls: tuple[str, ...]
    to_version: Version
    participants: tuple[Participant, ...]
    missing: tuple[str, ...]  # nodes


@dataclass(frozen=True, slots=True)
class WatchRetention:
    """Feed ``RetentionEnded(version)`` after ``ttl_s`` unless a successor was admitted."""

    version: Version
    ttl_s: float


@dataclass(frozen=True, slots=True)
class ReclaimNode:
    """Everything of versions below ``version`` on ``node`` may go; answered by ``Reclaimed``.

    An engine that reclaims by itself needs no message: the shell of that node answers.
    """

    node: str
    version: Version


@dataclass(frozen=True, slots=True)
class Refuse:
    """Last answer to ``call``: it had no effect. ``current`` as far as known."""

    call: str
    refusal: Refusal
    current: Version | None


Effect = (
    CommitToRegistry
    | StoreVersion
    | SwitchGates
    | WatchLease
    | FenceEngine
    | WatchFence
    | ReportAck
    | AnswerCommitted
    | Acknowledge
    | AnswerFenced
    | WatchRetention
    | ReclaimNode
    | Refuse
)

"""The state of one scope as one node's sidecar knows it, and of each version change not yet over.

Plain facts; every phase is derived from them, so state and phase cannot disagree. Only
``transitions.py`` and ``stages.py`` make new states. Imports nothing outside ``retire.protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from retire.protocol.contract import Contract, GateOutcome
from retire.protocol.events import DEFAULT_CONTRACT, Admission, Change, FenceReceipt, Gate
from retire.protocol.versions import ScopeKey, Version


class Phase(Enum):
    """Where the scope stands: its admission when idle, else the stage of its newest transition."""

    UNKNOWN = "unknown"  # this node has not registered or seen it
    CURRENT = "current"  # one version, nothing else
    PAUSED = "paused"  # the same, taking no new work
    ADVANCING = "advancing"  # committed, not UNPUBLISHABLE yet
    FENCING = "fencing"  # UNPUBLISHABLE, receipts are out
    ALIGNING = "aligning"  # fenced, no certificate yet
    RESUMING = "resuming"  # certified, successor not admitted yet
    RECLAIMING = "reclaiming"  # nothing waits for it any more but memory
    CANCELLED = "cancelled"  # terminal


class RegistryLink(Enum):
    """Whether commits can be made. LOST changes nothing that is current."""

    SYNCED = "synced"
    LOST = "lost"


class Successor(Enum):
    """What became of the work that a transition makes room for."""

    AWAITED = "awaited"
    CERTIFIED = "certified"
    ADMITTED = "admitted"
    NONE = "none"  # cancelled, retention over, or a later version took its place


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for the registry's answer."""

    call: str
    change: Change
    expected: Version
    contract: Contract


@dataclass(frozen=True, slots=True)
class GateAccount:
    """The highest version for which a gate is accounted. It only rises."""

    gate: str
    version: Version
    outcome: GateOutcome


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of authority, ``from_version`` to ``to_version``, until all its memory is free."""

    from_version: Version
    to_version: Version  # Invariant: above from_version
    change: Change
    contract: Contract = DEFAULT_CONTRACT
    calls: tuple[str, ...] = ()  # RPCs of this node that wait for UNPUBLISHABLE
    fence_calls: tuple[str, ...] = ()  # acknowledged, they wait for the fence
    gates: tuple[Gate, ...] = ()  # every gate that could publish below to_version
    reported: bool = False  # ReportAck is out. Invariant: every local gate is accounted for
    acknowledged: bool = False  # UNPUBLISHABLE. Invariant: every gate is accounted for
    nodes: frozenset[str] = frozenset()  # nodes that may run work of older versions
    missing: frozenset[str] = frozenset()  # of those: no longer waited for; writers may be open
    fenced: bool = False  # AnswerFenced is out. Invariant: acknowledged, no node awaited
    successor: Successor = Successor.AWAITED
    unreclaimed: frozenset[str] = frozenset()  # nodes that may hold memory of older versions
    # Nodes told to reclaim. Invariant: a subset of unreclaimed, and their writers are closed.
    reclaiming: frozenset[str] = frozenset()

    @property
    def stage(self) -> Phase:
        """The first of the five stages that is not over."""
        if not self.acknowledged:
            return Phase.ADVANCING
        if not self.fenced:
            return Phase.FENCING
        match self.successor:
            case Successor.AWAITED:
                return Phase.ALIGNING
            case Successor.CERTIFIED:
                return Phase.RESUMING
            case _:
                return Phase.RECLAIMING

    @property
    def is_decided(self) -> bool:
        """Its successor has adopted what it wanted, or never will."""
        return self.successor in (Successor.ADMITTED, Successor.NONE)

    @property
    def is_over(self) -> bool:
        """Nothing is left to do: not even memory."""
        return self.fenced and self.is_decided and not self.unreclaimed and not self.fence_calls


@dataclass(frozen=True, slots=True)
class ScopeState:
    """Everything one sidecar knows of one scope."""

    key: ScopeKey
    node: str  # this sidecar's node
    version: Version | None = None  # None: unknown. Invariant: only rises
    generation: int = 0
    admission: Admission = Admission.OPEN  # Invariant: CANCELLED is never left
    admission_at: tuple[int, int] = (0, 0)  # (term, commit sequence) that set admission; only rises
    registry: RegistryLink = RegistryLink.SYNCED
    pending: tuple[Pending, ...] = ()
    transitions: tuple[Transition, ...] = ()  # oldest first. Invariant: to_version strictly rises
    # Kept only while a call is pending or a transition open; each counts for every lower version:
    accounts: tuple[GateAccount, ...] = ()  # at most one a gate
    receipts: tuple[FenceReceipt, ...] = ()  # at most one a node and version

    @property
    def phase(self) -> Phase:
        """Derived; see :class:`Phase`."""
        if self.version is None:
            return Phase.UNKNOWN
        if self.transitions:
            return self.transitions[-1].stage
        return _IDLE[self.admission]

    def transition_to(self, version: Version) -> Transition | None:
        """The open transition that committed ``version``."""
        return next((t for t in self.transitions if t.to_version == version), None)

    def outcome(self, gate: str, version: Version) -> GateOutcome | None:
        """How ``gate`` was accounted for at ``version``; None: it may still publish below it."""
        for account in self.accounts:
            if account.gate == gate and account.version >= version:
                return account.outcome
        return None

    def receipt(self, node: str, version: Version) -> FenceReceipt | None:
        """The first receipt of ``node`` that closes every writer below ``version``."""
        found = [r for r in self.receipts if r.node == node and r.to_version >= version]
        return min(found, key=_by_version, default=None)


_IDLE = {
    Admission.OPEN: Phase.CURRENT,
    Admission.PAUSED: Phase.PAUSED,
    Admission.CANCELLED: Phase.CANCELLED,
}


def _by_version(receipt: FenceReceipt) -> Version:
    return receipt.to_version

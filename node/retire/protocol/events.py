"""What can happen to a scope, as the sidecar's shell sees it: one frozen value per fact.

Versions in events are facts, not wishes; ``transitions.step`` decides what they change. Must never
import anything outside the standard library and ``retire.protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from retire.protocol.contract import Contract, Participant, StopReason
from retire.protocol.versions import Version

DEFAULT_CONTRACT: Final = Contract()


class Change(Enum):
    """What a commit does to a scope. REBUILD is the only one that no client asks for."""

    SUPERSEDE = "supersede"  # epoch + 1
    CANCEL = "cancel"  # epoch + 1, terminal: no successor
    PAUSE = "pause"  # same version: authority is kept
    RESUME = "resume"  # same version
    REBUILD = "rebuild"  # the registry lost its data: term up

    @property
    def moves_version(self) -> bool:
        """Whether the old version loses authority."""
        return self not in (Change.PAUSE, Change.RESUME)


class Admission(Enum):
    """Whether the scope takes new work. CANCELLED is terminal."""

    OPEN = "open"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Refusal(Enum):
    """Why a call had no effect; the values are the codes of ``errors.py``."""

    VERSION_CONFLICT = "version_conflict"
    CLOSED = "scope_cancelled"
    IDEMPOTENCY = "idempotency"
    UNAVAILABLE = "registry_unavailable"  # no answer: nothing is known to have changed
    NEED_REGISTER = "need_register"
    TERM_MISMATCH = "term_mismatch"


@dataclass(frozen=True, slots=True)
class Gate:
    """Something that may publish: an API process of this host, or another node as a whole.

    ``lease_left_s`` is what the registry said at COMMIT. None: a process of this host, which acks
    over its link.
    """

    name: str  # "<node>/<process>", or "<node>" for another node
    node: str
    lease_left_s: float | None = None

    @property
    def is_local(self) -> bool:
        """Whether the gate reads this host's mailbox."""
        return self.lease_left_s is None


@dataclass(frozen=True, slots=True)
class Registered:
    """The registry's record of the scope (answer of register, join, get or a snapshot).

    ``sequence``: the tenant's commit sequence then, 0 when unknown. ``gates``: the API processes of
    this host.
    """

    version: Version
    generation: int = 0
    admission: Admission = Admission.OPEN
    sequence: int = 0
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """A client of this node asks for a change; ``call`` names the RPC that waits."""

    call: str
    change: Change
    expected: Version
    idempotency_key: str
    body_digest: str = ""
    contract: Contract = DEFAULT_CONTRACT


@dataclass(frozen=True, slots=True)
class Committed:
    """The registry made ``call``'s change durable (the COMMIT point), or had made it before.

    ``gates``: the API processes of this host and every *other* node that joined the scope, with
    what was left of its lease inside the committing script.
    """

    call: str
    change: Change
    from_version: Version
    to_version: Version
    sequence: int
    generation: int = 0
    gates: tuple[Gate, ...] = ()
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """The registry refused ``call``, or did not answer; no effect is known."""

    call: str
    refusal: Refusal
    current: Version | None = None


@dataclass(frozen=True, slots=True)
class VersionObserved:
    """A commit seen in the tenant's stream: by whomever, late, twice or out of order.

    ``gates``: the API processes of this host.
    """

    change: Change
    version: Version
    sequence: int
    generation: int = 0
    gates: tuple[Gate, ...] = ()
    contract: Contract = DEFAULT_CONTRACT


@dataclass(frozen=True, slots=True)
class GateAcked:
    """The gate can no longer publish below ``version`` (its barrier has run)."""

    gate: str
    version: Version


@dataclass(frozen=True, slots=True)
class GateLeaseEnded:
    """The publish lease that the gate held at COMMIT of ``version`` has run out.

    A lease renewed after that commit was stored only after catching up (gate.py), so nothing below
    ``version`` is published from here on. Also for an API process that has exited.
    """

    gate: str
    version: Version


@dataclass(frozen=True, slots=True)
class FenceReceipt:
    """A node's engine is at its safe point for ``to_version``. No participants: it had no work."""

    node: str
    to_version: Version
    participants: tuple[Participant, ...] = ()


@dataclass(frozen=True, slots=True)
class FenceTimedOut:
    """Receipts still missing are not waited for any longer; the successor starts without them."""

    to_version: Version


@dataclass(frozen=True, slots=True)
class Certified:
    """ALIGN answered. ``tokens`` 0: a cold successor, which is always correct.

    ``node``: whose engine holds the certified blocks; empty: this node's.
    """

    to_version: Version
    tokens: int
    stop_reason: StopReason
    node: str = ""


@dataclass(frozen=True, slots=True)
class SuccessorAdmitted:
    """RESUME: the successor is admitted and has adopted what was certified."""

    to_version: Version
    request_id: str


@dataclass(frozen=True, slots=True)
class RetentionEnded:
    """No successor came for ``to_version`` within the contract's ttl, or none will come.

    No effect once a later version is current: what is retained then waits for that one's successor.
    """

    to_version: Version


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The node holds nothing of versions below ``version`` any more."""

    node: str
    version: Version


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node, or its engine, is gone: its blocks and pins are void. Its gates may be alive."""

    node: str


@dataclass(frozen=True, slots=True)
class RegistryLost:
    """The registry cannot be reached, or is not the one we knew."""


@dataclass(frozen=True, slots=True)
class RegistryFound:
    """The same registry, same term and incarnation, answers again."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The registry was written anew under a higher term; every token of a lower term is refused.

    ``gates``: the API processes of this host.
    """

    version: Version
    generation: int = 0
    gates: tuple[Gate, ...] = ()


AuthorityEvent = (
    Registered
    | ChangeRequested
    | Committed
    | CommitRefused
    | VersionObserved
    | RegistryLost
    | RegistryFound
    | Rebuilt
)
StageEvent = (
    GateAcked
    | GateLeaseEnded
    | FenceReceipt
    | FenceTimedOut
    | Certified
    | SuccessorAdmitted
    | RetentionEnded
    | Reclaimed
    | NodeLost
)
Event = AuthorityEvent | StageEvent

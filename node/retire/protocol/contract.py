"""What a caller asks of a transition (Contract, Policy) and what it is told (Receipt).

Value types only; their wire form is in ``codec.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey, Version

TTL_DEFAULT_S: Final = 30.0
TTL_MAX_S: Final = 3600.0


class Equivalence(Enum):
    """Required comparison of the successor's output with a clean execution (paper, section 3.1)."""

    EXACT = "exact"  # equal to a clean run that reuses the same prefix length, same numerical mode
    BATCH_INVARIANT = "batch-invariant"  # equal to a cold run too; needs a batch-invariant engine
    NONE = "none"


class Inherit(Enum):
    """Whether the successor may consume predecessor KV."""

    CERTIFIED = "certified"
    NEVER = "never"


class Tier(Enum):
    """Where a retained prefix lives until the successor adopts it."""

    HBM = "hbm"
    DRAM = "dram"


class Policy(Enum):
    """A new input while work runs, in the words LangGraph users know."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract C of a SUPERSEDE (design, section 3)."""

    equivalence: Equivalence = Equivalence.EXACT
    inherit: Inherit = Inherit.CERTIFIED
    tier: Tier = Tier.HBM
    ttl_s: float = TTL_DEFAULT_S  # how long an unclaimed prefix stays pinned
    fence_bound_ms: float | None = None  # None: the engine's default policy

    def __post_init__(self) -> None:
        if not 0 < self.ttl_s <= TTL_MAX_S:
            raise InvalidField("contract.ttl_s", self.ttl_s, f"above 0, at most {TTL_MAX_S:g}")
        if self.fence_bound_ms is not None and self.fence_bound_ms <= 0:
            raise InvalidField("contract.fence_bound_ms", self.fence_bound_ms, "above 0, or absent")


class GateOutcome(Enum):
    """How a gate came to be unable to publish the old version."""

    ACKED = "acked"
    LEASE_ENDED = "lease_ended"


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's part in UNPUBLISHABLE."""

    gate: str  # "<node>/<process>"
    outcome: GateOutcome
    ms: float  # since the SUPERSEDE call


class StopReason(Enum):
    """Why reuse stopped where it stopped; the first limit that binds, in ALIGN's order."""

    WHOLE_PROMPT = "whole_prompt"  # everything but the last prompt token is inherited
    FIRST_DIFFERENCE = "first_difference"  # the contexts differ here
    FRONTIER = "frontier"  # a participant had not written further
    BLOCK_BOUNDARY = "block_boundary"  # rounded down to a boundary shared by every KV group
    WINDOW = "window"  # a sliding group no longer holds its window here
    QUOTA = "quota"  # the tenant's pin quota was exhausted
    CONTRACT = "contract"  # inherit=never, or an equivalence this engine cannot give
    FINGERPRINT = "fingerprint"  # model, cache layout, adapter or numerical mode differ
    GENERATION = "generation"  # ownership ended (lease over, engine restarted, cache reset)
    RESTORE = "restore"  # its copy in host memory was late or damaged, or found no room in HBM
    NO_PREDECESSOR = "no_predecessor"  # nothing of the scope was in the engine


@dataclass(frozen=True, slots=True)
class Participant:
    """A participant's receipt: closed writers and the frontier, per (node, pp, tp, KV group)."""

    node: str
    boot_id: str
    pp_rank: int
    tp_rank: int
    kv_group: int
    frontier_tokens: int  # tokens whose KV is completely written
    closed: bool  # no writer of the old version is left


class FenceBranch(Enum):
    """How the step ended that ran when its work was superseded (design, section 6.4)."""

    QUANTUM = "quantum"  # by itself: it was short
    LAYER_STOP = "layer_stop"  # at the next safe point; its work is lost
    FINISH = "finish"  # computed to its end: cheaper than computing it again


@dataclass(frozen=True, slots=True)
class Fence:
    """The branch taken, and what the whole step was predicted to take."""

    branch: FenceBranch
    predicted_ms: float | None  # None: nothing measured yet


@dataclass(frozen=True, slots=True)
class RetiredRequest:
    """What became of one request of the old version."""

    request_id: str
    state: str  # "queued" | "prefill" | "decode" | "finished"
    prompt_tokens: int
    frontier_tokens: int
    last_published_index: int | None  # index of the last output token delivered; None: none was


@dataclass(frozen=True, slots=True)
class PinLease:
    """Blocks kept for the successor."""

    blocks: int
    tier: Tier
    expires_s: float  # seconds from the receipt
    quota_left: int | None  # blocks; None: the tenant has no quota


# In ``Receipt.extra``: only what ALIGN came to for a successor that came after its SUPERSEDE.
LATE: Final = "late_successor"
SAVED_MS: Final = "saved_ms"  # device time that the certified tokens would take, ms


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to every SUPERSEDE, never a bare 200 (C8)."""

    key: ScopeKey
    from_version: Version
    to_version: Version
    stages_ms: dict[str, float]  # since the call: commit, unpublishable, fence, align, resume
    gates: tuple[GateResult, ...] = ()
    participants: tuple[Participant, ...] = ()
    requests: tuple[RetiredRequest, ...] = ()
    residual_ms: float | None = None  # old work on the device after COMMIT; None: none was running
    fence: Fence | None = None  # None: no step was running
    frontier_tokens: int = 0
    inheritable_tokens: int = 0  # common prefix with the revised context
    certified_tokens: int = 0
    first_difference: int | None = None  # token position; None: one context extends the other
    stop_reason: StopReason | None = None  # None: no successor yet
    pin: PinLease | None = None
    successor_request_id: str | None = None
    error: dict[str, object] | None = None  # the engine refused the successor; old stays superseded
    trace_id: str | None = None
    replayed: bool = False  # answered from the idempotency record
    extra: dict[str, object] = field(default_factory=dict)

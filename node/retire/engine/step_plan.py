"""What a worker must know of a step's authority; travels on vLLM's ``SchedulerOutput``.

Value types only: pickled to every rank. Must never import vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from retire.mailbox import SlotRef
    from retire.protocol.contract import FenceBranch

PLAN: Final = "retire_plan"  # attribute of a SchedulerOutput
ENDED: Final = "retire_ended"  # attribute of a ModelRunnerOutput: an Ended, if anything was decided
STEP_MS: Final = "retire_step_ms"  # attribute of a ModelRunnerOutput: what its forward pass took
ABANDONED: Final = "retire_abandoned"  # attribute of a ModelRunnerOutput: the step was not computed


@dataclass(frozen=True, slots=True)
class ScopedWork:
    """A scope's request in one step."""

    request_id: str
    slot: SlotRef
    start: int  # its first token computed in the step
    tokens: int

    def shared(self, overlap: int | None) -> int:
        """Of its tokens in this step, those within the first ``overlap`` of its context."""
        return 0 if overlap is None else max(0, min(self.start + self.tokens, overlap) - self.start)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: who it works for, and whether it may be ended early."""

    serial: int
    tokens: int  # of all requests
    scoped: tuple[ScopedWork, ...]
    may_stop: bool  # nothing is built on it before it is launched
    armed: bool  # long enough to need safe points
    predicted_ms: float | None
    silent: bool = False  # nobody gets a token of it: only parts of prompts are computed

    def computes(self, request_id: str) -> bool:
        """Whether it works for this request of a scope."""
        return any(work.request_id == request_id for work in self.scoped)

    @property
    def bystander_tokens(self) -> int:
        """Tokens of requests without a scope."""
        return self.tokens - sum(work.tokens for work in self.scoped)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a worker decided on a step, some of whose work was superseded while it ran."""

    branch: FenceBranch
    left_ms: float = 0.0  # what was launched already and the device still has to do, estimated

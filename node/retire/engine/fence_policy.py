"""How a running step ends when its work is superseded: a pure cost model (design, section 6.4).

Three branches, chosen by cost: *quantum* (the step is short: its own end is near enough), *layer
stop* (stop launching at the next safe point; the step's work is lost), *finish* (what the step
computes is worth more than what is left of it). Times come in as arguments; must never import
vLLM, a clock or the mailbox.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

from retire.protocol.contract import FenceBranch as Branch

STEPS_KEPT: Final = 9  # of each kind
LONG_STEP_TOKENS: Final = 64  # a step below this is a decode step: it tells the fixed cost
BYSTANDER_SHARE: Final = 0.5  # of a step: what a bystander may lose to a stop that is not its own


class StepTimes:
    """What steps cost lately: a fixed part and a part by token, in ms.

    Medians of the last few: the first step of a new shape may take a thousand times longer
    (kernels are compiled), and must not decide what follows.
    """

    __slots__ = ("_base_ms", "_per_token_ms")

    def __init__(self) -> None:
        self._base_ms: deque[float] = deque(maxlen=STEPS_KEPT)
        self._per_token_ms: deque[float] = deque(maxlen=STEPS_KEPT)

    def measured(self, tokens: int, ms: float) -> None:
        """Take in a finished step of ``tokens`` scheduled tokens."""
        if tokens < LONG_STEP_TOKENS:
            self._base_ms.append(ms)
        else:
            self._per_token_ms.append(max(0.0, ms - self._fixed_ms()) / tokens)

    def predicted_ms(self, tokens: int) -> float | None:
        """What a step of ``tokens`` will take; None: no long step was measured yet."""
        if not self._per_token_ms:
            return None
        return self._fixed_ms() + median(self._per_token_ms) * tokens

    def compute_ms(self, tokens: int) -> float | None:
        """What ``tokens`` add to the steps that compute them; None: not measured yet."""
        return median(self._per_token_ms) * tokens if self._per_token_ms else None

    def _fixed_ms(self) -> float:
        return median(self._base_ms) if self._base_ms else 0.0


def worth_arming(predicted_ms: float | None, *, tokens: int, bound_ms: float) -> bool:
    """Whether a step may outlast the bound on residual work, so that it needs safe points."""
    if tokens < LONG_STEP_TOKENS:
        return False
    return predicted_ms is None or predicted_ms > bound_ms


@dataclass(frozen=True, slots=True)
class Running:
    """A step at a safe point, some of its work superseded."""

    tokens: int  # scheduled in the step
    useful_tokens: int  # of superseded work: those that its successor shares
    bystander_tokens: int  # of work that keeps its authority
    elapsed_ms: float
    predicted_ms: float | None

    @property
    def remaining_ms(self) -> float | None:
        """What is left of the step; None: unknown."""
        if self.predicted_ms is None:
            return None
        return max(0.0, self.predicted_ms - self.elapsed_ms)


def choose(step: Running, *, stop_ms: float) -> Branch:
    """LAYER_STOP or FINISH for an armed step; ``stop_ms``: what a stop itself takes.

    A stop saves what is left of the step and costs what somebody must compute again: the prefix
    that the successor shares and the bystanders' tokens. A bystander also waits for its token from
    the beginning again, so that beyond half of a step others are not stopped.
    """
    if step.useful_tokens + step.bystander_tokens >= step.tokens:
        return Branch.FINISH
    if step.predicted_ms is None or step.remaining_ms is None:
        return Branch.LAYER_STOP if not step.bystander_tokens else Branch.FINISH
    again_ms = step.predicted_ms * (step.useful_tokens + step.bystander_tokens) / step.tokens
    if step.bystander_tokens and step.elapsed_ms > BYSTANDER_SHARE * step.predicted_ms:
        return Branch.FINISH
    return Branch.LAYER_STOP if step.remaining_ms > again_ms + stop_ms else Branch.FINISH

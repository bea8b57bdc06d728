"""Plans each step for the workers, and learns what steps cost (design, section 6.4).

One object a scheduler. Owns the plan that travels with a step, whether it is armed, and the running
averages behind that choice. Must never import vLLM: it sees ids and numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from retire.engine import fence_policy
from retire.engine.fence_policy import StepTimes
from retire.engine.step_plan import ScopedWork, StepPlan
from retire.protocol.contract import Fence, FenceBranch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.engine.step_plan import Ended
    from retire.engine.tag import Tag

BOUND_ENV: Final = "RETIRE_FENCE_BOUND_MS"
BOUND_MS: Final = 8.0


@dataclass(slots=True)
class StepControl:
    """``may_stop``: the engine is on the allow-list. ``ahead``: steps queue behind each other.

    ``launched``: whether every rank has given all of a step (its serial) to the device: from then
    on it is computed to its end.
    """

    may_stop: bool
    ahead: bool
    bound_ms: float = BOUND_MS
    launched: Callable[[int], bool] = lambda _: False
    times: StepTimes = field(default_factory=StepTimes)
    ended: int = 0  # serial of the newest planned step whose result is in
    _serial: int = 0
    _running: dict[int, StepPlan] = field(default_factory=dict)  # by id of the step

    @property
    def holding(self) -> bool:
        """Nothing may be built on what is in flight: an armed step may still be abandoned.

        Nor is anything queued behind one that brings tokens: launching the next takes the host as
        long as the device needs for it, and these tokens would wait.
        """
        return self.ahead and any(
            plan.armed and not (plan.silent and self.launched(plan.serial))
            for plan in self._running.values()
        )

    @property
    def launching(self) -> int | None:
        """Serial of the armed step behind which one may queue once it is launched; or None."""
        armed = [plan for plan in self._running.values() if plan.armed]
        if not self.ahead or not armed or not all(plan.silent for plan in armed):
            return None
        return max(plan.serial for plan in armed)

    def awaited(self, request_id: str) -> bool:
        """Whether results to come, an armed step's among them, tell how far a request comes."""
        return (
            self.ahead
            and any(plan.armed for plan in self._running.values())
            and any(plan.computes(request_id) for plan in self._running.values())
        )

    def plan(
        self,
        step: int,
        work: Mapping[str, tuple[int, int]],
        tags: Mapping[str, Tag],
        *,
        silent: bool = False,
        whole: Callable[[], bool] = lambda: False,
    ) -> StepPlan | None:
        """Plan a scheduled step; ``work``: request id -> (first token, tokens). None: no scope.

        ``silent``: nobody gets a token of it. ``whole``: whether somebody in the step needs all of
        it; asked only where it decides.
        """
        scoped = tuple(
            ScopedWork(request_id, tags[request_id].slot, start, tokens)
            for request_id, (start, tokens) in work.items()
            if request_id in tags
        )
        if not scoped:
            return None
        tokens = sum(tokens for _, tokens in work.values())
        predicted_ms = self.times.predicted_ms(tokens)
        long = max(one.tokens for one in scoped) >= fence_policy.LONG_STEP_TOKENS
        worth = long and fence_policy.worth_arming(
            predicted_ms, tokens=tokens, bound_ms=self.bound_ms
        )
        may_stop = self.may_stop and (worth or not self.ahead) and not whole()
        armed = may_stop and worth
        self._serial += 1
        plan = StepPlan(self._serial, tokens, scoped, may_stop, armed, predicted_ms, silent)
        self._running[step] = plan
        return plan

    def done(self, step: int, ms: float | None) -> StepPlan | None:
        """A step's result is in; ``ms``: what it took, None when it was abandoned. Its plan."""
        plan = self._running.pop(step, None)
        if plan is not None:
            self.ended = plan.serial
        if plan is not None and ms is not None:
            self.times.measured(plan.tokens, ms)
        return plan


def fence_of(plan: StepPlan | None, told: Ended | None) -> Fence | None:
    """How the step ended for what was superseded in it; None: no scope's step was running."""
    if plan is None:
        return None
    return Fence(FenceBranch.QUANTUM if told is None else told.branch, plan.predicted_ms)


def bound_from_env() -> float:
    """Bound on residual work that a node aims at, ms; ValueError names the variable."""
    text = os.environ.get(BOUND_ENV)
    if text is None:
        return BOUND_MS
    try:
        bound = float(text)
    except ValueError:
        bound = 0.0
    if not 0 < bound <= 60_000:
        raise ValueError(f"{BOUND_ENV} must be milliseconds above 0, at most 60000; got {text!r}")
    return bound

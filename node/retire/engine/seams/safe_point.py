"""Seam: safe points inside a step, one before each attention layer.

Replaces the name ``get_attention_context`` in ``vllm.model_executor.layers.attention.attention``:
both attention operators (the write of a layer's KV, then attention) look it up at call time, in
eager mode, under torch.compile and in piecewise graphs, so that raising there stops the write too.
Not called under full graphs: those steps are short. No KV connector is needed, so that a
deployment's own connector is left alone. Upstream status: internal. Tested on 0.26.0.

On a GPU the host gives work to the device long before the device does it: a check on the host
bounds what is *launched*. In an armed step the host therefore launches each layer just in time
(``engine/pace.py``), k layers before the device comes to it, and looks again while it waits.

Ranks that stop at different layers deadlock in the next all-reduce. The first rank of a tensor
parallel group decides, and writes the layer at which all of them stop to its progress line, far
enough ahead that none can have passed it: to reach layer i + k + 2 a rank needs what the first
gives to the all-reduces of layer i + k + 1, and so reads what that had written at layer i.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.engine import fence_policy
from retire.engine.fence_policy import Branch
from retire.engine.pace import Pace
from retire.engine.step_plan import Ended
from retire.mailbox import GateState, MailboxView, Overlaps, ProgressLines
from retire.mailbox.progress import P_LAYER_LAUNCHED, P_STEP, P_STEP_ENDED, P_STOPPED_AT

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.engine.step_plan import StepPlan

_UNKNOWN: Final = -1


class StepAbandoned(Exception):
    """Raised at a safe point and caught in the model runner: nothing further is launched."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that must stop together."""

    rank: int = 0
    leader: int = 0
    size: int = 1


class SafePoints:
    """The safe points of one model runner; inactive between armed steps."""

    def __init__(self, ranks: Callable[[], Ranks] = Ranks) -> None:
        self._ranks_now = ranks
        self._agreement: _Agreement | None = None  # None: this rank decides for itself
        self._line: memoryview[int] | None = None  # of this rank: where it is, for those who wait
        self._serial = 0  # of the step that runs
        self._mailbox: MailboxView | None = None
        self._overlaps: Overlaps | None = None
        self._plan: StepPlan | None = None
        self._pace: Pace | None = None  # made at the first step on a device
        self._paced = False  # whether the step that runs is
        self._layer_name: object = None
        self._started_s = 0.0
        self._model_layers = 0
        self.timer: DeviceTimer | WallTimer | None = None  # of the newest step
        self._margin = 2  # layers between a proposal and its stop
        self._changes = _UNKNOWN
        self.layers = 0  # of the step so far
        self.ended: Ended | None = None  # what was decided for the step; None: nothing was asked

    @property
    def mailbox(self) -> MailboxView:
        """This process's view, attached at first use."""
        if self._mailbox is None:
            self._mailbox = MailboxView.attach()
            self._overlaps = Overlaps.attach()
            ranks, lines = self._ranks_now(), ProgressLines.attach()
            self._line = lines.line(ranks.rank)
            if ranks.size > 1:
                self._agreement = _Agreement(ranks, lines)
        return self._mailbox

    def begin(self, plan: StepPlan, *, on_device: bool) -> None:
        """Before a step; the first look at the mailbox is at its first safe point."""
        self._model_layers = max(self.layers, self._model_layers)  # a step may have been stopped
        self.layers, self._layer_name, self.ended = 0, None, None
        self._started_s = time.monotonic()
        self.timer = DeviceTimer() if on_device else WallTimer()
        self._changes = _UNKNOWN
        assert self.mailbox
        self._plan = plan if plan.may_stop else None
        self._margin = 2
        self._serial = plan.serial
        assert self._line is not None
        self._line[P_STOPPED_AT] = 0  # nothing is agreed on
        self._line[P_STEP] = plan.serial
        self._paced = on_device and plan.armed and plan.may_stop
        if self._paced:
            self._begin_pace(plan)

    def _begin_pace(self, plan: StepPlan) -> None:
        if self._pace is None:
            import torch

            self._pace = Pace(torch.cuda.Event)
        layers, predicted_ms = self._model_layers, plan.predicted_ms
        layer_ms = predicted_ms / layers if predicted_ms and layers else None
        self._pace.begin(plan.tokens, layer_ms)
        self._margin = self._pace.ahead + 2

    def end(self) -> None:
        """The step is launched, or given up."""
        if self.timer is not None:
            self.timer.stop()
        self._plan, self._paced = None, False
        if self._line is not None:
            self._line[P_STEP_ENDED] = self._serial

    def reach(self, layer_name: object) -> None:
        """A safe point: before the first operator of each attention layer."""
        if self._plan is None or layer_name == self._layer_name:
            return
        self._layer_name = layer_name
        self.layers += 1
        assert self._line is not None
        self._line[P_LAYER_LAUNCHED] = self.layers
        if self._paced and self._pace is not None:
            self._pace.hold(self.look)
        self.look()

    def look(self) -> None:
        """Raises StepAbandoned when the rest of the step is not worth computing."""
        plan = self._plan
        if plan is None:
            return
        if self._agreement is not None and self._agreement.reached(plan.serial, self.layers):
            self._stop()
        changes = self.mailbox.changes()
        if changes != self._changes:
            self._changes = changes
            self._decide(plan)

    def _decide(self, plan: StepPlan) -> None:
        stale = self._stale_tokens(plan)
        if not stale:
            return
        elapsed_ms = (time.monotonic() - self._started_s) * 1e3
        running = fence_policy.Running(
            tokens=plan.tokens,
            useful_tokens=self._useful_tokens(plan),
            bystander_tokens=plan.tokens - stale,
            elapsed_ms=elapsed_ms,
            predicted_ms=plan.predicted_ms,
        )
        if fence_policy.choose(running, stop_ms=self._left_ms()) is Branch.FINISH:
            self.ended = Ended(Branch.FINISH)
        elif self._agreement is None:
            self._stop()
        else:
            self._agreement.propose(self.layers + self._margin)

    def _stop(self) -> None:
        self.ended = Ended(Branch.LAYER_STOP, self._left_ms())
        if self._line is not None:
            self._line[P_STOPPED_AT] = max(1, self.layers)
        raise StepAbandoned

    def _left_ms(self) -> float:
        """What a stop here leaves to the device; nothing where the host is the device."""
        if not self._paced or self._pace is None or not self.layers:
            return 0.0
        return self._pace.left_ms() or 0.0

    def _stale_tokens(self, plan: StepPlan) -> int:
        gate = self.mailbox.gate
        return sum(one.tokens for one in plan.scoped if gate(one.slot) is GateState.STALE)

    def _useful_tokens(self, plan: StepPlan) -> int:
        """What the successors share of the superseded part, as far as they are known."""
        gate, overlaps = self.mailbox.gate, self._overlaps
        assert overlaps is not None
        return sum(
            one.shared(overlaps.get(one.slot))
            for one in plan.scoped
            if gate(one.slot) is GateState.STALE
        )


class WallTimer:
    """How long a step took where the host computes it."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._ms = 0.0

    def stop(self) -> None:
        """The step is computed."""
        self._ms = (time.monotonic() - self._started_s) * 1e3

    def ms(self) -> float:
        """After :meth:`stop`."""
        return self._ms


class DeviceTimer:
    """How long a step took on the device, whatever was queued before it and whenever it is read."""

    def __init__(self) -> None:
        import torch

        self._first, self._last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._first.record()

    def stop(self) -> None:
        """The last kernel of the forward pass is launched."""
        self._last.record()

    def ms(self) -> float:
        """Once the step's output is in host memory."""
        return self._first.elapsed_time(self._last)


class _Agreement:
    """The layer at which every rank of a tensor parallel group stops, on the leader's line."""

    def __init__(self, ranks: Ranks, lines: ProgressLines) -> None:
        self._leads = ranks.rank == ranks.leader
        self._own = lines.line(ranks.rank)
        self._leader = lines.line(ranks.leader)

    def reached(self, serial: int, layer: int) -> bool:
        """Whether all stop here."""
        stop = self._leader[P_STOPPED_AT]
        return stop != 0 and layer == stop and self._leader[P_STEP] == serial

    def propose(self, layer: int) -> None:
        """The leader's word, once a step."""
        if self._leads and not self._own[P_STOPPED_AT]:
            self._own[P_STOPPED_AT] = layer


def tensor_parallel_ranks() -> Ranks:
    """This worker's place, from vLLM's groups; alone where there are none."""
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return Ranks()
    group = parallel_state.get_tp_group()
    return Ranks(group.rank, group.first_rank, group.world_size)


@dataclass(slots=True)
class Active:
    """The safe points of the runner whose step runs in this process; None: none has yet."""

    points: SafePoints | None = None


def install(active: Active) -> None:
    """Open the seam; again is a no-op for the same process."""
    from vllm.model_executor.layers.attention import attention

    stock = attention.get_attention_context
    if getattr(stock, "retire", False):
        return

    def get_attention_context(layer_name: str) -> Any:
        if active.points is not None:
            active.points.reach(layer_name)
        return stock(layer_name)

    get_attention_context.retire = True  # type: ignore[attr-defined]
    attention.get_attention_context = get_attention_context

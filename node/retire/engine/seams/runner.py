"""Seam: the model runners. Gate G0; a step is ended early, or not begun, when it acts for nobody.

Wraps ``execute_model`` and ``sample_tokens`` of both runners (``vllm.v1.worker.gpu_model_runner``,
which CPUModelRunner inherits, and ``vllm.v1.worker.gpu.model_runner``, "V2"), and, to begin before
the first kernel, ``GPUModelRunner._model_forward`` (upstream: "can be overridden") in the first.
Tested on 0.26.0.

A step that is abandoned leaves ``execute_model`` as StepAbandoned; the wrapper turns it into an
ordinary output marked ABANDONED, given from ``sample_tokens``: any exception that leaves
``Worker.execute_model`` kills the engine. The scheduler then un-hashes what the step would have
written, and rolls back those that live on. It says beforehand, by the step's plan, whether a step
may be abandoned; :func:`may_abandon` is its allow-list.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.engine.seams import safe_point
from retire.engine.seams.safe_point import (
    Active,
    DeviceTimer,
    SafePoints,
    StepAbandoned,
    WallTimer,
)
from retire.engine.step_plan import ABANDONED, ENDED, PLAN, STEP_MS
from retire.mailbox import GateState

if TYPE_CHECKING:
    from retire.engine.step_plan import Ended, StepPlan
    from retire.mailbox import MailboxView

RUNNERS: Final = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")


def may_abandon(config: Any) -> bool:
    """Whether a ``VllmConfig`` is on the allow-list for steps that are not computed to their end.

    Stages of a pipeline hold different steps at once; a connector and a drafter with a model hold
    state of the step; recurrent state is updated in place, so that a step cannot be run again. The
    n-gram drafter holds nothing: it reads the tokens of the batch, after they are booked.
    """
    speculation = config.speculative_config
    return (
        config.parallel_config.pipeline_parallel_size == 1
        and config.parallel_config.data_parallel_size == 1
        and config.kv_transfer_config is None
        and (speculation is None or speculation.method == "ngram")
        and not config.model_config.is_hybrid
        and not config.model_config.is_attention_free
    )


def install() -> None:
    """Wrap the runners' methods, once per process."""
    active = Active()
    for module in RUNNERS:
        try:
            runner: Any = importlib.import_module(module).GPUModelRunner
        except ImportError:  # V2 needs Triton: absent where there is no GPU
            continue
        if getattr(runner.execute_model, "retire", False):
            return
        _wrap(runner, active)
    safe_point.install(active)


def points_of(runner: Any) -> SafePoints:
    """A runner's own safe points."""
    if (points := getattr(runner, "_retire_points", None)) is None:
        points = runner._retire_points = SafePoints(safe_point.tensor_parallel_ranks)
    return points


def _wrap(runner: Any, active: Active) -> None:
    execute, sample = runner.execute_model, runner.sample_tokens

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        plan: StepPlan | None = getattr(scheduler_output, PLAN, None)
        if plan is None:
            return execute(self, scheduler_output, *args, **kwargs)
        points = active.points = points_of(self)
        points.begin(plan, on_device=self.device.type == "cuda")
        try:
            return execute(self, scheduler_output, *args, **kwargs)
        except StepAbandoned:
            self._retire_stub = _stub(self, scheduler_output)
            return None
        finally:
            self._retire_done = Done(plan, points.mailbox, points.ended, points.timer)
            points.end()

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        stub, done = getattr(self, "_retire_stub", None), getattr(self, "_retire_done", None)
        self._retire_stub = self._retire_done = None
        output = sample(self, *args, **kwargs) if stub is None else stub
        return output if done is None else done.close(output)

    execute_model.retire = True  # type: ignore[attr-defined]
    runner.execute_model, runner.sample_tokens = execute_model, sample_tokens
    forward = getattr(runner, "_model_forward", None)
    if forward is not None:  # V2 has no such method: there the first safe point looks

        def model_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if active.points is not None:
                active.points.look()
            return forward(self, *args, **kwargs)

        runner._model_forward = model_forward


@dataclass(frozen=True, slots=True)
class Done:
    """A step of a plan whose forward pass is over: its output may still be on the device."""

    plan: StepPlan
    mailbox: MailboxView
    ended: Ended | None
    timer: DeviceTimer | WallTimer | None

    def close(self, output: Any) -> Any:
        """Gate G0 on the output, once it is in host memory, and what was decided."""
        if not hasattr(output, "get_output"):
            return self._closed(output)
        stock = output.get_output
        output.get_output = lambda: self._closed(stock())
        return output

    def _closed(self, output: Any) -> Any:
        if output.sampled_token_ids:
            for work in self.plan.scoped:
                row = output.req_id_to_index.get(work.request_id)
                if row is not None and self.mailbox.gate(work.slot) is GateState.STALE:
                    output.sampled_token_ids[row] = []
        if self.ended is not None:
            setattr(output, ENDED, self.ended)
        if self.timer is not None and not getattr(output, ABANDONED, False):
            setattr(output, STEP_MS, self.timer.ms())
        return output


def _stub(runner: Any, scheduler_output: Any) -> Any:
    """An output that names every scheduled request and gives none of them a token.

    The drafts of the step before die with it: they are kept by row, and rows have moved since.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    runner.execute_model_state = None
    runner._draft_token_ids = runner._draft_token_req_ids = None
    request_ids = list(scheduler_output.num_scheduled_tokens)
    output = ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        sampled_token_ids=[[] for _ in request_ids],
    )
    setattr(output, ABANDONED, True)
    return output

"""Seam: the model runner. Gate G0, and a step that acts for nobody is not launched.

Wraps ``GPUModelRunner._model_forward`` (upstream: "can be overridden"), ``execute_model`` and
``sample_tokens`` of ``vllm.v1.worker.gpu_model_runner`` (CPUModelRunner inherits them). Tested on
0.26.0.

The worker reads the same mailbox as every gate. When the whole batch is stale the forward raises
before its first kernel; the wrapper turns that into an ordinary output marked ABANDONED, since any
exception that leaves ``Worker.execute_model`` kills the engine. The scheduler then un-hashes what
the step would have written. Allowed only where no step queues behind another and no connector holds
state of the step: synchronous scheduling, one pipeline stage, no connector, no speculation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from retire.engine.tag import Tag
from retire.mailbox import GateState, MailboxView

if TYPE_CHECKING:
    from collections.abc import Callable

ABANDONED: Final = (
    "retire_abandoned"  # attribute of a ModelRunnerOutput whose step was not launched
)


class StepAbandoned(Exception):
    """Raised before the first kernel of a step and caught in ``execute_model``."""


class Stale:
    """Decides, in the worker, whether a step still acts for anybody."""

    def __init__(self) -> None:
        self._mailbox: MailboxView | None = None

    def whole_step(self, runner: Any, scheduler_output: Any) -> bool:
        """Whether every request of the step carries a tag that was superseded."""
        if not scheduler_output.num_scheduled_tokens or not may_abandon(runner.vllm_config):
            return False
        return all(
            self._stale(runner.requests[request_id])
            for request_id in scheduler_output.num_scheduled_tokens
        )

    def clear(self, runner: Any, output: Any) -> None:
        """Gate G0: take the tokens of superseded requests out of a finished step's output."""
        for row, request_id in enumerate(output.req_ids):
            request = runner.requests.get(request_id)
            if request is not None and self._stale(request):
                output.sampled_token_ids[row] = []

    def _stale(self, request: Any) -> bool:
        tag = Tag.of(request.sampling_params)
        if tag is None:
            return False
        if self._mailbox is None:
            self._mailbox = MailboxView.attach()
        return self._mailbox.gate(tag.slot) is GateState.STALE


def may_abandon(config: Any) -> bool:
    """Whether a ``VllmConfig`` is on the allow-list for steps that are not launched."""
    return (
        not config.scheduler_config.async_scheduling
        and config.parallel_config.pipeline_parallel_size == 1
        and config.parallel_config.tensor_parallel_size == 1  # ranks must agree: a later mechanism
        and config.kv_transfer_config is None
        and config.speculative_config is None
    )


def install() -> None:
    """Wrap the runner's three methods, once per process."""
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if getattr(GPUModelRunner.execute_model, "retire", False):
        return
    stale = Stale()
    forward, sample = GPUModelRunner._model_forward, GPUModelRunner.sample_tokens
    execute = GPUModelRunner.execute_model

    def model_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = getattr(self, "_retire_step", None)
        if step is not None and stale.whole_step(self, step):
            raise StepAbandoned
        return forward(self, *args, **kwargs)

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._retire_step = scheduler_output
        try:
            return execute(self, scheduler_output, *args, **kwargs)
        except StepAbandoned:
            self._retire_stub = _stub(ModelRunnerOutput, scheduler_output)
            return None
        finally:
            self._retire_step = None

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        stub = getattr(self, "_retire_stub", None)
        if stub is not None:
            self._retire_stub = None
            return stub
        output = sample(self, *args, **kwargs)
        if type(output) is ModelRunnerOutput and output.sampled_token_ids:
            stale.clear(self, output)
        return output

    execute_model.retire = True  # type: ignore[attr-defined]
    GPUModelRunner._model_forward = model_forward  # type: ignore[method-assign]
    GPUModelRunner.execute_model = execute_model  # type: ignore[method-assign]
    GPUModelRunner.sample_tokens = sample_tokens  # type: ignore[method-assign]


def _stub(output_class: Callable[..., Any], scheduler_output: Any) -> Any:
    """An output that names every scheduled request and gives none of them a token."""
    request_ids = list(scheduler_output.num_scheduled_tokens)
    output = output_class(
        req_ids=request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        sampled_token_ids=[[] for _ in request_ids],
    )
    setattr(output, ABANDONED, True)
    return output

"""Seam: on a CPU, a request with ``seed`` survives a step that does not finish its prompt.

Wraps ``GPUModelRunner._sample`` and ``_bookkeeping_sync`` (CPUModelRunner inherits them). A step
that computes a part of a prompt, in a chunked prefill or after a preemption, samples a token for
that row and throws it away; vLLM then rewinds its generator by ``set_offset``, which only CUDA
generators have. On a CPU it raises "CPU Generator does not use offset" and EngineCore is gone, with
the streams of every scope. It takes ``seed`` with a temperature above 0: greedy rows have no
generator. Here the generator's whole state is kept before the draw and put back after it. Tested
with vLLM 0.26.0. Must never touch a device other than the CPU, nor decide anything about versions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from retire.engine.seams.compat import Symbol

if TYPE_CHECKING:
    from torch import Tensor

_RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
_MARK: Final = "__retire_seam__"
_KEPT: Final = "_retire_generator_states"  # of the step that is being sampled: row -> state
SYMBOLS: Final = (
    Symbol(_RUNNER, "GPUModelRunner._sample", ("self", "logits", "spec_decode_metadata")),
    Symbol(
        _RUNNER,
        "GPUModelRunner._bookkeeping_sync",
        (
            "self",
            "scheduler_output",
            "sampler_output",
            "logits",
            "hidden_states",
            "num_scheduled_tokens",
        ),
    ),
)


def install() -> None:
    """Wrap both methods where the platform is a CPU; a second call changes nothing."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if current_platform.is_cpu() and not hasattr(GPUModelRunner._sample, _MARK):
        GPUModelRunner._sample = _keeping(GPUModelRunner._sample)  # type: ignore[method-assign]
        GPUModelRunner._bookkeeping_sync = _rewinding(GPUModelRunner._bookkeeping_sync)  # type: ignore[method-assign]


def kept_states(runner: Any) -> dict[int, Tensor]:
    """The state of each generator whose draw in this step will be thrown away, by row."""
    batch = runner.input_batch
    if not batch.generators:
        return {}
    unfinished = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    return {row: batch.generators[row].get_state() for row in unfinished if row in batch.generators}


def _keeping(original: Any) -> Any:
    @functools.wraps(original)
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, _KEPT, kept_states(self))
        return original(self, *args, **kwargs)

    setattr(sample, _MARK, True)
    return sample


def _rewinding(original: Any) -> Any:
    @functools.wraps(original)
    def bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept = self.__dict__.pop(_KEPT, None)
        if not kept:
            return original(self, *args, **kwargs)
        generators = self.input_batch.generators
        hidden = {row: generators.pop(row) for row in kept}  # vLLM rewinds those it finds
        try:
            return original(self, *args, **kwargs)
        finally:
            for row, state in kept.items():
                hidden[row].set_state(state)
            generators.update(hidden)

    setattr(bookkeeping_sync, _MARK, True)
    return bookkeeping_sync

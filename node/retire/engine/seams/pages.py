"""Seam: digests of KV pages, for a recorded history. Off unless ``RETIRE_HISTORY_DIGESTS=1``.

EngineCore asks its workers between steps (``vllm.v1.executor.abstract.Executor.collective_rpc``, a
public utility of vLLM's own control plane) for the content of certified blocks: it must be the same
when they are adopted. Reads whole pages from the device, so it is for proofs, not for service.
Tested on 0.26.0.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from retire.protocol.errors import InvalidField
from retire.telemetry.names import HISTORY_DIGESTS_ENV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def wanted() -> bool:
    """Whether digests are to be recorded. Raises InvalidField naming the variable."""
    value = os.environ.get(HISTORY_DIGESTS_ENV) or "0"
    if value not in ("0", "1"):
        raise InvalidField(HISTORY_DIGESTS_ENV, value, "0 or 1")
    return value == "1"


def reader(core: Any) -> Callable[[tuple[int, ...]], tuple[str, ...]]:
    """What ``Chronicle.digests`` calls: one digest a block, over the pages of every worker."""
    total = core.scheduler.kv.total_blocks + 1  # with the null block

    def digests(blocks: tuple[int, ...]) -> tuple[str, ...]:
        by_worker = core.model_executor.collective_rpc(of_blocks, args=(blocks, total))
        if len(by_worker) == 1:
            return tuple(by_worker[0])
        each = zip(*by_worker, strict=True)
        return tuple(hashlib.sha256("".join(parts).encode()).hexdigest() for parts in each)

    return digests


def of_blocks(worker: Any, blocks: tuple[int, ...], total: int) -> list[str]:
    """In a worker: SHA-256 of each block's pages, layer after layer, in hexadecimal."""
    caches = worker.model_runner.kv_caches
    return [_digest(pages_of(caches, block, total)) for block in blocks]


def pages_of(caches: list[Any], block: int, total: int) -> Iterator[Any]:
    """What a block has in each layer's cache. ``total``: of the pool, the null block included.

    Layouts: ``[blocks, ...]`` and ``[2, blocks, ...]`` (keys and values apart).
    """
    for cache in caches:
        yield cache.select(0 if cache.shape[0] == total else 1, block)


def _digest(pages: Iterator[Any]) -> str:
    import torch

    found = hashlib.sha256()
    for page in pages:
        found.update(page.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()

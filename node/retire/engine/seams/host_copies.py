"""Seam: pages of the KV cache, and the calls that move them between the workers and host memory.

Adds two methods to ``vllm.v1.worker.worker_base.WorkerBase``, reached by
``Executor.collective_rpc``: every rank begins its transfers in the order of the calls, which is the
order of the steps. Reads ``model_runner.kv_caches`` (of both runners). Upstream status: the worker
extension of the documentation, but added at start, so that no flag can be forgotten; the caches'
layout is internal. Tested on 0.26.0 and 0.32.0.

No KV connector takes part. With one configured there is no DRAM tier: connectors move and free
blocks by rules of their own, and vLLM's offloading connectors run on GPUs only, so that together
the two could not be tested.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

from retire.engine.tier.copier import Copier
from retire.engine.tier.devices import pages_on
from retire.engine.tier.orders import Orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retire.engine.tier.orders import Done


def unfit(config: Any) -> str | None:
    """Why an engine of this ``VllmConfig`` cannot have a DRAM tier; None: it can."""
    if config.kv_transfer_config is not None:
        return "a KV connector is configured; vLLM's own offloading and this tier do not coexist"
    if config.model_config.is_hybrid or config.model_config.is_attention_free:
        return "the model has recurrent state, which is not kept in pages"
    return None


def page_views(caches: list[torch.Tensor], blocks: int) -> list[torch.Tensor]:
    """The pages of every layer by block id. Each ``[blocks, bytes]``, int8, contiguous.

    Bytes that several layers share (one of each KV group: a block belongs to one group) are taken
    once. Where keys and values stand in halves of a layer, each half is a view. 0.26 gives every
    layer a storage; 0.32 lays them out in one, one after the other or block by block.
    """
    return [view for layer in _layers(caches) for view in _halves(*layer, blocks)]


def _layers(caches: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Each layer's cache and its bytes [first, past) in its storage; all of it when they mingle."""
    storages: dict[int, dict[int, torch.Tensor]] = {}
    for cache in caches:
        storages.setdefault(cache.untyped_storage().data_ptr(), {})[_first(cache)] = cache
    for found in storages.values():
        firsts = sorted(found)
        size = found[firsts[0]].untyped_storage().nbytes()
        bounds = list(zip(firsts, [*firsts[1:], size], strict=True))
        if all(first + _extent(found[first]) <= past for first, past in bounds):
            yield from ((found[first], first, past) for first, past in bounds)
        else:
            yield found[firsts[0]], 0, size


def _first(cache: torch.Tensor) -> int:
    return int(cache.storage_offset()) * cache.element_size()


def _extent(cache: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    steps = zip(cache.shape, cache.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * cache.element_size()


def _halves(cache: torch.Tensor, first: int, past: int, blocks: int) -> Iterator[torch.Tensor]:
    raw = torch.empty(0, dtype=torch.int8, device=cache.device).set_(cache.untyped_storage())
    raw = raw[first:past]
    page = len(raw) // blocks
    sizes = [stride * cache.element_size() for stride in cache.stride()]
    outer = [d for d in range(cache.ndim) if sizes[d] > page]
    if not outer:
        # A page that is not what a block takes would save, and bring back, parts of its neighbours.
        whole = any(sizes[d] * cache.shape[d] == page * blocks for d in range(cache.ndim))
        assert whole, f"a KV cache of strides {cache.stride()} is not known"
        yield raw[: page * blocks].view(blocks, page)
        return
    assert len(outer) == 1, f"a KV cache of strides {cache.stride()} is not known"
    size = sizes[outer[0]]
    for start in range(0, cache.shape[outer[0]] * size, size):
        yield raw[start : start + size].view(blocks, size // blocks)


def retire_host_attach(self: Any, blocks: int, capacity: int) -> int:
    """Prepare this rank; ``capacity``: host bytes of all ranks. Returns its bytes of one block."""
    views = page_views(self.model_runner.kv_caches, blocks)
    share = capacity // self.parallel_config.world_size
    copier = self._retire_copier = Copier(views, pages_on(views[0].device), share)
    return copier.row_bytes


def retire_host_copies(self: Any, orders: Orders, drain: bool = False) -> list[Done]:
    """Begin transfers behind the steps launched so far; returns those that have ended."""
    ended = self._retire_copier.exchange(orders)
    return ended + self._retire_copier.wait() if drain else ended


class RpcWorkers:
    """Every rank of one engine, from its scheduler. ``blocks``: of the pool, null block included.

    One call is in flight at a time. Its answer is in when a later step's is, or is waited for.
    """

    def __init__(self, executor: Any, blocks: int, capacity: int) -> None:
        self._executor = executor
        sizes = executor.collective_rpc("retire_host_attach", args=(blocks, capacity))
        self.ranks = len(sizes)
        self.block_bytes = sum(sizes)
        self._queued = Orders()
        self._call: Future[list[list[Done]]] | None = None

    def exchange(self, orders: Orders, *, wait: bool) -> list[tuple[int, Done]]:
        """Send orders in order; returns what has ended, by rank."""
        self._queued.begin += orders.begin
        self._queued.cancel += orders.cancel
        self._queued.drop += orders.drop
        ended = self._answers(wait=wait)
        if self._call is None:
            queued, self._queued = self._queued, Orders()
            self._call = self._executor.collective_rpc(
                "retire_host_copies", args=(queued,), non_block=True
            )
            ended += self._answers(wait=wait)
        return ended

    def drain(self) -> list[tuple[int, Done]]:
        """Wait for every job that was begun; returns what has ended."""
        ended = self._answers(wait=True)
        answers = self._executor.collective_rpc("retire_host_copies", args=(Orders(), True))
        return ended + _by_rank(answers)

    def _answers(self, *, wait: bool) -> list[tuple[int, Done]]:
        if self._call is None or not (wait or self._call.done()):
            return []
        call, self._call = self._call, None
        return _by_rank(call.result())


def _by_rank(answers: list[list[Done]]) -> list[tuple[int, Done]]:
    return [(rank, done) for rank, ended in enumerate(answers) for done in ended]


def install() -> None:
    """Add the methods to every worker class."""
    from vllm.v1.worker.worker_base import WorkerBase

    for method in (retire_host_attach, retire_host_copies):
        setattr(WorkerBase, method.__name__, method)

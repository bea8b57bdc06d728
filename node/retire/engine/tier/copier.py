"""One worker's transfers between KV pages and host memory, beside the steps.

Every page passes through a gather: one kernel collects the pages of a layer, one transfer moves
them, so that small pages still fill the bus. Digests are taken from what was gathered, and at a
restore from the pages in place, read back: what is certified is what is there. Must never import
vLLM.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from retire.engine.tier.arena import Arena, NoHostMemory
from retire.engine.tier.devices import Way
from retire.engine.tier.orders import Done, Offload
from retire.engine.tier.page_tags import WORD_BYTES, secret_keys, tags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retire.engine.tier.arena import Extent
    from retire.engine.tier.devices import PageDevice
    from retire.engine.tier.lanes import Lane
    from retire.engine.tier.orders import Orders, Restore

_LANE = torch.int64


class Cancelled(Exception):
    """Nobody wants the result of this job any more."""


@dataclass(slots=True)
class Running:
    """A job that a thread works on, or will."""

    mark: Any
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive pages of one extent: rows of it, and where they are in the job's lists."""

    extent: Extent
    rows: slice
    job: slice


class Copier:
    """Copies between ``views`` and an arena.

    ``views``: one tensor a layer, ``[blocks, bytes of its page]``, int8, contiguous, all on one
    device. ``capacity``: host bytes of this worker.
    """

    def __init__(self, views: Sequence[torch.Tensor], pages: PageDevice, capacity: int) -> None:
        self.segments = tuple(view.shape[1] for view in views)
        assert all(size % 8 == 0 for size in self.segments), "pages are lanes of 8 bytes"
        self.row_bytes = sum(self.segments)
        self.arena = Arena(self.segments, capacity // self.row_bytes, pages.host_memory)
        self.copies: dict[int, list[Extent]] = {}
        self._views = [view.view(_LANE) for view in views]
        self._keys = [
            secret_keys(size // WORD_BYTES, view.device)
            for size, view in zip(self.segments, views, strict=True)
        ]
        self._pages = pages
        self._running: dict[int, Running] = {}
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._threads = {
            way: ThreadPoolExecutor(1, thread_name_prefix=f"retire-{way.value}") for way in Way
        }

    def exchange(self, orders: Orders) -> list[Done]:
        """Begin, cancel and drop what is asked; returns what has ended. Never waits."""
        for copy in orders.drop:
            self.arena.give(self.copies.pop(copy, []))
        for order in orders.begin:
            way = Way.OUT if isinstance(order, Offload) else Way.IN
            self._running[order.job] = Running(self._pages.mark())
            self._threads[way].submit(self._run, order, way)
        for job in orders.cancel:
            if job in self._running:
                self._running[job].cancelled.set()
        return self._collect()

    def wait(self) -> list[Done]:
        """Wait for every job that was begun; returns what has ended."""
        for way in Way:
            self._threads[way].submit(lambda: None).result()
        return self._collect()

    def close(self) -> None:
        """End the threads."""
        for running in self._running.values():
            running.cancelled.set()
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)

    def _collect(self) -> list[Done]:
        ended: list[Done] = []
        while not self._done.empty():
            ended.append(self._done.get())
            self._running.pop(ended[-1].job, None)
        return ended

    def _run(self, order: Offload | Restore, way: Way) -> None:
        running = self._running[order.job]
        started_s = time.perf_counter()
        found: tuple[int, ...] = ()
        error: str | None = None
        try:
            with torch.inference_mode(), self._pages.after(running.mark, way):
                moved = self._out if isinstance(order, Offload) else self._in
                found = moved(order, running)  # type: ignore[arg-type]
        except Cancelled:
            error = "cancelled"
        except Exception as failure:  # the engine lives on; the scheduler is told
            error = f"{type(failure).__name__}: {failure}"
        self._pages.finish(way)
        if error and isinstance(order, Offload):
            self.arena.give(self.copies.pop(order.job, []))
        ms = (time.perf_counter() - started_s) * 1e3
        self._done.put(Done(order.job, found, error, ms))

    def _out(self, order: Offload, running: Running) -> tuple[int, ...]:
        self.copies[order.job] = self.arena.take(len(order.block_ids))
        ids = self._on_device(order.block_ids)
        found = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        lane = self._lane(Way.OUT, len(ids))
        for span in self._spans(order.job, range(len(ids)), running):
            for number, view in enumerate(self._views):
                gathered = lane.gather(view, ids[span.job])
                lane.send(gathered, self._host(span, number))
                found[span.job] += tags(gathered, self._keys[number])
        return tuple(found.tolist())

    def _in(self, order: Restore, running: Running) -> tuple[int, ...]:
        ids = self._on_device(order.block_ids)
        found = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        lane = self._lane(Way.IN, len(ids))
        for span in self._spans(order.copy, order.positions, running):
            for number, view in enumerate(self._views):
                arrived = lane.fetch(self._host(span, number), view.device)
                view.index_copy_(0, ids[span.job], arrived)
                in_place = view.index_select(0, ids[span.job])
                found[span.job] += tags(in_place, self._keys[number])
        return tuple(found.tolist())

    @property
    def _most(self) -> int:
        """Pages that are gathered at once."""
        return max(1, self._pages.gather_bytes // max(self.segments))

    def _lane(self, way: Way, pages: int) -> Lane:
        return self._pages.lane(way, max(self.segments) * min(self._most, pages))

    def _on_device(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64).to(self._views[0].device)

    def _host(self, span: Span, number: int) -> torch.Tensor:
        return self.arena.segment(span.extent, number).view(_LANE)[span.rows]

    def _spans(self, copy: int, positions: Sequence[int], running: Running) -> Iterator[Span]:
        """The pages at ``positions`` (ascending) of a copy, in pieces that are one transfer."""
        if copy not in self.copies:
            raise NoHostMemory(f"there is no copy {copy}")
        most = self._most
        start = done = 0
        for extent in self.copies[copy]:
            here = [p - start for p in positions if start <= p < start + extent.rows]
            for first, count in _runs(here):
                for offset in range(0, count, most):
                    if running.cancelled.is_set():
                        raise Cancelled
                    size = min(most, count - offset)
                    row = first + offset
                    yield Span(extent, slice(row, row + size), slice(done, done + size))
                    done += size
            start += extent.rows
        if done != len(positions):
            raise NoHostMemory(f"copy {copy} ends at page {start}")


def _runs(ascending: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Maximal runs ``(first, count)`` of consecutive numbers."""
    for _, pairs in groupby(enumerate(ascending), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        yield run[0], len(run)

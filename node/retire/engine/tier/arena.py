"""Host memory for pages at rest, grown in slabs and kept for the next copy.

Pinned memory is slow to make and making it stalls a device, so slabs are made once, by the thread
that copies. A *row* holds the pages of one block in every layer; an *extent* is a run of rows, laid
out layer by layer, so that a layer's pages of one extent are one transfer. Must never import vLLM.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from retire.engine.tier.runs import FreeRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SLAB_BYTES: Final = 512 * 2**20


class NoHostMemory(Exception):
    """The arena is full, or the host gave no memory."""


@dataclass(frozen=True, slots=True)
class Extent:
    """``rows`` rows in one slab, beginning at row ``first``."""

    slab: int
    first: int
    rows: int


@dataclass(slots=True)
class Arena:
    """Rows of ``sum(segments)`` bytes, at most ``capacity`` of them.

    ``allocate``: makes host memory of that many bytes; shape ``[bytes]``, int8.
    """

    segments: tuple[int, ...]  # bytes of a row in each layer
    capacity: int  # rows
    allocate: Callable[[int], torch.Tensor]
    _slabs: list[torch.Tensor] = field(default_factory=list)
    _free: list[FreeRuns] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return sum(self.segments)

    @property
    def used_rows(self) -> int:
        """Rows that hold something."""
        return sum(free.rows - free.free for free in self._free)

    def take(self, rows: int) -> list[Extent]:
        """Room for ``rows`` rows, in few extents. NoHostMemory takes nothing."""
        with self._lock:
            self._grow(rows - sum(free.free for free in self._free))
            taken: list[Extent] = []
            for slab, free in enumerate(self._free):
                while rows and (run := free.take(rows)) is not None:
                    taken.append(Extent(slab, *run))
                    rows -= run[1]
            return taken

    def give(self, extents: list[Extent]) -> None:
        """The extents hold nothing any more."""
        with self._lock:
            for extent in extents:
                self._free[extent.slab].give(extent.first, extent.rows)

    def segment(self, extent: Extent, number: int) -> torch.Tensor:
        """The pages of one layer in an extent. Shape ``[rows, bytes of the segment]``, int8."""
        before = list(accumulate(self.segments, initial=0))[number]
        start = extent.first * self.row_bytes + extent.rows * before
        size = self.segments[number]
        pages = self._slabs[extent.slab][start : start + extent.rows * size]
        return pages.view(extent.rows, size)

    def _grow(self, missing: int) -> None:
        made = sum(free.rows for free in self._free)
        if missing > self.capacity - made:
            raise NoHostMemory(f"{missing} more pages asked, {self.capacity - made} may be made")
        per_slab = max(1, SLAB_BYTES // self.row_bytes)
        while missing > 0:
            # What is asked for at once lies in one piece: few, large transfers.
            rows = min(max(per_slab, missing), self.capacity - made)
            try:
                slab = self.allocate(rows * self.row_bytes)
            except (RuntimeError, MemoryError) as error:
                raise NoHostMemory(str(error)) from error
            self._slabs.append(slab)
            self._free.append(FreeRuns(rows))
            made, missing = made + rows, missing - rows

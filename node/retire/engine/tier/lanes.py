"""Scratch memory between pages and host memory: how a layer's pages are moved, device by device.

On a CUDA device kernels (gathering, digests) and transfers have a stream each and take turns with
two buffers, so that the bus never waits for a kernel. On the CPU a page is copied by the calling
thread. Must never import vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    Event = torch.cuda.Event | torch.Event

BUFFERS: Final = 2


class Lane(Protocol):
    """One job's way through scratch memory. What a call returns is valid until the next but one."""

    def gather(self, pages: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The rows ``ids`` of ``pages``, collected. Shape ``[len(ids), lanes]``."""
        ...

    def send(self, gathered: torch.Tensor, host: torch.Tensor) -> None:
        """Copy what was gathered to the host, beside the kernels that follow."""
        ...

    def fetch(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Rows of host memory, where kernels on ``device`` can read them."""
        ...


class PlainLane:
    """Host memory is where the pages are."""

    def gather(self, pages: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """A copy of the rows."""
        return pages.index_select(0, ids)

    def send(self, gathered: torch.Tensor, host: torch.Tensor) -> None:
        """A plain copy."""
        host.copy_(gathered)

    def fetch(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The rows themselves."""
        return host.to(device)


@dataclass(slots=True)
class CudaLane:
    """Two buffers of ``size`` bytes. ``kernels`` is current in the thread that calls."""

    kernels: torch.cuda.Stream
    transfers: torch.cuda.Stream
    size: int
    _buffers: Sequence[torch.Tensor] = ()
    _sent: list[torch.cuda.Event | torch.Event] = field(
        default_factory=list
    )  # n-th: its transfer is over
    _read: list[torch.cuda.Event | torch.Event] = field(
        default_factory=list
    )  # n-th: kernels before it are over

    def gather(self, pages: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Into the buffer whose transfer is the older one, once that is over."""
        turn = len(self._sent)
        if turn >= BUFFERS:
            self.kernels.wait_event(self._sent[turn - BUFFERS])
        rows = self._buffer(turn, len(ids), pages)
        return torch.index_select(pages, 0, ids, out=rows)

    def send(self, gathered: torch.Tensor, host: torch.Tensor) -> None:
        """Behind the gather; the kernels go on."""
        self.transfers.wait_event(self.kernels.record_event())
        with torch.cuda.stream(self.transfers):
            host.copy_(gathered, non_blocking=True)
            self._sent.append(self.transfers.record_event())

    def fetch(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Into the buffer that was read last but one, once that is over; kernels wait for it."""
        del device
        turn = len(self._read)
        self._read.append(self.kernels.record_event())
        if turn >= BUFFERS - 1:
            self.transfers.wait_event(self._read[turn - BUFFERS + 1])
        rows = self._buffer(turn, len(host), host)
        with torch.cuda.stream(self.transfers):
            rows.copy_(host, non_blocking=True)
            self.kernels.wait_event(self.transfers.record_event())
        return rows

    def _buffer(self, turn: int, rows: int, like: torch.Tensor) -> torch.Tensor:
        if not self._buffers:
            lanes = self.size // like.element_size()
            device = self.kernels.device
            self._buffers = [
                torch.empty(lanes, dtype=like.dtype, device=device) for _ in range(BUFFERS)
            ]
            # The transfer stream may not touch them before whoever had this memory is done.
            self.transfers.wait_event(self.kernels.record_event())
        width = like.shape[1]
        return self._buffers[turn % BUFFERS][: rows * width].view(rows, width)

"""Where pages are copied: on a CUDA device by side streams, on the CPU by plain copies.

The one place where the two differ. A transfer may begin once the work that had been launched when
it was asked for is done (``mark``), and nothing waits for it but its own thread. Must never import
vLLM.
"""

from __future__ import annotations

import contextlib
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import torch

from retire.engine.tier.lanes import CudaLane, Lane, PlainLane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class Way(Enum):
    """The direction of a transfer; each has streams and a thread of its own."""

    OUT = "offload"
    IN = "restore"


class PageDevice(Protocol):
    """What a copier needs of the device that holds the KV cache."""

    @property
    def gather_bytes(self) -> int:
        """How much is best gathered at once: it bounds scratch memory, too."""
        ...

    def mark(self) -> Any:
        """The work launched so far. Called by the thread that launches steps."""

    def after(self, mark: Any, way: Way) -> AbstractContextManager[Any]:
        """Launch what follows in this thread behind ``mark``, beside the steps."""
        ...

    def lane(self, way: Way, size: int) -> Lane:
        """Scratch memory for one job that gathers at most ``size`` bytes at once."""
        ...

    def finish(self, way: Way) -> None:
        """Wait until everything launched this way has ended."""

    def host_memory(self, size: int) -> torch.Tensor:
        """``size`` bytes that the device can copy from and to. Shape ``[size]``, int8."""
        ...


class CpuPages:
    """The KV cache is host memory itself: a transfer is a copy by the calling thread."""

    gather_bytes = 256 * 2**10  # stays in a core's cache until its digest is taken

    def mark(self) -> None:
        """A step on the CPU has ended when the next call is served."""

    def after(self, mark: None, way: Way) -> AbstractContextManager[None]:
        """Nothing to wait for."""
        return contextlib.nullcontext()

    def lane(self, way: Way, size: int) -> PlainLane:
        """None is needed."""
        return PlainLane()

    def finish(self, way: Way) -> None:
        """A plain copy has ended when it returns."""

    def host_memory(self, size: int) -> torch.Tensor:
        """Pageable memory: what is not written to takes none."""
        return torch.empty(size, dtype=torch.int8)


class CudaPages:
    """Side streams of low priority, and pinned host memory."""

    gather_bytes = 64 * 2**20  # few launches

    def __init__(self, device: torch.device) -> None:
        self.device = device
        low, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        self._kernels = {way: torch.cuda.Stream(device, priority=low) for way in Way}
        self._transfers = {way: torch.cuda.Stream(device, priority=low) for way in Way}

    def mark(self) -> torch.cuda.Event:
        """An event behind every kernel launched by this thread's current stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextlib.contextmanager
    def after(self, mark: torch.cuda.Event, way: Way) -> Iterator[None]:
        """Make the side stream current, behind ``mark``: the writing step is done by then."""
        stream = self._kernels[way]
        stream.wait_event(mark)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield

    def lane(self, way: Way, size: int) -> CudaLane:
        """Kernels and transfers side by side."""
        return CudaLane(self._kernels[way], self._transfers[way], size)

    def finish(self, way: Way) -> None:
        """Wait for the side streams; other threads go on."""
        self._kernels[way].synchronize()
        self._transfers[way].synchronize()

    def host_memory(self, size: int) -> torch.Tensor:
        """Registered with the driver, not taken from torch's pool, which rounds up to 2**n."""
        memory = torch.empty(size, dtype=torch.int8)
        error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), size, 0)  # type: ignore[union-attr]
        if int(error) != 0:
            raise MemoryError(f"cudaHostRegister of {size} bytes failed: {error}")
        return memory


def pages_on(device: torch.device) -> PageDevice:
    """The way of copying for a device."""
    return CudaPages(device) if device.type == "cuda" else CpuPages()

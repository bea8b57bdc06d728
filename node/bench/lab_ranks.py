"""A lab whose workers are processes of their own: tensor parallel ranks, or stages of a pipeline.

The scheduler stays in this process. What a lab does inside a worker goes through ``collective_rpc``
(``lab_workers``); an event in the middle of a step is met by two FIFOs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import lab_workers
from bench.lab import Lab
from retire.mailbox import ProgressLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MEETING_S: Final = 120.0


class RanksLab(Lab):
    """An engine of ``tp`` ranks in each of ``pp`` stages."""

    def __init__(
        self, model: str = "qwen3-deep-tiny", *, tp: int = 1, pp: int = 1, **engine_args: Any
    ) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        parallel: dict[str, Any] = {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "distributed_executor_backend": "mp",
            "worker_cls": "bench.lab_workers.LabWorker",
        }
        if pp > 1:
            os.environ["VLLM_CPU_CI_ENV"] = "1"
            parallel |= {"enforce_eager": False}  # stages on the CPU need the compiled mode
        self.size = tp * pp
        super().__init__(model, **parallel, **engine_args)

    def _open_workers(self) -> None:
        self.pids: list[int] = self.workers(lab_workers.process)
        self.lines = ProgressLines.attach(self.mailbox.path)

    def workers(self, do: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> list[Any]:
        """Run a function of ``lab_workers`` on every rank, between steps."""
        return self.core.model_executor.collective_rpc(
            partial(_with, do), timeout=timeout_s, args=args
        )

    def reports(self) -> list[dict[str, Any]]:
        """How each rank ended the newest planned step."""
        return self.workers(lab_workers.report)

    @contextlib.contextmanager
    def at_layer_of(self, rank: int, layer: int, event: Callable[[], Any]) -> Iterator[None]:
        """Run ``event`` once, when ``rank`` has computed ``layer`` layers of the next step."""
        folder = Path(self.dir.name)
        reached, go = folder / "reached", folder / "go"
        for fifo in (reached, go):
            fifo.unlink(missing_ok=True)
            os.mkfifo(fifo)
        self.workers(lab_workers.meet, rank, layer, str(reached), str(go))

        def meeting() -> None:
            with reached.open("rb") as told:
                told.read()
            event()
            go.write_bytes(b"!")

        waiting = threading.Thread(target=meeting, name="meeting", daemon=True)
        waiting.start()
        yield
        waiting.join(MEETING_S)
        assert not waiting.is_alive(), f"rank {rank} did not compute layer {layer}"

    def page_digests(self, request_id: str, *, tokens: int) -> list[str]:
        """Of every rank's pages behind a live request's first ``tokens`` tokens."""
        chain = self.scheduler.kv.chain(self.internal_id(request_id), tokens)
        ids = [block_id for group in chain.block_ids() for block_id in group]
        found = self.workers(lab_workers.digests, self._blocks, ids)
        return [digest for rank in found for digest in rank]

    def overwrite_blocks(self, block_ids: Iterable[int]) -> dict[int, list[Any]]:
        """Fill pages with noise on every rank; what they held is not kept."""
        self.workers(lab_workers.overwrite, self._blocks, list(block_ids))
        return {}

    @property
    def _blocks(self) -> int:
        return self.scheduler.kv.total_blocks + 1


def _with(do: Callable[..., Any], worker: Any, *args: Any) -> Any:
    return do(worker, *args)

"""Who takes part in a fence: every rank of every stage, and whether it has ended the old steps.

A step's result comes from one rank. That the others launch nothing of it any more they say
themselves, on their progress lines (``seams/safe_point.py``). Must never import vLLM.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retire.mailbox.progress import P_STEP, P_STEP_ENDED, P_STOPPED_AT

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.mailbox import ProgressLines

STRAGGLER_S: Final = 1.0  # behind the rank whose result is in; usually less than a millisecond
POLL_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class Rank:
    """One participant; ``closed``: it writes nothing of the old steps any more."""

    pp_rank: int
    tp_rank: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Participants:
    """The ranks of one engine, ``pp`` stages of ``tp`` each, on one host.

    ``lines``: None where engines of a data parallel group share the lines: there the result of the
    step stands for every rank.
    """

    pp: int
    tp: int
    lines: ProgressLines | None
    clock_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ended(self, serial: int) -> list[Rank]:
        """Every rank, once all have ended step ``serial`` or the time for that is over."""
        deadline_s = self.clock_s() + STRAGGLER_S
        while not all((found := self._now(serial)).values()) and self.clock_s() < deadline_s:
            self.sleep(POLL_S)
        return [Rank(rank // self.tp, rank % self.tp, closed) for rank, closed in found.items()]

    def launched(self, serial: int) -> bool:
        """Whether every rank has launched all of step ``serial``, abandoned by none of them."""
        return self.lines is not None and all(
            line[P_STEP_ENDED] >= serial and not (line[P_STEP] == serial and line[P_STOPPED_AT])
            for line in map(self.lines.line, range(self.pp * self.tp))
        )

    def _now(self, serial: int) -> dict[int, bool]:
        lines = self.lines
        return {
            rank: lines is None or lines.line(rank)[P_STEP_ENDED] >= serial
            for rank in range(self.pp * self.tp)
        }

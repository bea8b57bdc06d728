"""Engines of several ranks: what is timed on them for the paper's Table 6 and its co-tenant run.

A rank is idle when a call that follows the step in its queue has come back from all of them: the
same clock for both arms. Runs on CPUs and on GPUs, for any tp x pp.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.fence_engine import Arm, Options, Path, Subject, on_cuda, on_device_args
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIX: Final = 0.02  # of the prefix: what a successor's own context adds to what it inherits
OTHER: Final = ScopeKey("globex", "job")


@dataclass(frozen=True, slots=True)
class Topology:
    """Ranks of one engine."""

    tp: int
    pp: int

    @property
    def name(self) -> str:
        """As metrics call it: tp2, pp2, tp2pp2."""
        return (f"tp{self.tp}" if self.tp > 1 else "") + (f"pp{self.pp}" if self.pp > 1 else "")

    @classmethod
    def parse(cls, name: str) -> Topology:
        """The inverse of ``name``; ValueError for anything else."""
        tp, _, pp = name.removeprefix("tp").partition("pp")
        made = cls(int(tp or 1), int(pp or 1))
        if made.name != name:
            raise ValueError(f"{name!r} is no topology; write tp2, pp2 or tp2pp2")
        return made


@dataclass(frozen=True, slots=True)
class Size:
    """How much work: tokens, and pairs of runs."""

    model: str
    prompt: int  # of the plan that is retired
    inherited: int  # tokens that a successor may inherit
    unit: int  # tokens a step
    pairs: int
    frames: int  # tokens that the co-tenant says


class Ranks(Subject):
    """One engine of several ranks, and the scenes that are timed on it."""

    def __init__(self, topology: Topology, size: Size) -> None:
        from bench.lab_ranks import RanksLab

        options = Options(
            size.model, (Path.LONG_PREFILL,), (size.unit,), size.prompt, size.pairs, 5.0, True
        )
        engine: dict[str, Any] = {
            "max_num_batched_tokens": size.unit, "max_model_len": size.prompt + 2 * size.unit,
            "max_num_seqs": 8,
        }  # fmt: skip
        if on_cuda():
            engine |= on_device_args(asynchronous=None)
        lab = RanksLab(size.model, tp=topology.tp, pp=topology.pp, quantum=size.unit, **engine)
        super().__init__(options, lab)
        self.ranks = lab
        self.topology = topology
        self.size = size

    def _idle(self) -> None:
        from bench import lab_workers

        self.ranks.workers(lab_workers.idle)

    def signed(self) -> int:
        """Ranks whose word closes a fence that comes in the middle of a long prefill."""
        old = self._prompt()
        self._abandon(old, Arm.RETIRE, steps=0)
        reply = self.lab.fence(self.lab.key)
        self.lab.run()
        report = reply if isinstance(reply, dict) else reply.result(timeout=0)
        self.lab.clean()
        return sum(rank["closed"] for rank in report["participants"])

    def inheritance(self, arm: Arm) -> tuple[float, int]:
        """TTFT of a successor of a plan that has said its first token, ms, and tokens it reused.

        RETIRE: inherited. COLD: nothing is. PREFIX: a full hit of vLLM's own cache, the limit.
        """
        lab = self.lab
        self._number += 1
        lab.key = ScopeKey("acme", f"heir-{self._number}")
        old = self._prompt(self.size.inherited)
        new = old + self._prompt(max(16, int(SUFFIX * self.size.inherited)))
        tag = lab.tag(lab.key) if arm is Arm.RETIRE else None
        plan = lab.submit(f"plan{self._number}", old, tag, max_tokens=400)
        lab.run(lambda: bool(plan.tokens))
        if tag is None:
            lab.engine.abort_request([f"plan{self._number}"])
        else:
            lab.advance(lab.key)
            tag = lab.tag(lab.key)
        lab.run(lambda: lab.request(f"plan{self._number}") is None)
        self._idle()
        cold = {"skip_reading_prefix_cache": True} if arm is Arm.COLD else {}
        began_s = time.perf_counter()
        heir = lab.submit(f"heir{self._number}", new, tag, max_tokens=1, **cold)
        lab.run(lambda: bool(heir.tokens))
        took_ms = (time.perf_counter() - began_s) * 1e3
        lab.clean()
        return took_ms, heir.cached_tokens or 0

    def cotenant(self, arm: Arm | None) -> tuple[float, float, list[int], list[str]]:
        """Another tenant decodes while a plan is prefilled and abandoned in its second step.

        Its time for all tokens, ms; its longest silence around that instant, ms; its tokens; and
        the digests of its prompt's pages. ``arm`` None: nobody else is there.
        """
        lab = self.lab
        self._number += 1
        lab.key = ScopeKey("acme", f"noisy-{self._number}")
        spoken = [20 + i % 1000 for i in range(self.size.unit // 2)]
        stream = lab.submit("bystander", spoken, lab.tag(OTHER), max_tokens=self.size.frames)
        lab.run(lambda: len(stream.tokens) >= 8)
        began_s, times, revised = time.perf_counter(), [time.perf_counter()], False
        tag = lab.tag(lab.key) if arm is Arm.RETIRE else None
        if arm is not None:
            lab.submit("noisy", self._prompt(2 * self.size.unit), tag, max_tokens=4)
        digests: list[str] = []
        said = len(stream.tokens)
        while len(stream.tokens) < self.size.frames:
            lab.step()
            if len(stream.tokens) > said:
                said = len(stream.tokens)
                times.append(time.perf_counter())
            if arm is not None and not revised and self._written("noisy") >= self.size.unit:
                revised = True
                self._revise(arm)
            if said >= self.size.frames - 4 and not digests:
                digests = lab.page_digests("bystander", tokens=len(spoken))
        runtime_ms = (time.perf_counter() - began_s) * 1e3
        lab.run()
        lab.clean()
        return runtime_ms, longest_gap_ms(times), list(stream.tokens), digests

    def _revise(self, arm: Arm) -> None:
        if arm is Arm.RETIRE:
            self.lab.advance(self.lab.key)
        else:
            self.lab.engine.abort_request(["noisy"])


def longest_gap_ms(times: Sequence[float]) -> float:
    """Between two neighbours."""
    return max(b - a for a, b in itertools.pairwise(times)) * 1e3

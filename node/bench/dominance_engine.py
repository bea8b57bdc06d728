"""One engine, three ways to revise a plan in the middle of its prefill, at an exact place.

Owns a trial: what is put where, and the time from the revision to the successor's first token. All
arms run in one engine with one chunk size. The native arms are untagged requests: with no scope
live, the scheduler's override is ``super().schedule()`` and every seam passes through; a trial
asserts that. Their abort is vLLM's own, at the same instant, and the successor is sent at once.

On a CPU the instant is a layer of a step, so that noise of the machine does not move it; compiled
graphs have no such hooks, and steps may be launched ahead of the device, so on CUDA a timer ends
after that part of the time that a native prefill takes. For the same reason the clock on a CPU is
this process's CPU time: engine and trial are one process whose one thread computes all the while,
so that on an idle machine it is the wall time, and on a shared one it leaves out what others took.
Wall times are kept beside it.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bench.fence_engine import on_cuda, on_device_args, watch_branches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.lab import Lab, Stream

FIRST_TOKENS: Final = 4  # of the successor, compared with a clean run's
BYSTANDER_TOKENS: Final = 96
BYSTANDER_AHEAD: Final = 2  # it has produced this much before the plan begins


class Arm(Enum):
    """How a plan is revised."""

    RETIRE = "Retire"
    PREFIX = "native abort + prefix caching"
    COLD = "native abort + cold"
    INVALIDATE = "Retire's fence, cold successor"
    INHERIT = "the step runs to its end, certified inheritance"

    @property
    def tagged(self) -> bool:
        """Whether its requests are versioned work."""
        return self not in (Arm.PREFIX, Arm.COLD)


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the revision falls."""

    overlap: float  # of the successor's context with its predecessor's
    instant: float  # of the prefill, by tokens
    quantum: int  # tokens a step

    def __str__(self) -> str:
        return f"{self.overlap:.0%} shared, revised at {self.instant:.0%}, quantum {self.quantum}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one revision came to."""

    ms: float  # from the revision to the successor's first token, by the subject's clock
    wall_ms: float
    tokens: tuple[int, ...]  # the successor's first ones
    reused: int  # of its prompt, not computed again
    late: int  # tokens of the old version after the revision
    branch: str | None  # what the fence chose


class Subject:
    """The engine and its prompts; ``close()`` ends it."""

    def __init__(
        self,
        model: str,
        *,
        prompt: int,
        quanta: tuple[int, ...],
        asynchronous: bool,
        lab: Lab | None = None,
    ):
        """``lab``: an engine that runs already, else its own."""
        from bench.exactness_weights import sharpen
        from bench.lab import Lab

        self.on_device = on_cuda()
        self.clock = time.perf_counter if self.on_device else time.process_time
        self.prompt = prompt
        self.lab: Lab = lab or Lab(
            model,
            quantum=max(quanta),
            **engine_args(prompt, max(quanta), self.on_device, asynchronous),
        )
        sharpen(self.lab)
        self.layers = _layers(self.lab)
        self._branches = watch_branches(self.lab)
        self._number = 0
        self._prefill_s: dict[int, float] = {}

    def close(self) -> None:
        """End the engine."""
        self.lab.close()

    def contexts(self, overlap: float) -> tuple[list[int], list[int]]:
        """The old context and the new one; they differ from the first token past the overlap."""
        old, other = _tokens(self.prompt, "old"), _tokens(self.prompt, "new")
        shared = round(self.prompt * overlap)
        if shared < self.prompt and old[shared] == other[shared]:
            other[shared] = old[shared] + 1
        return old, old[:shared] + other[shared:]

    def clean_run(self, overlap: float) -> tuple[int, ...]:
        """The successor's first tokens without anything before it, in steps of any size."""
        self.lab.clean()
        stream = self._submit("clean", self.contexts(overlap)[1], tag=None)
        self.lab.run()
        return tuple(stream.tokens)

    def warm_up(self, quantum: int) -> None:
        """Both paths at this chunk size: kernels are compiled, step times are learnt."""
        for tagged in (True, False, True, False):
            self._begin(quantum)
            tag = self.lab.tag(self.lab.key) if tagged else None
            began_s = time.perf_counter()
            stream = self._submit("warm", self.contexts(1.0)[0], tag=tag)
            self.lab.run(lambda stream=stream: bool(stream.tokens))
            self._prefill_s[quantum] = time.perf_counter() - began_s  # the last one stays: native
            self.lab.run()

    # --- one trial ------------------------------------------------------------------------------

    def trial(self, cell: Cell, arm: Arm, bystander: Stream | None = None) -> Trial:
        """Revise a plan once; the engine is empty before and after, but for the bystander."""
        self._begin(cell.quantum, empty=bystander is None)
        old, new = self.contexts(cell.overlap)
        tag = self.lab.tag(self.lab.key) if arm.tagged else None
        stream = self._submit("old", old, tag=tag)
        with self._without_stops() if arm is Arm.INHERIT else contextlib.nullcontext():
            began = self._abandon(cell, tag, foresee=arm is not Arm.INVALIDATE)
        published = len(stream.tokens)
        cold = {"skip_reading_prefix_cache": True} if arm is Arm.COLD else {}
        new_tag = None
        if tag is not None:
            new_tag = self.lab.tag(self.lab.key, inherit=arm is not Arm.INVALIDATE)
        else:
            self._assert_native()
        successor = self._submit("new", new, tag=new_tag, **cold)
        self.lab.run(lambda: bool(successor.tokens))
        ended = self._now()
        self.lab.run(lambda: successor.finish_reason is not None)
        return Trial(
            ms=(ended[0] - began[0]) * 1e3,
            wall_ms=(ended[1] - began[1]) * 1e3,
            tokens=tuple(successor.tokens),
            reused=successor.cached_tokens or 0,
            late=len(stream.tokens) - published,
            branch=self._branches.pop() if self._branches else None,
        )

    def bystander(self, *, tagged: bool, seed: str = "bystander") -> Stream:
        """Another tenant's request, decoding; its prompt is its own."""
        from retire.protocol.versions import ScopeKey

        self.lab.clean()
        self._number += 1
        key = ScopeKey("other", f"steady-{self._number}")
        tag = self.lab.tag(key) if tagged else None
        stream = self.lab.submit(
            f"by{self._number}", _tokens(48, seed), tag, max_tokens=BYSTANDER_TOKENS
        )
        self.lab.run(lambda: len(stream.tokens) >= BYSTANDER_AHEAD)
        return stream

    def _begin(self, quantum: int, *, empty: bool = True) -> None:
        if empty:
            self.lab.clean()
        self._number += 1
        self._branches.clear()
        self.lab.key = type(self.lab.key)("acme", f"plan-{self._number}")
        self.lab.scheduler.quantum = quantum
        # vLLM's own bound on a prefill's chunk: native steps are as short as ours.
        self.lab.scheduler.scheduler_config.long_prefill_token_threshold = quantum

    def _submit(self, name: str, prompt: list[int], *, tag: Any, **sampling: Any) -> Stream:
        request_id = f"{name}{self._number}"
        return self.lab.submit(request_id, prompt, tag, max_tokens=FIRST_TOKENS, **sampling)

    def _now(self) -> tuple[float, float]:
        return self.clock(), time.perf_counter()

    @contextlib.contextmanager
    def _without_stops(self) -> Iterator[None]:
        """As if no step could be ended early: the fence is the end of what runs."""
        steps = self.lab.scheduler.steps
        steps.may_stop, before = False, steps.may_stop
        try:
            yield
        finally:
            steps.may_stop = before

    def _abandon(self, cell: Cell, tag: Any, *, foresee: bool = True) -> tuple[float, float]:
        """Run to the instant and past the step that it falls in; when that was (clock, wall)."""
        lab, request_id = self.lab, f"old{self._number}"
        began: list[tuple[float, float]] = []

        def revise() -> None:
            began.append(self._now())
            if tag is not None:
                if foresee:
                    _foresee(lab, tag, round(self.prompt * cell.overlap))
                lab.advance(lab.key)

        with self._at(cell, revise):
            if tag is not None:
                lab.run(lambda: lab.request(request_id) is None)
            else:
                while not began:
                    lab.step()
                lab.engine.abort_request([request_id])
        return began[0]

    @contextlib.contextmanager
    def _at(self, cell: Cell, event: Callable[[], None]) -> Iterator[None]:
        """Have ``event`` happen at the cell's instant, within what the block runs."""
        if self.on_device:
            timer = threading.Timer(cell.instant * self._prefill_s[cell.quantum], event)
            timer.start()
            yield
            timer.join()
            return
        whole, part = _place(cell, self.prompt)
        self.lab.run(lambda: self._written("old") >= whole)
        layer = round(part * self.layers)
        with self.lab.at_layer(layer, event) if layer else self.lab.before_forward(_once(event)):
            yield

    def _written(self, name: str) -> int:
        request = self.lab.request(f"{name}{self._number}")
        return 0 if request is None else request.num_computed_tokens - request.num_in_flight_tokens

    def _assert_native(self) -> None:
        scheduler = self.lab.scheduler
        assert not scheduler.tags and not scheduler.inheritance.active, "not the native path"


def engine_args(prompt: int, quantum: int, cuda: bool, asynchronous: bool) -> dict[str, Any]:
    """Of vLLM; the same for all arms. A little over a chunk, so that a bystander fits beside it."""
    common = {"max_num_batched_tokens": quantum + 64, "max_model_len": prompt + 256}
    if not cuda:
        return common
    return {**common, **on_device_args(asynchronous=asynchronous)}


def _place(cell: Cell, prompt: int) -> tuple[int, float]:
    """Tokens before the step that the instant falls in, and how far into that step it is."""
    at = cell.instant * prompt
    whole = int(at // cell.quantum) * cell.quantum
    return whole, (at - whole) / min(cell.quantum, prompt - whole)


def _tokens(count: int, seed: str) -> list[int]:
    draw = random.Random(f"dominance-{seed}")
    return [draw.randrange(10, 2000) for _ in range(count)]


def _layers(lab: Any) -> int:
    return lab.core.vllm_config.model_config.hf_text_config.num_hidden_layers


def _foresee(lab: Any, tag: Any, shared: int) -> None:
    """What the API process says before a commit: how much both contexts share."""
    from retire.mailbox import Overlaps

    Overlaps.attach(lab.mailbox.path, writable=True).put(tag.slot, shared)


def _once(call: Callable[[], Any]) -> Callable[[], None]:
    pending = [call]

    def run() -> None:
        if pending:
            pending.pop()()

    return run

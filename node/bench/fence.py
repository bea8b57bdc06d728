"""``make bench-fence``: what is left of a long prefill once superseded (the paper's Table 10).

Native vLLM finishes the step that runs (its tail); ours stops at a safe point. Both arms run in one
engine, paired, in alternating order: the step begins, ``--inject-ms`` later the plan is abandoned,
and the time until the device is idle is taken. A second series takes the time from there to the
successor's first token; natively that is abort + resend with prefix caching.

Usage: python -m bench.fence --model PATH [--units 2048,4096,8192] [--pairs N] [--prompt TOKENS]
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from bench.report import Baseline, Row, measured, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.lab import Lab

GOAL_UNIT: Final = 4096  # the paper's execution unit
OVERLAP: Final = 0.9  # of the successor's context with its predecessor's
NATIVE: Final = "native vLLM: the step runs to its end"
RESEND: Final = "native abort + prefix caching"


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    units: tuple[int, ...]
    prompt: int
    pairs: int
    inject_ms: float
    asynchronous: bool


@dataclass(slots=True)
class Unit:
    """Samples of one execution unit, in ms."""

    ours: list[float] = field(default_factory=list)
    native: list[float] = field(default_factory=list)
    ours_to_first: list[float] = field(default_factory=list)
    native_to_first: list[float] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)


class Subject:
    """One engine, both ways of abandoning a plan."""

    def __init__(self, options: Options) -> None:
        from bench.lab import Lab

        self.options = options
        self.on_device = _cuda()
        self.lab: Lab = Lab(options.model, quantum=max(options.units), **_engine_args(options))
        self._number = 0
        self._seen = _branches(self.lab)

    def use(self, unit: int) -> None:
        """Both arms compute ``unit`` tokens a step."""
        self.lab.scheduler.quantum = unit
        self.lab.scheduler.max_num_scheduled_tokens = unit
        for _ in range(2):
            self._prefill_alone(unit)

    def tail(self, *, ours: bool) -> float:
        """From abandoning a plan in the middle of its first step to an idle device, ms."""
        began_s = self._abandon(self._prompt(), ours=ours, steps=0)
        self._idle()
        ended_s = time.perf_counter()
        self.lab.run()
        self.lab.clean()
        return (ended_s - began_s) * 1e3

    def to_first_token(self, *, ours: bool) -> float:
        """From abandoning a plan in its second step to its successor's first token, ms."""
        old = self._prompt()
        shared = int(len(old) * OVERLAP)
        new = old[:shared] + self._prompt()[shared:]
        began_s = self._abandon(old, ours=ours, steps=1, shared=shared)
        tag = self.lab.tag(self.lab.key) if ours else None
        stream = self.lab.submit(f"new{self._number}", new, tag, max_tokens=1)
        self.lab.run(lambda: bool(stream.tokens))
        ended_s = time.perf_counter()
        self.lab.run()
        self.lab.clean()
        return (ended_s - began_s) * 1e3

    def branches(self) -> list[str]:
        """What the fence chose since the last call."""
        found = list(self._seen)
        self._seen.clear()
        return found

    def _abandon(self, old: list[int], *, ours: bool, steps: int, shared: int = 0) -> float:
        lab = self.lab
        self._number += 1
        lab.key = type(lab.key)("acme", f"plan-{self._number}")
        tag = lab.tag(lab.key) if ours else None
        request_id = f"old{self._number}"
        lab.submit(request_id, old, tag, max_tokens=4)
        unit = lab.scheduler.quantum
        lab.run(lambda: _written(lab, request_id) >= steps * unit)
        began: list[float] = []

        def abandon() -> None:
            time.sleep(self.options.inject_ms / 1e3)
            began.append(time.perf_counter())
            if tag is not None:
                if shared:
                    _say(lab, tag, shared)
                lab.advance(lab.key)

        timer = threading.Thread(target=abandon)
        with lab.before_forward(_once(timer.start)):
            if ours:
                lab.run(lambda: lab.request(request_id) is None)
            else:
                lab.step()
                while not began:
                    lab.step()
                lab.engine.abort_request([request_id])
        timer.join()
        return began[0]

    def _prefill_alone(self, tokens: int) -> None:
        self._number += 1
        lab = self.lab
        key = type(lab.key)("acme", f"warm-{self._number}")
        lab.submit(f"warm{self._number}", self._prompt(tokens), lab.tag(key), max_tokens=2)
        lab.run()
        lab.clean()

    def _prompt(self, tokens: int | None = None) -> list[int]:
        draw = random.Random(f"fence-{self._number}-{tokens}-{time.perf_counter_ns()}")
        return [draw.randrange(10, 2000) for _ in range(tokens or self.options.prompt)]

    def _idle(self) -> None:
        if self.on_device:
            import torch

            torch.cuda.synchronize()


def measure(subject: Subject, console: Console) -> dict[int, Unit]:
    """Every unit, pairs in alternating order."""
    found: dict[int, Unit] = {}
    for unit in subject.options.units:
        subject.use(unit)
        samples = found[unit] = Unit()
        for number in range(subject.options.pairs + 1):
            first = number % 2 == 0
            tails = {arm: subject.tail(ours=arm) for arm in (first, not first)}
            subject.branches()
            firsts = {arm: subject.to_first_token(ours=arm) for arm in (first, not first)}
            chosen = subject.branches()
            if number == 0:
                continue  # kernels of new shapes are compiled in the first pair
            samples.ours.append(tails[True])
            samples.native.append(tails[False])
            samples.ours_to_first.append(firsts[True])
            samples.native_to_first.append(firsts[False])
            samples.branches += chosen
        console.print(_line(unit, samples), highlight=False)
    return found


def rows(found: dict[int, Unit]) -> list[Row]:
    """The goals' metrics for the paper's unit, the others under their own names."""
    made: list[Row] = []
    goal_unit = GOAL_UNIT if GOAL_UNIT in found else max(found)
    for unit, samples in found.items():
        suffix = "" if unit == goal_unit else f"_{unit}"
        native = Baseline(NATIVE, samples.native)
        resend = Baseline(RESEND, samples.native_to_first)
        made.append(
            measured(f"fence.long_prefill{suffix}", samples.ours, baseline=native, unit="ms")
        )
        made.append(
            measured(
                f"fence.to_successor{suffix}", samples.ours_to_first, baseline=resend, unit="ms"
            )
        )
    default = found[min(found)]
    made.append(measured("fence.long_prefill_ms", default.ours))
    return made


def _line(unit: int, samples: Unit) -> str:
    middle = len(samples.ours) // 2
    ours, native = sorted(samples.ours)[middle], sorted(samples.native)[middle]
    mine, theirs = sorted(samples.ours_to_first)[middle], sorted(samples.native_to_first)[middle]
    return (
        f"unit {unit:5d}: tail {ours:7.2f} ms, native {native:7.1f} ms ({native / ours:5.1f}x); "
        f"to the successor's first token {mine:7.1f} ms, native {theirs:7.1f} ms "
        f"({theirs / mine:4.2f}x) {sorted(set(samples.branches))}"
    )


def _engine_args(options: Options) -> dict[str, Any]:
    largest = max(options.units)
    common = {"max_num_batched_tokens": largest, "max_model_len": options.prompt + largest}
    if not _cuda():
        return common
    return {
        **common,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "block_size": 16,
        "enforce_eager": False,
        "async_scheduling": options.asynchronous,
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]},
        "gpu_memory_utilization": 0.9,
    }


def _branches(lab: Lab) -> list[str]:
    """Every branch that the scheduler is told of, as it comes."""
    seen: list[str] = []
    fence = lab.scheduler._fence_step

    def watched(*args: Any) -> Any:
        told = lab.scheduler._ended_step
        if told is not None:
            seen.append(told.branch.value)
        return fence(*args)

    lab.scheduler._fence_step = watched
    return seen


def _written(lab: Lab, request_id: str) -> int:
    request = lab.request(request_id)
    return 0 if request is None else request.num_computed_tokens - request.num_in_flight_tokens


def _say(lab: Lab, tag: Any, shared: int) -> None:
    from retire.mailbox import Overlaps

    Overlaps.attach(lab.mailbox.path, writable=True).put(tag.slot, shared)


def _once(call: Callable[[], Any]) -> Callable[[], None]:
    pending = [call]

    def run() -> None:
        if pending:
            pending.pop()()

    return run


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="bench.fence", description=__doc__)
    parser.add_argument("--model", default="qwen3-tiny")
    parser.add_argument("--units", default="2048,4096,8192" if _cuda() else "128,256")
    parser.add_argument("--prompt", type=int, default=8192 if _cuda() else 768)
    parser.add_argument("--pairs", type=int, default=10 if _cuda() else 3)
    parser.add_argument("--inject-ms", type=float, default=5.0)
    parser.add_argument("--sync", action="store_true", help="without asynchronous scheduling")
    given = parser.parse_args(arguments)
    units = tuple(int(unit) for unit in given.units.split(","))
    return Options(given.model, units, given.prompt, given.pairs, given.inject_ms, not given.sync)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = _options(arguments)
    console = Console()
    console.print(f"starting the engine on {options.model} ...")
    subject = Subject(options)
    found = measure(subject, console)
    device = "h200" if subject.on_device else "cpu"
    samples = {
        f"{name}_{unit}_ms": getattr(one, name)
        for unit, one in found.items()
        for name in ("ours", "native", "ours_to_first", "native_to_first")
    }
    console.print(f"written: {write('fence', rows(found), device=device, samples=samples)}")
    subject.lab.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``make bench-fence``: what is left of superseded work, and the way to its successor (Table 10).

Native vLLM finishes the step that runs (its tail); ours stops at a safe point. Both arms run in one
engine, paired, in alternating order: the step begins, ``--inject-ms`` later the plan is abandoned,
and the time until the device is idle is taken. A second series takes the time from there to the
successor's first token; natively that is abort + resend, with prefix caching and cold.
``fence_engine`` says what runs on each path.

Writes ``results/<device>/fence.json``, or ``fence_speculation.json`` and ``fence_two_groups.json``
(other engines), and a plot beside it.

Usage: python -m bench.fence [--paths speculation|two_groups] [--model PATH] [--units 2048,4096]
    [--pairs N] [--prompt TOKENS]
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_fence, turns
from bench.fence_engine import Arm, Options, Path, Subject, on_cuda
from bench.report import ROOT, Baseline, Row, measured, write

if TYPE_CHECKING:
    from collections.abc import Sequence

GOAL_UNIT: Final = 4096  # the paper's execution unit
DEFAULT_UNIT: Final = 2048  # tokens a step of a scoped prefill, unless a node is told otherwise
NATIVE: Final = "native vLLM: the step runs to its end"
RESEND: Final = "native abort + prefix caching"
COLD: Final = "native abort + cold"
PATHS: Final = {
    "fence": (Path.LONG_PREFILL,),
    "fence_speculation": (Path.DRAFT_VERIFY, Path.SPEC_DECODE, Path.DECODE),
    "fence_two_groups": (Path.TWO_GROUPS,),
}
MODELS: Final = {"fence_two_groups": "gemma3-swa-tiny"}


@dataclass(slots=True)
class Unit:
    """Samples of one path and execution unit, in ms."""

    tails: dict[Arm, list[float]] = field(default_factory=dict)
    firsts: dict[Arm, list[float]] = field(default_factory=dict)
    branches: list[str] = field(default_factory=list)

    def add(self, tails: dict[Arm, float], firsts: dict[Arm, float], branches: list[str]) -> None:
        """One pair of every arm."""
        for arm, ms in tails.items():
            self.tails.setdefault(arm, []).append(ms)
        for arm, ms in firsts.items():
            self.firsts.setdefault(arm, []).append(ms)
        self.branches += branches


Found = dict[tuple[Path, int], Unit]


def measure(subject: Subject, console: Console) -> Found:
    """Every path and unit, arms in alternating order."""
    found: Found = {}
    for path in subject.options.paths:
        for unit in subject.options.units if path is not Path.DECODE else (DEFAULT_UNIT,):
            subject.use(path, min(unit, max(subject.options.units)))
            samples = found[path, unit] = Unit()
            for number in range(subject.options.pairs + 1):
                pair = _pair(subject, number)
                if number:  # kernels of new shapes are compiled in the first one
                    samples.add(*pair)
            console.print(_line(path, unit, samples), highlight=False)
    subject.release()
    return found


def _pair(subject: Subject, number: int) -> tuple[dict[Arm, float], dict[Arm, float], list[str]]:
    arms = [Arm.RETIRE, Arm.PREFIX]
    arms = arms[::-1] if number % 2 else arms
    tails = {arm: subject.tail(arm) for arm in arms}
    branches = subject.branches()
    if subject.path is Path.DECODE:
        return tails, {}, branches
    firsts = {arm: subject.to_first_token(arm) for arm in (*arms, Arm.COLD)}
    return tails, firsts, branches + subject.branches()


def rows(found: Found) -> list[Row]:
    """The goals' metrics for the paper's unit, the others under their own names."""
    made: list[Row] = []
    units = {unit for path, unit in found if path is not Path.DECODE}
    goal_unit = GOAL_UNIT if GOAL_UNIT in units else max(units)
    for (path, unit), samples in found.items():
        suffix = "" if unit == goal_unit or path is Path.DECODE else f"_{unit}"
        ours, native = samples.tails[Arm.RETIRE], Baseline(NATIVE, samples.tails[Arm.PREFIX])
        made.append(measured(f"fence.{path.value}{suffix}", ours, baseline=native, unit="ms"))
        for arm, name, words in ((Arm.PREFIX, "successor", RESEND), (Arm.COLD, "cold", COLD)):
            if samples.firsts:
                metric = f"fence.{path.value}.to_{name}{suffix}"
                base = Baseline(words, samples.firsts[arm])
                ours = samples.firsts[Arm.RETIRE]
                made.append(measured(metric, ours, baseline=base, unit="ms"))
    finest = found.get((Path.LONG_PREFILL, min(units)))
    if finest is not None:
        made.append(measured("fence.long_prefill_ms", finest.tails[Arm.RETIRE]))
    return made


def samples_of(found: Found) -> dict[str, list[float]]:
    """Every time, ms."""
    return {
        f"{path.value} {kind} {arm.value} {unit} ms": series
        for (path, unit), one in found.items()
        for kind, by_arm in (("tail", one.tails), ("to first token", one.firsts))
        for arm, series in by_arm.items()
    }


def save(bench: str, found: Found, *, root: File = ROOT) -> File:
    """Write the rows; the path of the JSON file."""
    device = "h200" if on_cuda() else "cpu"
    return write(bench, rows(found), device=device, samples=samples_of(found), root=root)


def draw(found: Found, options: Options, path: File) -> None:
    """The plot beside the rows."""
    note = (
        f"{File(options.model).name}, {options.prompt}-token prompts, revised "
        f"{options.inject_ms:g} ms into a step; medians of n = {options.pairs} pairs"
    )
    plots_fence.draw(rows(found), path.with_suffix(".svg"), note=note)


def _line(path: Path, unit: int, samples: Unit) -> str:
    def middle(series: list[float] | None) -> float:
        return statistics.median(series) if series else float("nan")

    ours, native = middle(samples.tails[Arm.RETIRE]), middle(samples.tails[Arm.PREFIX])
    mine = middle(samples.firsts.get(Arm.RETIRE))
    theirs, cold = (middle(samples.firsts.get(arm)) for arm in (Arm.PREFIX, Arm.COLD))
    return (
        f"{path.value} {unit:5d}: tail {ours:7.2f} ms, native {native:7.1f} ms "
        f"({native / ours:5.1f}x); to the successor's first token {mine:7.1f} ms, native "
        f"{theirs:7.1f} ms ({theirs / mine:4.2f}x), cold {cold:7.1f} ms ({cold / mine:4.2f}x) "
        f"{sorted(set(samples.branches))}"
    )


def quick(bench: str) -> Options:
    """Seconds, on a tiny model."""
    return Options(MODELS.get(bench, "qwen3-tiny"), PATHS[bench], (256,), 768, 2, 2.0, True)


def run(bench: str, options: Options, console: Console, *, root: File = ROOT) -> File:
    """Measure and write; the path of the JSON file."""
    console.print(f"starting the engine on {options.model} ...")
    subject = Subject(options)
    try:
        with turns.turn():
            found = measure(subject, console)
    finally:
        subject.lab.close()
    path = save(bench, found, root=root)
    draw(found, options, path)
    console.print(f"written: {path}")
    return path


def _options(arguments: Sequence[str] | None) -> tuple[str, Options, File]:
    parser = argparse.ArgumentParser(prog="bench.fence", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--paths", choices=("long", "speculation", "two_groups"), default="long")
    parser.add_argument("--model", help="name of a tiny model, or a path")
    parser.add_argument("--units", default="2048,4096,8192" if cuda else "128,256")
    parser.add_argument("--prompt", type=int, default=8192 if cuda else 768, help="tokens")
    parser.add_argument("--pairs", type=int, default=10 if cuda else 3)
    parser.add_argument("--inject-ms", type=float, default=5.0)
    parser.add_argument("--sync", action="store_true", help="without asynchronous scheduling")
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=File, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    bench = "fence" if given.paths == "long" else f"fence_{given.paths}"
    if given.quick:
        return bench, quick(bench), given.root
    units = tuple(int(unit) for unit in given.units.split(","))
    model = given.model or MODELS.get(bench, "qwen3-tiny")
    asynchronous = not given.sync
    options = Options(
        model, PATHS[bench], units, given.prompt, given.pairs, given.inject_ms, asynchronous
    )
    return bench, options, given.root


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    bench, options, root = _options(arguments)
    run(bench, options, Console(), root=root)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

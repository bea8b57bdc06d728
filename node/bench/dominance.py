"""``make bench-dominance``: is Retire ever slower than abort + prefix caching? (design, 6.4)

Sweeps overlap x instant of the revision x quantum; takes the time from SUPERSEDE to the first token
of the successor for Retire, native abort + prefix caching and native abort + cold, in one engine,
arms in rotating and cells in random order. Every successor's tokens are compared with a clean
run's. Then the same with another tenant's request in the batches, whose logprobs may not move.
On a CPU the clock is the process's CPU time (``dominance_engine`` says why).

Writes ``results/<device>/dominance.json`` and ``dominance.svg``; prints each cell below 1 and why.

Usage: python -m bench.dominance [--model PATH] [--device cpu|cuda] [--quick] [--pairs N]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_dominance
from bench.dominance_engine import Arm, Cell, Subject
from bench.dominance_rows import PAPER_OVERLAP, Sweep, below_one, rows, why_not_colder
from bench.dominance_shared import TOLERANCE, shared_rows
from bench.fence_engine import on_cuda
from bench.report import ROOT, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report import Row

OVERLAPS: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
INSTANTS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    prompt: int
    quanta: tuple[int, ...]
    pairs: int
    overlaps: tuple[float, ...] = OVERLAPS
    instants: tuple[float, ...] = INSTANTS
    asynchronous: bool = True
    root: Path = ROOT
    seconds: float | None = None  # no repetition is started that would end later


class Run:
    """One sweep over one engine."""

    def __init__(self, options: Options, console: Console, subject: Subject | None = None) -> None:
        self.options = options
        self.console = console
        self.subject = subject or Subject(
            options.model,
            prompt=options.prompt,
            quanta=options.quanta,
            asynchronous=options.asynchronous,
        )
        self.sweep = Sweep()
        self.wrong = 0
        self.repetitions = 0
        self._clean = {o: self.subject.clean_run(o) for o in options.overlaps}

    def measure(self) -> None:
        """Every cell, ``pairs`` times."""
        draw = random.Random(0)
        order = [
            Cell(overlap, instant, quantum)
            for overlap in self.options.overlaps
            for instant in self.options.instants
            for quantum in self.options.quanta
        ]
        for quantum in self.options.quanta:
            self.subject.warm_up(quantum)
        first_s = time.perf_counter()
        took_s = 0.0
        for number in range(self.options.pairs):
            began_s = time.perf_counter()
            if number and began_s + took_s - first_s > (self.options.seconds or float("inf")):
                break
            self.repetitions = number + 1
            draw.shuffle(order)
            for turn, cell in enumerate(order):
                self._cell(cell, turn + number)
            took_s = time.perf_counter() - began_s
            self.console.print(f"repetition {number + 1}: {len(order)} cells, {took_s:.0f} s")

    def _cell(self, cell: Cell, turn: int) -> None:
        arms = [Arm.RETIRE, Arm.PREFIX]
        if cell.overlap == self.cold_overlap:
            arms.append(Arm.COLD)  # what it shares is nothing to a cold run: one overlap will do
        shift = turn % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            trial = self.subject.trial(cell, arm)
            self.wrong += trial.tokens != self._clean[cell.overlap]
            self.sweep.add(cell, arm, trial)

    @property
    def cold_overlap(self) -> float:
        """The overlap at which native + cold runs too."""
        return min(self.options.overlaps, key=lambda overlap: abs(overlap - PAPER_OVERLAP))

    def save(self, made: list[Row]) -> Path:
        """Write ``results/<device>/dominance.json``."""
        device = "h200" if self.subject.on_device else "cpu"
        root = self.options.root
        return write("dominance", made, device=device, samples=self.samples(), root=root)

    def rows(self) -> list[Row]:
        """All of them; runs the shared batches once those of the sweep are on disk."""
        made = rows(self.sweep, self.wrong, self.options.prompt)
        self.save(made)
        return made + shared_rows(self.subject, self.options.quanta, self.repetitions)

    def samples(self) -> dict[str, list[float]]:
        """Times of every cell and arm, ms."""
        return {
            f"{arm.name.lower()} o{cell.overlap:g} t{cell.instant:g} q{cell.quantum} ms": [
                trial.ms for trial in trials
            ]
            for (cell, arm), trials in self.sweep.trials.items()
        }


def run(
    options: Options, console: Console, subject: Subject | None = None
) -> tuple[Path, list[str]]:
    """Measure, print, draw, write; the path of the result and the promises broken.

    ``subject``: an engine that runs already, and is left running; else its own.
    """
    console.print(f"dominance on {options.model} ...")
    bench = Run(options, console, subject)
    try:
        bench.measure()
        made = bench.rows()
    finally:
        if subject is None:
            bench.subject.close()
    for row in made:
        ratio = "" if row.ratio is None else f"{row.ratio:6.2f}x"
        goal = f"  goal {row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
        console.print(
            f"{row.metric:40} {row.ours:9.2f} {row.unit:10} {ratio}{goal}", highlight=False
        )
    slower = below_one(bench.sweep)
    console.print(why_not_colder(bench.sweep, options.prompt), highlight=False, soft_wrap=True)
    for line in faults(made):
        console.print(f"FAULT: {line}", style="bold red")
    console.print(f"{len(slower)} of {len(bench.sweep.cells())} cells below 1:")
    for line in slower:
        console.print("  " + line, highlight=False, soft_wrap=True)
    path = bench.save(made)
    clock = "wall clock" if bench.subject.on_device else "CPU time of the engine's process"
    note = (
        f"{Path(options.model).name}, {options.prompt}-token prompts; {clock}; medians of "
        f"n = {bench.repetitions} paired runs a cell; 95 % intervals are in dominance.json"
    )
    console.print(
        f"drawn: {plots_dominance.draw(bench.sweep, path.with_suffix('.svg'), note=note)}"
    )
    console.print(f"written: {path}")
    return path, faults(made)


def faults(made: Sequence[Row]) -> list[str]:
    """Broken promises among the rows: nothing here is a matter of speed."""
    most = {
        "compose.wrong_successors": 0.0,
        "compose.late_tokens": 0.0,
        "compose.bystander_changed": 0.0,
        "compose.bystander_logprob_drift": TOLERANCE,
    }
    return [
        f"{row.metric} is {row.ours:g} {row.unit}, at most {most[row.metric]:g} may be"
        for row in made
        if row.ours > max(most.get(row.metric, float("inf")), 2 * (row.baseline or 0.0))
    ]


def quick(root: Path) -> Options:
    """Seconds: two overlaps, one instant, a tiny model."""
    return Options("qwen3-tiny", 512, (128, 256), 1, (0.5, 0.9), (0.7,), root=root)


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="bench.dominance", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--model", default="qwen3-deep", help="name of a tiny model, or a path")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    parser.add_argument("--prompt", type=int, default=8192 if cuda else 1024, help="tokens")
    parser.add_argument("--quanta", default="1024,2048,4096" if cuda else "128,256,512")
    parser.add_argument("--overlaps", type=parts, default=_listed(OVERLAPS), help="of the contexts")
    parser.add_argument("--instants", type=parts, default=_listed(INSTANTS), help="of the prefill")
    parser.add_argument("--pairs", type=int, default=5 if cuda else 3)
    parser.add_argument("--sync", action="store_true", help="without asynchronous scheduling")
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if (given.device == "cuda") is not cuda:
        parser.error(f"--device {given.device}: this machine {'has' if cuda else 'has no'} CUDA")
    if given.quick:
        return quick(given.root)
    quanta = tuple(int(quantum) for quantum in given.quanta.split(","))
    return Options(
        given.model, given.prompt, quanta, given.pairs, given.overlaps, given.instants,
        asynchronous=not given.sync, root=given.root,
    )  # fmt: skip


def parts(text: str) -> tuple[float, ...]:
    """Parts of a whole from a command line; ArgumentTypeError says what is wanted."""
    with contextlib.suppress(ValueError):
        found = tuple(float(part) for part in text.split(","))
        if all(0 <= part <= 1 for part in found):
            return found
    raise argparse.ArgumentTypeError(f"numbers from 0 to 1 with commas between them; got {text!r}")


def _listed(parts: Sequence[float]) -> str:
    return ",".join(f"{part:g}" for part in parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when a promise was broken, whatever the times."""
    _, broken = run(_options(arguments), Console())
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``make bench-composition``: what each half of a transition saves, and both (the paper's Table 5).

A plan is revised in the second half of its prefill; its successor shares nine tenths of its
context. Seven arms, in rotating order, from the revision to the successor's first token: native
abort + cold, the fence alone, certified inheritance alone, both, native abort + prefix caching (all
with half the prompt a step, as in the paper), and both with the node's own quantum, beside native
at that one. Every successor's tokens are compared with a clean run's.

Writes ``results/<device>/composition.json`` and ``composition.svg``.

Usage: python -m bench.composition [--model PATH] [--quick] [--pairs N] [--prompt TOKENS]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_composition
from bench.dominance_engine import Arm, Cell, Subject, Trial
from bench.fence_engine import on_cuda
from bench.goals import Better
from bench.report import ROOT, Baseline, Row, measured, value, write

if TYPE_CHECKING:
    from collections.abc import Sequence

OVERLAP: Final = 0.9
INSTANT: Final = 0.7  # of the prefill: in the second of two steps
COARSE, FINE = 2, 4  # steps of a prompt: the paper's execution unit, and a node's own


@dataclass(frozen=True, slots=True)
class Way:
    """An arm and the steps that it computes a prompt in."""

    label: str
    arm: Arm
    steps: int


class Column(Enum):
    """The table's lines; the value names the metric."""

    COLD = "native_cold"
    INVALIDATE = "invalidate"
    INHERIT = "inherit"
    COMBINED = "combined"
    DEFAULT = "default"
    PREFIX = "native_prefix"
    PREFIX_FINE = "native_prefix_fine"


WAYS: Final = {
    Column.COLD: Way("native abort + cold", Arm.COLD, COARSE),
    Column.INVALIDATE: Way("fence alone", Arm.INVALIDATE, COARSE),
    Column.INHERIT: Way("inheritance alone", Arm.INHERIT, COARSE),
    Column.COMBINED: Way("both", Arm.RETIRE, COARSE),
    Column.DEFAULT: Way("both, default quantum", Arm.RETIRE, FINE),
    Column.PREFIX: Way("native + prefix caching", Arm.PREFIX, COARSE),
    Column.PREFIX_FINE: Way("native + prefix caching, fine steps", Arm.PREFIX, FINE),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    prompt: int
    pairs: int
    asynchronous: bool = True
    root: Path = ROOT


@dataclass(slots=True)
class Table:
    """Trials of every arm, in the order of the repetitions; successors with other tokens."""

    trials: dict[Column, list[Trial]] = field(default_factory=dict)
    wrong: int = 0

    def ms(self, column: Column) -> list[float]:
        """Times of one arm."""
        return [trial.ms for trial in self.trials[column]]

    def saved_pct(self, column: Column) -> list[float]:
        """Paired reductions against native + cold, percent."""
        pairs = zip(self.ms(column), self.ms(Column.COLD), strict=True)
        return [100 * (1 - mine / cold) for mine, cold in pairs]


def measure(subject: Subject, pairs: int) -> Table:
    """Every arm, ``pairs`` times, after one round that is thrown away."""
    for steps in (COARSE, FINE):
        subject.warm_up(subject.prompt // steps)
    clean = subject.clean_run(OVERLAP)
    table = Table({column: [] for column in Column})
    order = list(Column)
    for number in range(pairs + 1):
        shift = number % len(order)
        for column in (*order[shift:], *order[:shift]):
            way = WAYS[column]
            cell = Cell(OVERLAP, INSTANT, subject.prompt // way.steps)
            trial = subject.trial(cell, way.arm)
            if number:
                table.trials[column].append(trial)
                table.wrong += trial.tokens != clean
    return table


def rows(table: Table) -> list[Row]:
    """The goal's metric first: ours as a node runs it, against the paper's baseline."""
    made = [measured("compose.vs_cold_pct", table.saved_pct(Column.DEFAULT))]
    cold = Baseline(WAYS[Column.COLD].label, table.ms(Column.COLD))
    for column in Column:
        name = f"compose.{column.value}"
        made.append(measured(f"{name}_ms", table.ms(column), baseline=cold, unit="ms"))
        if column is not Column.COLD:
            saved = table.saved_pct(column)
            made.append(measured(f"{name}_pct", saved, unit="%", better=Better.HIGHER))
        reused = table.trials[column][0].reused
        made.append(value(f"{name}_reused", reused, n=1, unit="tokens", better=Better.HIGHER))
    best = min((Column.PREFIX, Column.PREFIX_FINE), key=lambda one: sorted(table.ms(one)))
    prefix = Baseline(WAYS[best].label, table.ms(best))
    ours = table.ms(Column.DEFAULT)
    trials = sum(map(len, table.trials.values()))
    late = sum(t.late for c, found in table.trials.items() if WAYS[c].arm.tagged for t in found)
    return [
        *made,
        measured("compose.default_vs_prefix_ms", ours, baseline=prefix, unit="ms"),
        value("compose.table_wrong_successors", table.wrong, n=trials, unit="successors"),
        value("compose.table_late_tokens", late, n=trials, unit="tokens"),
    ]


def save(table: Table, options: Options) -> Path:
    """Write the rows; the path of the JSON file."""
    samples = {f"{column.value} ms": table.ms(column) for column in Column}
    device = "h200" if on_cuda() else "cpu"
    return write("composition", rows(table), device=device, samples=samples, root=options.root)


def draw(table: Table, options: Options, path: Path) -> None:
    """The plot beside the rows."""
    note = (
        f"{Path(options.model).name}, {options.prompt}-token prompts, {OVERLAP:.0%} shared, "
        f"revised at {INSTANT:.0%} of the prefill; medians, least and most of n = {options.pairs}"
    )
    bars = [(WAYS[column].label, WAYS[column].arm.tagged, table.ms(column)) for column in Column]
    plots_composition.draw(bars, path.with_suffix(".svg"), note=note)


def report(table: Table, console: Console) -> None:
    """The table in words."""
    for row in rows(table):
        ratio = "" if row.ratio is None else f"{row.ratio:6.2f}x"
        goal = f"  goal {row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
        console.print(
            f"{row.metric:36} {row.ours:9.2f} {row.unit:10} {ratio}{goal}", highlight=False
        )
    for column, trials in table.trials.items():
        branches = sorted({trial.branch or "quantum" for trial in trials})
        if WAYS[column].arm.tagged:
            console.print(f"{column.value}: fence {branches}", highlight=False)


def run(options: Options, console: Console) -> tuple[Path, int]:
    """Measure, print, write; the path of the result and how many successors were wrong."""
    console.print(f"starting the engine on {options.model} ...")
    quanta = (options.prompt // FINE, options.prompt // COARSE)
    subject = Subject(
        options.model, prompt=options.prompt, quanta=quanta, asynchronous=options.asynchronous
    )
    try:
        table = measure(subject, options.pairs)
    finally:
        subject.close()
    report(table, console)
    path = save(table, options)
    draw(table, options, path)
    console.print(f"written: {path}")
    return path, table.wrong


def quick(root: Path) -> Options:
    """Seconds, on a tiny model."""
    return Options("qwen3-tiny", 512, 1, root=root)


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="bench.composition", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--model", default="qwen3-deep", help="name of a tiny model, or a path")
    parser.add_argument("--prompt", type=int, default=8192 if cuda else 1024, help="tokens")
    parser.add_argument("--pairs", type=int, default=10 if cuda else 5)
    parser.add_argument("--sync", action="store_true", help="without asynchronous scheduling")
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if given.quick:
        return quick(given.root)
    return Options(given.model, given.prompt, given.pairs, not given.sync, given.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when a successor was wrong, whatever the times."""
    _, wrong = run(_options(arguments), Console())
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

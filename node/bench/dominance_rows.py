"""What a dominance sweep says: rows, and why a cell is below 1. Pure: samples come in as arguments.

A cell's baseline is native abort + prefix caching at *its* best quantum for that overlap and
instant, whatever ours ran with; the same-quantum ratio stands beside it.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.dominance_engine import Arm, Cell, Trial
from bench.goals import Better
from bench.report import Baseline, Row, measured, value

if TYPE_CHECKING:
    from collections.abc import Iterable

RESAMPLES: Final = 1000
PAPER_OVERLAP: Final = 0.9


@dataclass(slots=True)
class Sweep:
    """Every trial of a run, by cell and arm, in the order of the repetitions."""

    trials: dict[tuple[Cell, Arm], list[Trial]] = field(default_factory=dict)

    def add(self, cell: Cell, arm: Arm, trial: Trial) -> None:
        """Take in one trial."""
        self.trials.setdefault((cell, arm), []).append(trial)

    def cells(self) -> list[Cell]:
        """Every cell that ours ran in."""
        return [cell for cell, arm in self.trials if arm is Arm.RETIRE]

    def quanta(self) -> list[int]:
        """Every quantum, ascending."""
        return sorted({cell.quantum for cell in self.cells()})

    def ms(self, cell: Cell, arm: Arm) -> list[float]:
        """Times of one arm in one cell."""
        return [trial.ms for trial in self.trials[cell, arm]]

    def best_native(self, cell: Cell) -> Cell:
        """The same overlap and instant at the quantum that native prefix caching likes best."""
        options = [Cell(cell.overlap, cell.instant, quantum) for quantum in self.quanta()]
        return min(options, key=lambda one: statistics.median(self.ms(one, Arm.PREFIX)))

    def ratio(self, cell: Cell, *, same_quantum: bool = False) -> float:
        """Native + prefix caching over ours, medians."""
        native = cell if same_quantum else self.best_native(cell)
        ours = statistics.median(self.ms(cell, Arm.RETIRE))
        return statistics.median(self.ms(native, Arm.PREFIX)) / ours


def rows(sweep: Sweep, wrong: int, prompt: int) -> list[Row]:
    """The goals' metrics first; ``wrong``: successors whose tokens were not a clean run's."""
    trials = sum(len(found) for found in sweep.trials.values())
    late = sum(t.late for (_, arm), found in sweep.trials.items() for t in found if _is_ours(arm))
    finest = min(sweep.quanta())
    return [
        _worst(sweep),
        _geomean(sweep, "compose.geomean_vs_prefix", sweep.cells()),
        *_vs_cold(sweep, prompt),
        _worst(sweep, same_quantum=True),
        _geomean(sweep, "compose.geomean_same_quantum", sweep.cells(), same_quantum=True),
        *(
            _geomean(sweep, f"compose.geomean_quantum{quantum}", _of(sweep, quantum))
            for quantum in sweep.quanta()
        ),
        _below(sweep, "compose.cells_below_0.98", sweep.cells()),
        _below(sweep, f"compose.cells_below_0.98_quantum{finest}", _of(sweep, finest)),
        value("compose.wrong_successors", wrong, n=trials, unit="successors"),
        value("compose.late_tokens", late, n=trials, unit="tokens"),
        value("compose.wall_per_clock", _wall(sweep), n=trials, unit="ratio"),
    ]


def below_one(sweep: Sweep) -> list[str]:
    """A line for every cell in which ours was slower than the strong baseline, and why."""
    slower = sorted((sweep.ratio(cell), str(cell), cell) for cell in sweep.cells())
    return [_why(sweep, cell, ratio) for ratio, _, cell in slower if ratio < 1.0]


def why_not_colder(sweep: Sweep, prompt: int) -> str:
    """What bounds the gain over a cold run in the paper's cell."""
    cell = _paper_cell(sweep, prompt)
    ours = sweep.trials[cell, Arm.RETIRE]
    branches = dict(Counter(trial.branch or "quantum" for trial in ours))
    whole = int(cell.instant * prompt // cell.quantum) * cell.quantum
    rest = min(whole + cell.quantum, prompt) - round(cell.instant * prompt)
    return (
        f"compose.vs_cold_same_quantum_pct, {cell}: fence {branches}, {ours[0].reused} tokens "
        f"reused. A cold run computes the rest of the step and the prompt, {rest + prompt} tokens; "
        f"a fence that finishes, {rest + prompt - ours[0].reused} of them."
    )


def _why(sweep: Sweep, cell: Cell, ratio: float) -> str:
    best = sweep.best_native(cell)
    ours, native = sweep.trials[cell, Arm.RETIRE], sweep.trials[best, Arm.PREFIX]
    branches = Counter(trial.branch or "quantum" for trial in ours)
    kept, cached = ours[0].reused, native[0].reused
    low, high = _interval(sweep, [cell])
    reason = _reason(sweep, cell, best, kept - cached)
    return (
        f"{ratio:.2f} [{low:.2f}, {high:.2f}] {cell}: fence {dict(branches)}, {kept} tokens reused;"
        f" native at {best.quantum}: {cached}. {reason}"
    )


def _reason(sweep: Sweep, cell: Cell, best: Cell, more: int) -> str:
    same = f"at its own quantum the ratio is {sweep.ratio(cell, same_quantum=True):.2f}"
    if _interval(sweep, [cell])[1] >= 1.0:
        return "Within the noise of this run: the interval reaches 1."
    if best.quantum < cell.quantum:
        return f"Coarse steps: native's shorter one ends sooner after the revision; {same}."
    if best.quantum > cell.quantum:
        return f"Fine steps: the same tokens take more of them than native takes; {same}."
    if more < 0:
        return "The fence gave up tokens of the running step that the successor shares."
    return "No tokens were lost: the fixed cost of a transition shows in a short recovery."


def _wall(sweep: Sweep) -> float:
    """Wall time over the clock's time: what the machine gave to others meanwhile."""
    return statistics.median(t.wall_ms / t.ms for found in sweep.trials.values() for t in found)


def _is_ours(arm: Arm) -> bool:
    return arm is Arm.RETIRE


def _of(sweep: Sweep, quantum: int) -> list[Cell]:
    return [cell for cell in sweep.cells() if cell.quantum == quantum]


def _below(sweep: Sweep, metric: str, cells: list[Cell]) -> Row:
    slower = sum(sweep.ratio(cell) < 0.98 for cell in cells)
    return value(metric, slower, n=len(cells), unit="cells")


def _worst(sweep: Sweep, *, same_quantum: bool = False) -> Row:
    cell = min(sweep.cells(), key=lambda one: sweep.ratio(one, same_quantum=same_quantum))
    native = cell if same_quantum else sweep.best_native(cell)
    ours, theirs = (sweep.ms(cell, Arm.RETIRE), sweep.ms(native, Arm.PREFIX))
    name = f"native + prefix caching, quantum {native.quantum}; {cell}"
    return value(
        "compose.worst_cell_same_quantum" if same_quantum else "compose.worst_cell_vs_prefix",
        statistics.median(ours),
        n=len(ours),
        baseline=(name, statistics.median(theirs)),
        ci95=_interval(sweep, [cell], same_quantum=same_quantum),
        unit="ms",
    )


def _geomean(sweep: Sweep, metric: str, cells: list[Cell], *, same_quantum: bool = False) -> Row:
    native = [cell if same_quantum else sweep.best_native(cell) for cell in cells]
    best = "" if same_quantum else " at its best quantum"
    return value(
        metric,
        _mean(statistics.median(sweep.ms(cell, Arm.RETIRE)) for cell in cells),
        n=len(cells),
        baseline=(
            Arm.PREFIX.value + best,
            _mean(statistics.median(sweep.ms(cell, Arm.PREFIX)) for cell in native),
        ),
        ci95=_interval(sweep, cells, same_quantum=same_quantum),
        unit="ms",
    )


def _vs_cold(sweep: Sweep, prompt: int) -> list[Row]:
    """The paper's cell: half the prompt a step, nine tenths shared, revised in the second step."""
    cell = _paper_cell(sweep, prompt)
    ours, cold = sweep.ms(cell, Arm.RETIRE), sweep.ms(cell, Arm.COLD)
    saved = [100 * (1 - mine / theirs) for mine, theirs in zip(ours, cold, strict=True)]
    baseline = Baseline(f"{Arm.COLD.value}; {cell}", cold)
    return [
        measured("compose.vs_cold_same_quantum_pct", saved, unit="%", better=Better.HIGHER),
        measured("compose.vs_cold_same_quantum_ms", ours, baseline=baseline, unit="ms"),
    ]


def _paper_cell(sweep: Sweep, prompt: int) -> Cell:
    half = min(sweep.quanta(), key=lambda quantum: abs(quantum - prompt // 2))
    return min(
        (one for one, arm in sweep.trials if arm is Arm.COLD),
        key=lambda c: (c.quantum != half, abs(c.overlap - PAPER_OVERLAP), abs(c.instant - 0.7)),
    )


def _mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(list(values))


def _interval(
    sweep: Sweep, cells: list[Cell], *, same_quantum: bool = False
) -> tuple[float, float]:
    """Percentile bootstrap of the geometric mean of the cells' ratios, the native quantum fixed."""
    draw = random.Random(0)
    pairs = [
        (
            sweep.ms(cell, Arm.RETIRE),
            sweep.ms(cell if same_quantum else sweep.best_native(cell), Arm.PREFIX),
        )
        for cell in cells
    ]
    found = sorted(
        _mean(
            statistics.median(draw.choices(native, k=len(native)))
            / statistics.median(draw.choices(ours, k=len(ours)))
            for ours, native in pairs
        )
        for _ in range(RESAMPLES)
    )
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]

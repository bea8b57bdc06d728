"""The heat map of a dominance sweep. Must never measure: it draws what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import plots
from bench.dominance_engine import Cell

if TYPE_CHECKING:
    from pathlib import Path

    from bench.dominance_rows import Sweep

_SPAN: Final = 2.0  # a ratio of 2 and more has the full colour, 1/2 and less the other


def draw(sweep: Sweep, path: Path, *, note: str) -> Path:
    """One panel a quantum: overlap against the instant, each cell its ratio."""
    quanta = sweep.quanta()
    made, axes = plots.figure(len(quanta), width=3.4 * len(quanta) + 0.8, height=3.9)
    image = None
    for axis, quantum in zip(axes, quanta, strict=True):
        image = _panel(axis, sweep, quantum)
    axes[0].set_ylabel("context shared by old and new plan (%)")
    bar = made.colorbar(image, ax=axes, shrink=0.85, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.ax.set_yticklabels(["1/2", "0.71", "1", "1.41", "2"])
    bar.set_label("native + prefix caching (its best quantum) / Retire")
    made.suptitle(
        "Time from the revision to the successor's first token: above 1, Retire is faster",
        x=0.01, ha="left", fontsize=10,
    )  # fmt: skip
    return plots.save(made, path, note=note)


def _panel(axis, sweep: Sweep, quantum: int):
    from math import log2

    cells = sweep.cells()
    overlaps = sorted({cell.overlap for cell in cells})
    instants = sorted({cell.instant for cell in cells})
    ratios = [[sweep.ratio(Cell(o, i, quantum)) for i in instants] for o in overlaps]
    colours = [[log2(r) / log2(_SPAN) for r in row] for row in ratios]
    image = axis.imshow(colours, cmap="PuOr", vmin=-1, vmax=1, origin="lower", aspect="auto")
    for y, row in enumerate(ratios):
        for x, ratio in enumerate(row):
            dark = abs(colours[y][x]) > 0.65
            axis.text(
                x, y, f"{ratio:.2f}", ha="center", va="center", fontsize=8,
                color="white" if dark else plots.INK, weight="bold" if ratio < 0.98 else "normal",
            )  # fmt: skip
    axis.set_xticks(range(len(instants)), [f"{i:.0%}" for i in instants])
    axis.set_yticks(range(len(overlaps)), [f"{o:.0%}" for o in overlaps])
    axis.set_xlabel("prefill computed at the revision (%)")
    axis.set_title(f"quantum {quantum} tokens")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return image

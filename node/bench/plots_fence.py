"""The bars of a fence run. Must never measure: it draws the rows that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import plots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.report import Row

_HEIGHT: Final = 0.38  # of a bar


def draw(rows: Sequence[Row], path: Path, *, note: str) -> Path:
    """Left: what is left of the step. Right: to the successor's first token. ms."""
    tails = [row for row in rows if row.baseline is not None and ".to_" not in row.metric]
    firsts = [row for row in rows if ".to_" in row.metric]
    high = 1.4 + 0.42 * max(len(tails), len(firsts))
    made, axes = plots.figure(2, width=11.0, height=high)
    bars(axes[0], tails, "From the revision to an idle device", log=True)
    bars(axes[1], firsts, "From the revision to the successor's first token")
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return plots.save(made, path, note=note)


def bars(axis, rows: Sequence[Row], title: str, *, log: bool = False) -> None:
    """Ours and the baseline of every row, ms; ``log``: where they are orders of magnitude apart."""
    for number, row in enumerate(rows):
        label = number == 0
        axis.barh(
            number - _HEIGHT / 2, row.ours, _HEIGHT, color=plots.OURS,
            label="Retire" if label else None,
        )  # fmt: skip
        axis.barh(
            number + _HEIGHT / 2, row.baseline or 0.0, _HEIGHT, color=plots.NATIVE,
            label="native" if label else None,
        )  # fmt: skip
        far = max(row.ours, row.baseline or 0.0)
        axis.text(far * 1.05, number, f"{row.ratio:.2f}x", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row.metric.removeprefix("fence.") for row in rows])
    axis.invert_yaxis()
    axis.set_xscale("log" if log else "linear")
    axis.set_xlabel("ms")
    axis.margins(x=0.15)
    axis.set_title(title)

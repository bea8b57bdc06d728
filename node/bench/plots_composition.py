"""The bars of a composition run. Must never measure: it draws what it is given."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench import plots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def draw(bars: Sequence[tuple[str, bool, Sequence[float]]], path: Path, *, note: str) -> Path:
    """One bar an arm: label, whether it is ours, its times in ms."""
    made, (axis,) = plots.figure(1, width=7.6, height=3.6)
    for number, (_, ours, times) in enumerate(bars):
        middle = statistics.median(times)
        spread = [[middle - min(times)], [max(times) - middle]]
        axis.barh(
            number, middle, 0.62, xerr=spread, ecolor=plots.INK, capsize=3,
            color=plots.OURS if ours else plots.NATIVE,
        )  # fmt: skip
        axis.text(max(times) * 1.02, number, f"{middle:.0f}", va="center", fontsize=8)
    axis.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    axis.invert_yaxis()
    axis.set_xlabel("ms from the revision to the successor's first token")
    axis.set_title("A transition's parts: blue with Retire, orange native")
    return plots.save(made, path, note=note)

"""The bars of a run on several ranks. Must never measure: it draws the rows that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import plots
from bench.plots_fence import bars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.report import Row

_PANELS: Final = (
    ((".fence",), "From the revision to idle devices"),
    ((".to_successor", ".to_successor_prefix"), "... to the successor's first token"),
    ((".inherit",), "An inherited successor's first token"),
)


def draw(rows: Sequence[Row], path: Path, *, note: str) -> Path:
    """One panel a question, a pair of bars a topology; ms."""
    panels = [([row for row in rows if row.metric.endswith(ends)], says) for ends, says in _PANELS]
    high = 1.6 + 0.5 * max(len(found) for found, _ in panels)
    made, axes = plots.figure(len(panels), width=13.0, height=high)
    for axis, (found, title) in zip(axes, panels, strict=True):
        bars(axis, found, title, log=title.endswith("devices"))
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return plots.save(made, path, note=note)

"""The cost of a run without a revision, by group. Must never measure: it draws what it is given."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from bench import plots
from bench.goals import GOALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_ARMS: Final = (("unarmed", plots.SECOND, -0.17), ("armed", plots.OURS, 0.17))


def draw(changes: Mapping[tuple[str, str], Sequence[float]], path: Path, *, note: str) -> Path:
    """``changes``: (workload, arm) -> per cent against the same group without the plugin."""
    workloads = list(dict.fromkeys(workload for workload, _ in changes))
    made, (axis,) = plots.figure(1, width=7.6, height=1.6 + 0.6 * len(workloads))
    for arm, colour, shift in _ARMS:
        for number, workload in enumerate(workloads):
            found, place = changes[workload, arm], number + shift
            axis.plot(found, [place] * len(found), "o", color=colour, alpha=0.35, markersize=4)
            axis.plot(
                [statistics.median(found)], [place], "|", color=colour, markersize=16,
                markeredgewidth=2.5, label=arm if not number else None,
            )  # fmt: skip
    axis.axvline(0, color=plots.INK, linewidth=0.8)
    goal = GOALS[f"norev.{workloads[0]}_pct"].bound
    axis.axvline(goal, color=plots.NATIVE, linewidth=0.8, linestyle="--", label="goal")
    axis.set_yticks(range(len(workloads)), workloads)
    axis.invert_yaxis()
    axis.set_xlabel("% longer than without the plugin; dots: groups, bars: medians")
    axis.set_title("Where nothing is revised")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return plots.save(made, path, note=note)

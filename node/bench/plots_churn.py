"""The two panels of a churn campaign, after the paper's Figure 5. Must never measure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from bench import plots
from bench.churn_engine import Arm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.churn_rows import Campaign

_LOOKS = {
    Arm.PREFIX: (plots.NATIVE, "s", "--"),
    Arm.HBM: (plots.OURS, "o", "-"),
    Arm.DRAM: (plots.SECOND, "^", "-."),
}


def draw(campaign: Campaign, path: Path, *, note: str) -> Path:
    """(a) recovery against native prefix caching; (b) what the successor still found."""
    made, (left, right) = plots.figure(2, width=8.0, height=3.4)
    _speedups(left, campaign)
    _kept(right, campaign)
    for axis in (left, right):
        axis.set_xlabel("churn before the successor (tokens / KV capacity)")
        axis.grid(axis="y", color=plots.PALE, zorder=0)
        axis.set_axisbelow(True)
    made.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return plots.save(made, path, note=note)


def _speedups(axis: Any, campaign: Campaign) -> None:
    for arm in campaign.arms():
        if not arm.native:
            _line(axis, campaign, arm, lambda p, a=arm: campaign.speedups(p, a))
    axis.axhline(1, color=plots.NATIVE, linestyle="--", linewidth=1.2)
    axis.axhline(campaign.limit(), color=plots.COLD, linestyle=":", linewidth=1.2)
    edge = campaign.pressures()[0]
    axis.annotate("cold / full hit", (edge, campaign.limit()), xytext=(0, -10),
                  textcoords="offset points", fontsize=7.5, color="#555555")  # fmt: skip
    axis.set_ylim(bottom=0)
    axis.set_ylabel("recovery: times faster than native\nabort + prefix caching")
    axis.set_title("(a) Recovery after churn")


def _kept(axis: Any, campaign: Campaign) -> None:
    for arm in campaign.arms():
        if arm is not Arm.COLD:
            _line(axis, campaign, arm, lambda p, a=arm: campaign.kept(p, a))
    axis.set_ylim(bottom=-0.03 * axis.get_ylim()[1])
    axis.set_ylabel("tokens of the prefix that the\nsuccessor need not compute")
    axis.set_title("(b) State still there")


def _line(axis: Any, campaign: Campaign, arm: Arm, read: Callable[[float], list[float]]) -> None:
    """Medians with whiskers from the least to the most."""
    colour, marker, style = _LOOKS[arm]
    points = campaign.pressures()
    middle = [statistics.median(read(p)) for p in points]
    below = [m - min(read(p)) for m, p in zip(middle, points, strict=True)]
    above = [max(read(p)) - m for m, p in zip(middle, points, strict=True)]
    axis.errorbar(
        points, middle, yerr=[below, above], color=colour, marker=marker, linestyle=style,
        markersize=4.5, linewidth=1.6, capsize=2.5, elinewidth=1, label=arm.value,
    )  # fmt: skip

"""Every comparison of an exactness run as a dot. Must never measure: it draws what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import plots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LEAST: Final = 1e-6  # nats; below, and at zero, the axis is linear
CONTROLS: Final = ("power", "faulted")  # the comparisons that must be off
_COLOURS: Final = {"power": plots.COLD, "faulted": plots.NATIVE}
_NAMES: Final = {"power": "another prefix", "faulted": "overwritten pages"}


def draw(series: Mapping[str, Sequence[float]], path: Path, *, bound: float, note: str) -> Path:
    """``series``: nats by what was compared; ``bound``: from where on it is another answer."""
    names = [name for name in series if name not in CONTROLS] + [p for p in CONTROLS if p in series]
    made, (axis,) = plots.figure(1, width=8.4, height=1.5 + 0.32 * len(names))
    for number, name in enumerate(names):
        axis.plot(
            [min(one, 1e3) for one in series[name]], [number] * len(series[name]), "o",
            color=_COLOURS.get(name, plots.OURS), alpha=0.6, markersize=5, clip_on=False,
        )  # fmt: skip
    axis.axvline(bound, color=plots.INK, linewidth=0.8, linestyle="--")
    axis.text(bound, -0.9, "another answer", fontsize=7.5, ha="left", va="center")
    axis.set_xscale("symlog", linthresh=LEAST)
    axis.set_xlim(left=0)
    axis.set_yticks(range(len(names)), [_NAMES.get(name, name) for name in names])
    axis.invert_yaxis()
    axis.set_xlabel("nats: largest difference of a log probability")
    axis.set_title("A successor beside a clean run: a dot is a comparison", pad=14)
    return plots.save(made, path, note=note)

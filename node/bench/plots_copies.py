"""Rates of the DRAM tier's transfers. Must never measure: it draws the rows that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import plots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.report import Row

_NAMES: Final = {"copy.d2h_rate": "to the host", "copy.h2d_rate": "back"}


def draw(rows: Sequence[Row], path: Path, *, note: str) -> Path:
    """Ours and a plain copy, each way, GB/s."""
    made, (axis,) = plots.figure(1, width=6.6, height=2.6)
    rates = [row for row in rows if row.metric in _NAMES]
    for number, row in enumerate(rates):
        pair = (
            (row.ours, plots.OURS, "Retire"),
            (row.baseline or 0.0, plots.NATIVE, row.baseline_name),
        )
        for shift, (rate, colour, label) in zip((-0.19, 0.19), pair, strict=True):
            named = label if not number else None
            axis.barh(number + shift, rate, 0.36, color=colour, label=named)
            axis.text(rate * 1.01, number + shift, f"{rate:.1f}", va="center", fontsize=8)
    axis.set_yticks(range(len(rates)), [_NAMES[row.metric] for row in rates])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel("GB/s, digests included")
    axis.set_title("Pages to host memory and back")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return plots.save(made, path, note=note)

"""How the figures of benchmarks look: one style, colours that colour-blind readers tell apart.

Owns style and file form. Must never read results or measure; matplotlib is drawn without a screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

# Okabe and Ito, "Color Universal Design": black, blue, orange, green, vermilion, sky, grey.
INK: Final = "#222222"
OURS: Final = "#0072B2"
NATIVE: Final = "#D55E00"
SECOND: Final = "#009E73"
COLD: Final = "#8C8C8C"
PALE: Final = "#E8E8E8"
_STYLE: Final[Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "retire",  # the same figure is the same file
}


def figure(columns: int, *, width: float, height: float, rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its axes, row by row; sizes in inches."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update(_STYLE)
    from matplotlib import pyplot

    made, axes = pyplot.subplots(
        rows, columns, figsize=(width, height), squeeze=False, layout="constrained"
    )
    return made, list(axes.flat)


def save(made: Any, path: Path, *, note: str) -> Path:
    """Write an SVG with a line on n, intervals and machine under it; returns the path."""
    from matplotlib import pyplot

    made.supxlabel(note, fontsize=7.5, color="#555555", x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, metadata={"Date": None})
    pyplot.close(made)
    return path

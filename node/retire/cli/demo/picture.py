"""timeline.png: every telling on one clock that starts when the user changes their mind.

Must never measure anything. matplotlib is imported here only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from retire.cli.demo.stories import STORIES, Arm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from retire.cli.demo.stories import Story, Telling

INK: Final = "#1f2933"
QUIET: Final = "#9aa5b1"
LATE: Final = "#d64545"
STAGES: Final = {
    "commit": "#7048e8",
    "unpublishable": "#9775fa",
    "fence": "#f59f00",
    "align": "#22b8cf",
    "resume": "#1098ad",
    "hang up": "#adb5bd",
    "first token": "#69b578",
}
TOKENS: Final = "#2b8a3e"
BEFORE_S: Final = 1.5  # shown before the change of mind
TITLE: Final = "One change of mind, three ways to handle it (SmolLM2-135M, vLLM on a CPU)"


def draw(tellings: Sequence[Telling], path: Path) -> None:
    """One panel a story, one row an arm: old tokens above, the successor's stages below."""
    style: Any = {"font.size": 10, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK}
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            len(STORIES), 1, figsize=(11, 7.2), constrained_layout=True, squeeze=False
        )
        for axis, story in zip(axes[:, 0], STORIES, strict=True):
            _panel(axis, story, [told for told in tellings if told.story == story.name])
        _legend(figure)
        figure.suptitle(TITLE, x=0.01, ha="left", fontsize=13)
        figure.savefig(path, dpi=150, facecolor="white")
        plt.close(figure)


def _panel(axis: Any, story: Story, told: Sequence[Telling]) -> None:
    end_s = max(telling.ttft_ms for telling in told) / 1e3 * 1.12 + 0.3
    for row, telling in enumerate(reversed(told)):
        _old(axis, row, telling, end_s)
        _new(axis, row, telling, end_s)
    axis.axvline(0, color=INK, linewidth=1)
    axis.annotate(
        "the user changes the task", (0, len(told) - 0.42), xytext=(5, 0),
        textcoords="offset points", fontsize=9, va="center",
    )  # fmt: skip
    axis.set_title(f"{story.name}: {story.title}", loc="left", fontsize=12, fontweight="bold")
    axis.set_yticks(range(len(told)), [telling.arm.value for telling in reversed(told)])
    for label, telling in zip(axis.get_yticklabels(), reversed(told), strict=True):
        label.set_fontweight("bold" if telling.arm is Arm.RETIRE else "normal")
    axis.set_xlim(-BEFORE_S, end_s)
    axis.set_ylim(-0.65, len(told) - 0.25)
    axis.set_xlabel("seconds")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _old(axis: Any, row: int, telling: Telling, end_s: float) -> None:
    y = row + 0.24
    for read in telling.old_reads:
        if not -BEFORE_S <= read.at_s <= end_s or not read.used:
            continue
        late = read.at_s * 1e3 > telling.done_ms
        axis.plot([read.at_s] * 2, [y - 0.09, y + 0.09], color=LATE if late else QUIET, lw=2)
    if telling.late_tokens or telling.arm is Arm.RETIRE:
        shown = [read.at_s for read in telling.old_reads if read.used and read.at_s <= end_s]
        said = f"{telling.late_tokens} late token{'' if telling.late_tokens == 1 else 's'}"
        at = (max([0.0, *shown]) + end_s * 0.01, y)
        color = LATE if telling.late_tokens else TOKENS
        axis.text(*at, said, color=color, fontsize=9, va="center", fontweight="bold")


def _new(axis: Any, row: int, telling: Telling, end_s: float) -> None:
    y, start_s = row - 0.14, 0.0
    for name, end_ms in telling.stages_ms.items():
        width = max(0.0, end_ms / 1e3 - start_s)
        axis.barh(y, width, left=start_s, height=0.26, color=STAGES.get(name, QUIET))
        start_s = max(start_s, end_ms / 1e3)
    for at_ms in telling.new_tokens_ms:
        if at_ms / 1e3 <= end_s:
            axis.plot([at_ms / 1e3] * 2, [y - 0.13, y + 0.13], color=TOKENS, lw=2)
    said = f"{telling.ttft_ms / 1e3:.2f} s, {telling.inherited_tokens} tokens inherited"
    axis.text(0.005 * end_s, y - 0.29, said, fontsize=9, va="center", color=INK)


def _legend(figure: Any) -> None:
    patches = [Patch(color=color, label=name) for name, color in STAGES.items()]
    patches += [
        Patch(color=QUIET, label="old token read"),
        Patch(color=LATE, label="old token read too late"),
        Patch(color=TOKENS, label="new token"),
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False, fontsize=9)

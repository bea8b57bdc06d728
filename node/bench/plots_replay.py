"""Executions over time in both arms, after the paper's Figure 6. Must never measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench import plots
from bench.replay_rows import current, curve, obsolete, peak

if TYPE_CHECKING:
    from pathlib import Path

    from bench.replay_rows import Round, Rounds

_BURST = 4  # revisions of one agent: from here on a burst is marked


def draw(rounds: Rounds, path: Path, *, note: str) -> Path:
    """One panel an arm, the last round of each: current and obsolete executions."""
    made, axes = plots.figure(1, width=9.0, height=4.8, rows=len(rounds))
    last = {arm: found[-1] for arm, found in rounds.items()}
    longest = max(one.ended_s - one.began_s for one in last.values())
    top = max(max(curve(one, edges)[1]) for one in last.values() for edges in (current, obsolete))
    for axis, (arm, one) in zip(axes, last.items(), strict=True):
        axis.set_xlim(0, longest)
        axis.set_ylim(0, 1.25 * top)
        _panel(axis, one)
        axis.set_title(arm)
        axis.text(1, 1.03, _summary(one), transform=axis.transAxes, ha="right", fontsize=7.5)
        axis.set_ylabel("live executions")
    axes[-1].set_xlabel("time since the start of the replay (s)")
    made.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return plots.save(made, path, note=note)


def _summary(one: Round) -> str:
    late = sum(run.late for run in one.executions)
    return (
        f"{late} late tokens; at most {peak(one)} obsolete; {one.advanced:.0%} of final versions "
        f"advance; {one.goodput:.1f} useful tokens/s"
    )


def _panel(axis: Any, one: Round) -> None:
    times, counts = curve(one, current)
    axis.fill_between(times, counts, step="post", color=plots.OURS, alpha=0.25, linewidth=0,
                      label="current versions")  # fmt: skip
    times, counts = curve(one, obsolete)
    axis.step(times, counts, where="post", color=plots.NATIVE, linewidth=1.2,
              label="obsolete: revised, still in the engine")  # fmt: skip
    for at_s, count in _bursts(one):
        axis.axvline(at_s, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)
        axis.text(
            at_s, 0.99, f"×{count}", transform=axis.get_xaxis_transform(), ha="left", va="top",
            fontsize=7, color="#555555",
        )  # fmt: skip


def _bursts(one: Round) -> list[tuple[float, int]]:
    """When bursts began, and how many revisions they had."""
    turns: dict[str, list[float]] = {}
    for run in one.executions:
        if run.revised_s is not None:
            turns.setdefault(run.name.rpartition("/")[0], []).append(run.revised_s - one.began_s)
    return [(min(times), len(times)) for times in turns.values() if len(times) >= _BURST]

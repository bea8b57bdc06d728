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
    made, axes = plots.figure(1, width=8.0, height=4.8, rows=len(rounds))
    last = {arm: found[-1] for arm, found in rounds.items()}
    longest = max(one.ended_s - one.began_s for one in last.values())
    top = max(max(curve(one, edges)[1]) for one in last.values() for edges in (current, obsolete))
    for axis, (arm, one) in zip(axes, last.items(), strict=True):
        _panel(axis, one)
        late = sum(run.late for run in one.executions)
        axis.set_title(
            f"{arm}: {late} late tokens, {peak(one)} obsolete at most, "
            f"{one.advanced:.0%} of final versions advanced, {one.goodput:.1f} useful tokens/s"
        )
        axis.set_xlim(0, longest)
        axis.set_ylim(0, 1.25 * top)
        axis.set_ylabel("live executions")
    axes[0].legend(loc="upper right", ncols=2)
    axes[-1].set_xlabel("time since the start of the replay (s)")
    return plots.save(made, path, note=note)


def _panel(axis: Any, one: Round) -> None:
    times, counts = curve(one, current)
    axis.fill_between(times, counts, step="post", color=plots.OURS, alpha=0.25, linewidth=0,
                      label="current versions")  # fmt: skip
    times, counts = curve(one, obsolete)
    axis.step(times, counts, where="post", color=plots.NATIVE, linewidth=1.3,
              label="obsolete: revised, still in the engine")  # fmt: skip
    for at_s, count in _bursts(one):
        axis.annotate(
            f"×{count}", (at_s, 1.13 * axis.get_ylim()[1]), ha="center", fontsize=7.5,
            color="#555555", annotation_clip=False,
        )  # fmt: skip
        axis.axvline(at_s, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)


def _bursts(one: Round) -> list[tuple[float, int]]:
    """When bursts began, and how many revisions they had."""
    turns: dict[str, list[float]] = {}
    for run in one.executions:
        if run.revised_s is not None:
            turns.setdefault(run.name.rpartition("/")[0], []).append(run.revised_s - one.began_s)
    return [(min(times), len(times)) for times in turns.values() if len(times) >= _BURST]

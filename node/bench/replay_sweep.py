"""What a sweep of the time compression says: the whole curve, and which native arm is the best one.

Pure: rounds come in by compression. Times of arrivals are divided by the compression; what one call
takes is not, so that more and more obsolete work meets current work on the engine.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Final

from bench.goals import Better
from bench.replay_rows import obsolete_share, peak
from bench.report import Row, value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.replay_rows import Round, Rounds

RESAMPLES: Final = 2000


def best(rounds: Rounds, arms: Sequence[str]) -> str:
    """The arm of ``arms`` with the highest median goodput."""
    return max(arms, key=lambda arm: statistics.median(one.goodput for one in rounds[arm]))


def sweep_rows(
    sweep: dict[float, Rounds], ours: str, aborts: Sequence[str], resend: str
) -> list[Row]:
    """Goodput against the best native quantum, and against no abort at all, by compression."""
    made: list[Row] = []
    for compress, rounds in sorted(sweep.items()):
        native = best(rounds, aborts)
        for name, arm in (("goodput", native), ("goodput_vs_resend", resend)):
            made.append(compared(f"replay.{name}_x{compress:g}", rounds, ours, arm))
        for name, arm in (("native", native), ("resend", resend), ("ours", ours)):
            made += _load_rows(f"x{compress:g}", name, rounds[arm])
    return made


def compared(metric: str, rounds: Rounds, ours: str, arm: str) -> Row:
    """Medians of goodput; the interval is of the ratio, over paired rounds."""
    mine = [one.goodput for one in rounds[ours]]
    theirs = [one.goodput for one in rounds[arm]]
    draw, pairs = random.Random(0), list(zip(mine, theirs, strict=True))
    ratios = sorted(
        statistics.median(a / b for a, b in draw.choices(pairs, k=len(pairs)))
        for _ in range(RESAMPLES)
    )
    return value(
        metric,
        statistics.median(mine),
        n=len(mine),
        baseline=(arm, statistics.median(theirs)),
        ci95=(ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1]),
        unit="tokens/s",
        better=Better.HIGHER,
    )


def _load_rows(where: str, name: str, rounds: Sequence[Round]) -> list[Row]:
    n = len(rounds)
    late = sum(run.late for one in rounds for run in one.executions)
    return [
        value(f"replay.{name}_obsolete_share_{where}", obsolete_share(rounds), n=n, unit="share"),
        value(f"replay.{name}_obsolete_peak_{where}", max(map(peak, rounds)), n=n, unit="live"),
        value(f"replay.{name}_late_{where}", late, n=n, unit="tokens"),
        value(
            f"replay.{name}_after_end_ms_{where}", max(map(after_end_ms, rounds)), n=n, unit="ms"
        ),
    ]


def after_end_ms(one: Round) -> float:
    """From the end of a round until the engine holds nothing obsolete: the paper's cleanup."""
    closed = [run.closed_s for run in one.superseded() if run.closed_s is not None]
    return max(0.0, max(closed, default=one.ended_s) - one.ended_s) * 1e3

"""What a replay says: rows, and the curves of live executions. Pure: executions come in.

An execution is *obsolete* from the call that revises it until the engine holds nothing of it; it is
*current* from its start until it is revised or has ended.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.report import Baseline, Row, measured, value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.replay_engine import Execution

RESAMPLES: Final = 2000
TOLERANCE: Final = 1e-3  # logprob of another tenant; other batch shapes round differently


@dataclass(slots=True)
class Round:
    """One arm's replay of the whole plan."""

    began_s: float
    ended_s: float = 0.0
    executions: list[Execution] = field(default_factory=list)
    finals: list[Execution] = field(default_factory=list)  # the last version of every turn
    bystander: list[Execution] = field(default_factory=list)  # another tenant, again and again

    @property
    def useful(self) -> int:
        """Tokens of final versions."""
        return sum(len(run.tokens) for run in self.finals)

    @property
    def goodput(self) -> float:
        """Tokens of final versions per second."""
        return self.useful / (self.ended_s - self.began_s)

    @property
    def advanced(self) -> float:
        """Share of the final versions that have produced a token."""
        return sum(bool(run.tokens) for run in self.finals) / len(self.finals)

    def superseded(self) -> list[Execution]:
        """Those that were running when they were revised."""
        return [r for r in self.executions if r.revised_s is not None and r.state != "finished"]

    def unpublishable_ms(self) -> list[float]:
        """From the call until it is acknowledged."""
        return [
            (run.acked_s - run.revised_s) * 1e3
            for run in self.superseded()
            if run.acked_s is not None and run.revised_s is not None
        ]

    def commit_ms(self) -> list[float]:
        """From the call until the registry has decided; nothing natively."""
        return [
            (run.committed_s - run.revised_s) * 1e3
            for run in self.superseded()
            if run.committed_s is not None and run.revised_s is not None
        ]

    def closing_ms(self) -> list[float]:
        """From the acknowledgement until the engine holds nothing of the old version."""
        return [
            max(0.0, run.closed_s - run.acked_s) * 1e3
            for run in self.superseded()
            if run.closed_s is not None and run.acked_s is not None
        ]

    def obsolete_ms(self) -> list[float]:
        """From the call until the engine holds nothing of the old version."""
        return [
            (run.closed_s - run.revised_s) * 1e3
            for run in self.superseded()
            if run.closed_s is not None and run.revised_s is not None
        ]

    def first_token_ms(self) -> list[float]:
        """Of final versions, from their start."""
        return [(r.delivered[0][0] - r.began_s) * 1e3 for r in self.finals if r.delivered]


Rounds = dict[str, list[Round]]  # by arm; the n-th of each belong together


def rows(rounds: Rounds, ours: str, native: str, clean: dict[str, Execution] | None) -> list[Row]:
    """The goals' metrics first. ``clean``: the answer of a clean run by final version, if made."""
    mine, theirs = rounds[ours], rounds[native]
    everything = [run for one in mine for run in one.executions]
    finals = [run for one in mine for run in one.finals]
    late = sum(run.late for one in theirs for run in one.executions)
    return [
        value(
            "replay.late_tokens",
            sum(run.late for run in everything),
            n=len(everything),
            baseline=(native, late),
        ),
        value(
            "replay.final_fraction",
            statistics.fmean(one.advanced for one in mine),
            n=len(finals),
            baseline=(native, statistics.fmean(one.advanced for one in theirs)),
        ),
        _goodput(mine, theirs, native),
        _pooled("replay.cleanup_ms", mine, theirs, native, lambda one: one.closing_ms()),
        _pooled("replay.obsolete_ms", mine, theirs, native, lambda one: one.obsolete_ms()),
        _pooled("replay.unpublishable_ms", mine, theirs, native, Round.unpublishable_ms),
        *_commits(mine),
        _pooled("replay.final_ttft_ms", mine, theirs, native, lambda one: one.first_token_ms()),
        value(
            "replay.obsolete_peak",
            max(peak(one) for one in mine),
            n=len(mine),
            baseline=(native, max(peak(one) for one in theirs)),
            unit="executions",
        ),
        *(_promises(rounds, finals, clean) if clean is not None else ()),
        value("replay.revisions", sum(len(r.superseded()) for f in rounds.values() for r in f),
              n=len(rounds), unit="live when revised"),
    ]  # fmt: skip


def _commits(mine: list[Round]) -> list[Row]:
    times = [ms for one in mine for ms in one.commit_ms()]
    return [measured("replay.commit_ms", times, unit="ms")] if times else []


def faults(made: Sequence[Row]) -> list[str]:
    """Broken promises among the rows: nothing here is a matter of speed."""
    most = {
        "replay.late_tokens": 0.0,
        "replay.wrong_finals": 0.0,
        "replay.bystander_drift": TOLERANCE,
    }
    found = [
        f"{row.metric} is {row.ours:g} {row.unit}, at most {most[row.metric]:g} may be"
        for row in made
        if row.ours > most.get(row.metric, float("inf"))
    ]
    stuck = next(row for row in made if row.metric == "replay.final_fraction").ours
    return found if stuck == 1 else [*found, f"only {stuck:.1%} of the final versions advanced"]


def missed(made: Sequence[Row], mine: Sequence[Round], theirs: Sequence[Round]) -> list[str]:
    """Why goals on speed are missed, from what was seen."""
    by = {row.metric: row for row in made}
    lines = []
    goodput, cleanup = by["replay.goodput"], by["replay.cleanup_ms"]
    if not goodput.met:
        idle = statistics.median(_idle_share(one) for one in mine)
        ended = by["replay.obsolete_ms"]
        lines.append(
            f"replay.goodput: native abort is obeyed at the next step, so obsolete work ended "
            f"after {ended.baseline:.0f} ms (ours {ended.ours:.0f}) and takes "
            f"{obsolete_share(theirs):.0%} of the executions' time natively, "
            f"{obsolete_share(mine):.0%} here; no version was live in {idle:.0%} of our time, "
            "which the plan's arrivals set. A revision of ours waits for commit and barrier."
        )
    if not cleanup.met:
        lines.append(
            "replay.cleanup_ms: writers are closed when the running step has ended or stopped; a "
            "step of this engine, with the processes of the stack on the same cores, takes longer "
            "than the goal."
        )
    return lines


def obsolete_share(rounds: Sequence[Round]) -> float:
    """Of the time summed over executions, what was spent on revised ones."""
    gone = sum(sum(one.obsolete_ms()) / 1e3 for one in rounds)
    spans = [current(run) for one in rounds for run in one.executions]
    live = sum(span[1] - span[0] for span in spans if span is not None)
    return gone / (gone + live) if gone + live else 0.0


def _idle_share(one: Round) -> float:
    """Of a round, the part in which no version was current."""
    times, counts = curve(one, current)
    spans = zip(times, times[1:], counts, strict=False)
    return sum(b - a for a, b, count in spans if not count) / (one.ended_s - one.began_s)


def states(rounds: list[Round]) -> dict[str, int]:
    """In what state executions were when they were revised."""
    return dict(Counter(r.state for one in rounds for r in one.executions if r.state))


def curve(one: Round, edges: Callable[[Execution], tuple[float, float] | None]):
    """How many executions are within their edges: times (s from the start) and counts, as steps."""
    moves: list[tuple[float, int]] = []
    for run in one.executions:
        span = edges(run)
        if span is not None:
            moves += [(span[0] - one.began_s, 1), (span[1] - one.began_s, -1)]
    times, counts, level = [0.0], [0], 0
    for at_s, change in sorted(moves):
        level += change
        times.append(at_s)
        counts.append(level)
    return [*times, one.ended_s - one.began_s], [*counts, level]


def obsolete(run: Execution) -> tuple[float, float] | None:
    """From its revision until the engine is rid of it."""
    if run.revised_s is None or run.closed_s is None or run.state == "finished":
        return None
    return run.revised_s, run.closed_s


def current(run: Execution) -> tuple[float, float] | None:
    """From its start until its revision or end."""
    ends = [at_s for at_s in (run.revised_s, run.ended_s) if at_s is not None]
    return (run.began_s, min(ends)) if ends else None


def peak(one: Round) -> int:
    """The most obsolete executions at one time."""
    return max(curve(one, obsolete)[1])


def _goodput(mine: list[Round], theirs: list[Round], native: str) -> Row:
    ours = [one.goodput for one in mine]
    base = [one.goodput for one in theirs]
    draw = random.Random(0)
    pairs = list(zip(ours, base, strict=True))
    found = sorted(
        statistics.median(a / b for a, b in draw.choices(pairs, k=len(pairs)))
        for _ in range(RESAMPLES)
    )
    return value(
        "replay.goodput",
        statistics.median(ours),
        n=len(ours),
        baseline=(native, statistics.median(base)),
        ci95=(found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]),
    )


def _pooled(
    metric: str,
    mine: list[Round],
    theirs: list[Round],
    native: str,
    read: Callable[[Round], list[float]],
) -> Row:
    ours = [ms for one in mine for ms in read(one)]
    base = [ms for one in theirs for ms in read(one)]
    return measured(metric, ours, baseline=Baseline(native, base), unit="ms")


def _promises(rounds: Rounds, finals: list[Execution], clean: dict[str, Execution]) -> list[Row]:
    wrong = sum(run.tokens != clean[answer_of(run)].tokens for run in finals)
    beside = [run for found in rounds.values() for one in found for run in one.bystander]
    drifts = [drift(clean["bystander"], run) for run in beside]
    others = [run for name, run in clean.items() if name != "bystander"]
    power = max(difference(clean["bystander"], run) for run in others)
    return [
        value("replay.wrong_finals", wrong, n=len(finals), unit="answers"),
        value("replay.bystander_drift", max(drifts), n=len(drifts), unit="nats"),
        value("replay.bystander_power", power, n=1, unit="nats"),
    ]


def answer_of(run: Execution) -> str:
    """What stays the same of a final version's name in every arm and round: agent and turn."""
    return run.name.partition("/")[2].rpartition("/")[0]


def drift(clean: Execution, run: Execution) -> float:
    """The largest difference of logprobs over what was read; infinite when a token differs."""
    count = len(run.tokens)
    if run.tokens != clean.tokens[:count] or len(run.logprobs) != count:
        return float("inf")
    return difference(clean, run)


def difference(one: Execution, other: Execution) -> float:
    """The largest difference of logprobs at equal places, whatever the tokens are."""
    pairs = zip(one.logprobs, other.logprobs, strict=False)
    return max((abs(a - b) for a, b in pairs), default=0.0)

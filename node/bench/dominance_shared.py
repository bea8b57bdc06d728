"""Revisions in batches that another tenant shares: what they cost, and that they move nothing.

The bystander decodes while a plan beside it is revised. Its tokens and logprobs must be those of a
run alone; how far another prompt moves them is the power of that comparison. Ordinary kernels round
by the shape of the batch, and another token may be the likeliest then: native revisions say how far
that goes (``exactness`` takes it away).
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from bench.dominance_engine import BYSTANDER_TOKENS, Arm, Cell, Subject
from bench.exactness_weights import POWER
from bench.report import Baseline, Row, measured, value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lab import Stream

TOLERANCE: Final = 1e-3  # logprob; other batch shapes round differently
PLACES: Final = ((0.9, 0.7), (0.0, 0.5), (0.5, 0.3))  # overlap, instant


def shared_rows(subject: Subject, quanta: tuple[int, ...], pairs: int) -> list[Row]:
    """Both arms with a bystander in their batches, at a few places of the sweep."""
    alone = _alone(subject, "bystander")
    other = _alone(subject, "other")
    power = difference(alone, other)
    assert power > POWER, f"another prompt moves the logprobs by {power:.3g} only: no power"
    times: dict[Arm, list[float]] = {Arm.RETIRE: [], Arm.PREFIX: []}
    moved: dict[Arm, list[float]] = {Arm.RETIRE: [], Arm.PREFIX: []}
    for _ in range(pairs):
        for number, (overlap, instant) in enumerate(PLACES):
            for arm in (Arm.RETIRE, Arm.PREFIX) if number % 2 else (Arm.PREFIX, Arm.RETIRE):
                ms, drifted = _trial(subject, Cell(overlap, instant, max(quanta)), arm, alone)
                times[arm].append(ms)
                moved[arm].append(drifted)
    return [
        measured(
            "compose.shared_batch_ms",
            times[Arm.RETIRE],
            baseline=Baseline(Arm.PREFIX.value, times[Arm.PREFIX]),
            unit="ms",
        ),
        *drift_rows(moved[Arm.RETIRE], moved[Arm.PREFIX]),
        value("compose.bystander_power", power, n=1, unit="nats"),
    ]


def drift_rows(ours: Sequence[float], native: Sequence[float]) -> list[Row]:
    """Trials in which the bystander said other tokens, and how far it moved in the others."""

    def told(moved: Sequence[float]) -> tuple[float, float]:
        finite = [one for one in moved if math.isfinite(one)]
        return float(len(moved) - len(finite)), max(finite, default=0.0)

    (changed, most), (native_changed, native_most) = told(ours), told(native)
    name = Arm.PREFIX.value
    return [
        value(
            "compose.bystander_changed",
            changed,
            n=len(ours),
            baseline=(name, native_changed),
            unit="trials",
        ),
        value(
            "compose.bystander_logprob_drift",
            most,
            n=len(ours),
            baseline=(name, native_most),
            unit="nats",
        ),
    ]


def drift(one: Stream, two: Stream) -> float:
    """The largest difference of logprobs; infinite when the tokens differ or some are missing."""
    if one.tokens != two.tokens or len(one.logprobs) != len(two.logprobs):
        return float("inf")
    return difference(one, two)


def difference(one: Stream, two: Stream) -> float:
    """The largest difference of logprobs at equal places, whatever the tokens are."""
    pairs = zip(one.logprobs, two.logprobs, strict=False)
    return max((abs(a - b) for a, b in pairs), default=0.0)


def _alone(subject: Subject, seed: str) -> Stream:
    stream = subject.bystander(tagged=False, seed=seed)
    subject.lab.run()
    assert len(stream.tokens) == BYSTANDER_TOKENS and statistics.fmean(stream.logprobs) < 0
    return stream


def _trial(subject: Subject, cell: Cell, arm: Arm, alone: Stream) -> tuple[float, float]:
    """Milliseconds to the first token, and how far the bystander moved."""
    beside = subject.bystander(tagged=arm is Arm.RETIRE)
    trial = subject.trial(cell, arm, beside)
    assert beside.finish_reason is None, "the bystander must decode through the whole transition"
    subject.lab.run()
    return trial.ms, drift(alone, beside)

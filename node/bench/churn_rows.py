"""What a churn campaign says (the paper's Table 12). Pure: trials come in as arguments."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.churn_engine import Arm, Trial
from bench.exactness_weights import POWER
from bench.report import Row, value

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES: Final = 2000
TOLERANCE: Final = 1e-3  # logprob of another tenant; other batch shapes round differently
IDLE: Final = 0.0  # no churn at all: the successor comes at once


@dataclass(slots=True)
class Campaign:
    """Trials by pressure and arm; the n-th of each arm at a pressure belong together."""

    trials: dict[tuple[float, Arm], list[Trial]] = field(default_factory=dict)

    def add(self, pressure: float, arm: Arm, trial: Trial) -> None:
        """Take in one trial."""
        self.trials.setdefault((pressure, arm), []).append(trial)

    def pressures(self) -> list[float]:
        """Every point with churn, ascending."""
        return sorted({pressure for pressure, _ in self.trials if pressure > IDLE})

    def arms(self) -> list[Arm]:
        """Those that ran."""
        return [arm for arm in Arm if any(arm is one for _, one in self.trials)]

    def recovery_ms(self, pressure: float, arm: Arm) -> list[float]:
        """Recovery times of one arm."""
        return [trial.recovery_ms for trial in self.trials[pressure, arm]]

    def interval_ms(self, pressure: float, arm: Arm) -> list[float]:
        """Full intervals of one arm."""
        return [trial.interval_ms for trial in self.trials[pressure, arm]]

    def kept(self, pressure: float, arm: Arm) -> list[float]:
        """Tokens that one arm's successors found."""
        return [float(trial.kept) for trial in self.trials[pressure, arm]]

    def speedups(self, pressure: float, arm: Arm) -> list[float]:
        """Native prefix caching's recovery over this arm's, trial by trial."""
        native = self.recovery_ms(pressure, Arm.PREFIX)
        mine = self.recovery_ms(pressure, arm)
        return [theirs / ours for theirs, ours in zip(native, mine, strict=True)]

    def limit(self) -> float:
        """What remembering everything can be worth in this run: cold over full hit, no churn."""
        cold = statistics.median(self.recovery_ms(IDLE, Arm.COLD))
        return cold / statistics.median(self.recovery_ms(IDLE, Arm.PREFIX))


def rows(campaign: Campaign, clean: tuple[int, ...]) -> list[Row]:
    """The goals' metrics first. ``clean``: the successor's tokens of a clean run."""
    ours = [arm for arm in campaign.arms() if not arm.native]
    kept = [k for (p, arm) in campaign.trials if arm in ours for k in campaign.kept(p, arm)]
    made = [value("churn.kept_min", min(kept), n=len(kept))]
    for arm in ours:
        made += _arm_rows(campaign, arm)
    limit = campaign.limit()
    made.append(value("churn.limit", limit, n=len(campaign.trials[IDLE, Arm.COLD]), unit="ratio"))
    if Arm.DRAM in ours:
        dram = [t for (_, arm), found in campaign.trials.items() if arm is Arm.DRAM for t in found]
        left = sum(trial.from_host for trial in dram)
        made.append(value("churn.dram_capacity_returned", left, n=len(dram), unit="trials"))
    return made + _promises(campaign, clean)


def table(campaign: Campaign) -> list[str]:
    """A line a pressure: what native kept, and the speedups of recovery and full interval."""
    lines = []
    for pressure in campaign.pressures():
        kept = statistics.median(campaign.kept(pressure, Arm.PREFIX))
        line = f"{pressure:4.2f}x: native prefix caching keeps {kept:5.0f} tokens"
        for arm in campaign.arms():
            if arm.native:
                continue
            recovery = statistics.median(campaign.speedups(pressure, arm))
            whole = _ratio(
                campaign.interval_ms(pressure, Arm.PREFIX), campaign.interval_ms(pressure, arm)
            )
            line += f"; {arm.name} {recovery:4.2f}x (interval {whole:5.3f}x)"
        lines.append(line)
    return lines


def _arm_rows(campaign: Campaign, arm: Arm) -> list[Row]:
    name = f"churn.{arm.name.lower()}"
    best = max(
        campaign.pressures(),
        key=lambda p: _ratio(campaign.recovery_ms(p, Arm.PREFIX), campaign.recovery_ms(p, arm)),
    )
    row = _compared(campaign, name, arm, best)
    assert row.ratio is not None and row.ci95 is not None
    limit = campaign.limit()
    return [
        row,
        value(
            f"{name}_of_limit",
            row.ratio / limit,
            n=row.n,
            ci95=(row.ci95[0] / limit, row.ci95[1] / limit),
        ),
        *(
            _compared(campaign, f"{name}_at_{pressure:.2f}", arm, pressure)
            for pressure in campaign.pressures()
        ),
        _compared(campaign, f"{name}_without_churn", arm, IDLE),
        _compared(campaign, f"{name}_interval", arm, best, whole=True),
    ]


def _compared(
    campaign: Campaign, metric: str, arm: Arm, pressure: float, *, whole: bool = False
) -> Row:
    read = campaign.interval_ms if whole else campaign.recovery_ms
    ours, native = read(pressure, arm), read(pressure, Arm.PREFIX)
    return value(
        metric,
        statistics.median(ours),
        n=len(ours),
        baseline=(f"{Arm.PREFIX.value}, churn {pressure:.2f}x", statistics.median(native)),
        ci95=_interval(native, ours),
        unit="ms",
    )


def _promises(campaign: Campaign, clean: tuple[int, ...]) -> list[Row]:
    trials = [trial for found in campaign.trials.values() for trial in found]
    ours = [t for (_, arm), found in campaign.trials.items() if not arm.native for t in found]
    wrong = sum(trial.tokens != clean for trial in trials)
    return [
        value("churn.wrong_successors", wrong, n=len(trials), unit="successors"),
        value("churn.late_tokens", sum(t.late for t in ours), n=len(ours), unit="tokens"),
        value("churn.leaks", sum(len(t.faults) for t in trials), n=len(trials), unit="faults"),
        value("churn.bystander_drift", _moved(campaign), n=len(ours), unit="nats"),
        value("churn.bystander_power", _power(trials), n=len(trials), unit="nats"),
    ]


def faults(made: Sequence[Row]) -> list[str]:
    """Broken promises among the rows: nothing here is a matter of speed."""
    most = {
        "churn.wrong_successors": 0.0,
        "churn.late_tokens": 0.0,
        "churn.leaks": 0.0,
        "churn.bystander_drift": TOLERANCE,
    }
    broken = [
        f"{row.metric} is {row.ours:g} {row.unit}, at most {most[row.metric]:g} may be"
        for row in made
        if row.ours > most.get(row.metric, float("inf"))
    ]
    power = next(row.ours for row in made if row.metric == "churn.bystander_power")
    if power < POWER:
        broken.append(f"churn.bystander_power is {power:g} nats: no comparison here can tell")
    return broken


def _moved(campaign: Campaign) -> float:
    """How far the churn's logprobs are from those beside native vLLM, in the same trial."""
    most = 0.0
    for (pressure, arm), found in campaign.trials.items():
        for trial, native in zip(found, campaign.trials[pressure, Arm.PREFIX], strict=True):
            if not arm.native:
                most = max(most, drift(trial, native))
    return most


def drift(one: Trial, other: Trial) -> float:
    """The largest difference of a churned logprob; infinite when tokens differ or are missing."""
    if [tokens for tokens, _ in one.churned] != [tokens for tokens, _ in other.churned]:
        return float("inf")
    pairs = zip(one.churned, other.churned, strict=True)
    return max(
        (abs(a - b) for (_, x), (_, y) in pairs for a, b in zip(x, y, strict=True)), default=0.0
    )


def _power(trials: Sequence[Trial]) -> float:
    """How far another prompt's logprobs are: what a mix-up would move them by."""
    churned = [logprobs[0] for trial in trials for _, logprobs in trial.churned if logprobs]
    return max(churned) - min(churned) if churned else 0.0


def _ratio(native: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(native) / statistics.median(ours)


def _interval(native: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap of the ratio of medians, over pairs."""
    draw = random.Random(0)
    pairs = list(zip(native, ours, strict=True))
    found = []
    for _ in range(RESAMPLES):
        picked = draw.choices(pairs, k=len(pairs))
        found.append(_ratio([n for n, _ in picked], [o for _, o in picked]))
    found.sort()
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]

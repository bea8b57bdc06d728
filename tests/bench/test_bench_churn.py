"""A short campaign runs to its files, and what it checks can fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench import churn
from bench.churn_engine import Arm, Trial
from bench.churn_rows import IDLE, Campaign, faults, rows


@pytest.mark.engine
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")
def test_a_quick_campaign_writes_rows_and_a_picture(tmp_path: Path):
    """All of the prefix is kept where native caching keeps less; nothing is wrong or late."""
    options = churn.quick(tmp_path)
    path, broken = churn.run(options, Console(quiet=True))
    assert broken == []
    document = json.loads(path.read_text())
    found = {row["metric"]: row for row in document["rows"]}
    assert found["churn.kept_min"]["ours"] == options.shape.common
    assert found["churn.late_tokens"]["ours"] == found["churn.leaks"]["ours"] == 0
    assert found["churn.hbm"]["ratio"] > 1
    assert max(document["samples"]["prefix at 1: kept tokens"]) < options.shape.common
    dram = found.get("churn.dram")
    assert dram is not None or any("left_out" in metric for metric in found)
    assert "</svg>" in path.with_suffix(".svg").read_text()


def _trial(ms: float, kept: int, *, logprob: float = -1.0) -> Trial:
    return Trial(ms, 10 * ms, ms, kept, (1, 2), 0, (((7,), (logprob,)), ((8,), (-3.0,))))


def _campaign() -> Campaign:
    campaign = Campaign()
    for pressure, native in ((IDLE, 10.0), (0.5, 10.0), (1.0, 69.0)):
        for _ in range(3):
            campaign.add(pressure, Arm.COLD, _trial(70.0, 0))
            campaign.add(pressure, Arm.PREFIX, _trial(native, 7168 if native < 20 else 0))
            campaign.add(pressure, Arm.HBM, _trial(10.0, 7168))
    return campaign


def test_the_goals_are_read_off_the_best_point():
    """Recovery 6.9 times faster, of at most 7: 0.986 of what can be had; all tokens kept."""
    made = {row.metric: row for row in rows(_campaign(), (1, 2))}
    assert made["churn.kept_min"].ours == 7168 and made["churn.kept_min"].met
    assert made["churn.hbm"].ratio == pytest.approx(6.9) and made["churn.hbm"].met
    assert made["churn.hbm_of_limit"].ours == pytest.approx(69 / 70) and made["churn.hbm"].met
    assert made["churn.hbm_at_0.50"].ratio == pytest.approx(1.0)
    assert "churn.dram" not in made


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ({"tokens": (1, 3)}, "wrong_successors"),
        ({"late": 2}, "late_tokens"),
        ({"faults": ("pins left",)}, "leaks"),
        ({"churned": (((7,), (-1.5,)), ((8,), (-3.0,)))}, "bystander_drift"),
        ({"churned": (((9,), (-1.0,)), ((8,), (-3.0,)))}, "bystander_drift"),
    ],
)
def test_a_broken_promise_would_be_seen(planted: dict, fault: str):
    """Control: one trial of ours that breaks one promise fails the run by its name."""
    campaign = _campaign()
    trials = campaign.trials[1.0, Arm.HBM]
    trials[1] = replace(trials[1], **planted)
    (line,) = faults(rows(campaign, (1, 2)))
    assert fault in line


def test_a_comparison_without_power_would_be_seen():
    """Control: where every tenant's answer is the same, a mix-up would not show."""
    campaign = _campaign()
    for trials in campaign.trials.values():
        trials[:] = [replace(t, churned=(((7,), (-1.0,)), ((8,), (-1.0,)))) for t in trials]
    assert faults(rows(campaign, (1, 2))) == [
        "churn.bystander_power is 0 nats: no comparison here can tell"
    ]


def test_a_lost_prefix_would_be_seen():
    """Control: one trial that kept less misses the goal."""
    campaign = _campaign()
    campaign.trials[1.0, Arm.HBM][1] = _trial(10.0, 7136)
    assert {row.metric: row.met for row in rows(campaign, (1, 2))}["churn.kept_min"] is False

"""Results: the form of a file, ratios, intervals and the scoreboard that reads them."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bench import report, scoreboard
from bench.goals import GOALS, Better, On
from bench.report import Baseline, bootstrap_ci95, measured, p99, percentile, ratio_of, value


def test_ratio_is_how_many_times_better_ours_is():
    """Both directions of a metric, and the zeros."""
    assert ratio_of(2.0, 10.0, Better.LOWER) == 5
    assert ratio_of(10.0, 2.0, Better.HIGHER) == 5
    assert ratio_of(10.0, 2.0, Better.LOWER) == 0.2
    assert ratio_of(0.0, 2.0, Better.LOWER) == math.inf
    assert ratio_of(0.0, 0.0, Better.LOWER) == 1


def test_percentiles_are_samples():
    """The nearest-rank percentile: p99 of 100 samples is the 99th, of 10 the largest."""
    hundred = [float(n) for n in range(1, 101)]
    random.Random(1).shuffle(hundred)
    assert percentile(hundred, 0.5) == 50
    assert p99(hundred) == 99
    assert p99(hundred[:10]) == max(hundred[:10])
    assert percentile([7.0], 0.01) == 7


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 200 intervals of the mean of normal samples about 95 % hold the true mean."""
    draw = random.Random(20)
    hits = 0
    for seed in range(200):
        samples = [draw.gauss(10, 2) for _ in range(40)]
        low, high = bootstrap_ci95(samples, statistics.fmean, seed=seed, resamples=400)
        assert low < high
        hits += low <= 10 <= high
    assert 180 <= hits <= 199, hits


def test_the_interval_of_a_ratio():
    """Twice as fast, with noise: the interval holds the measured ratio, narrowly."""
    draw = random.Random(3)
    ours = [draw.gauss(10, 1) for _ in range(200)]
    theirs = [draw.gauss(20, 2) for _ in range(200)]
    ratio = statistics.median(theirs) / statistics.median(ours)
    low, high = bootstrap_ci95(ours, baseline=theirs)
    assert low <= ratio <= high
    assert 1.9 < low < high < 2.1


@pytest.mark.parametrize(
    ("metric", "ours", "baseline", "met"),
    [
        ("gate.check_ns", 199.9, None, True),
        ("gate.check_ns", 200.0, None, False),
        ("gate.check_ns", 500.0, ("slow", 50_000.0), False),  # a ratio does not help
        ("fence.long_prefill", 2.0, ("native", 100.0), True),
        ("fence.long_prefill", 2.0, ("native", 99.9), False),
        ("replay.goodput", 60.0, ("native", 10.0), True),
        ("replay.goodput", 50.0, ("native", 10.0), False),
        ("grid.failed", 0, None, True),
        ("grid.failed", 1, None, False),
        ("compose.vs_cold_pct", 75.1, None, True),
        ("compose.worst_cell_vs_prefix", 10.0, ("prefix", 9.8), True),
    ],
)
def test_met_follows_from_goal_and_direction(metric, ours, baseline, met):
    """On ours or on the ratio, as design section 9 says, strict or not."""
    assert value(metric, ours, n=1, baseline=baseline).met is met


def test_a_goal_on_a_ratio_needs_a_baseline():
    """A missing baseline is a mistake of the benchmark, not a missed goal."""
    with pytest.raises(ValueError, match=r"fence\.two_groups: its goal is on the ratio"):
        value("fence.two_groups", 1.0, n=1)
    with pytest.raises(ValueError, match="metric 'gate.other' has no goal, so it needs a unit"):
        value("gate.other", 1.0, n=1)


RANKS = ("tp2", "pp2", "tp4", "tp2pp2")


def test_goals_on_ratios_are_those_of_the_design():
    """Exactly the metrics that compare two measurements, those of the paper's tables included."""
    paths = ("long_prefill", "draft_verify", "spec_decode", "two_groups")
    on_ratio = {metric for metric, goal in GOALS.items() if goal.on is On.RATIO}
    assert on_ratio == {
        *(f"fence.{path}{interval}" for path in paths for interval in ("", ".to_cold")),
        *("compose.worst_cell_vs_prefix", "compose.geomean_vs_prefix", "churn.hbm", "churn.dram"),
        *("replay.goodput", "tp2.inherit", "tp4.inherit", "tp2pp2.inherit"),
        *(f"{ranks}.{name}" for ranks in RANKS for name in ("fence", "to_successor")),
    }


def write_example(root: Path) -> Path:
    """One met, one missed and one free row."""
    rows = [
        measured("gate.check_ns", [150.0, 160.0, 170.0], baseline=Baseline("lock", [300.0] * 3)),
        value("grid.failed", 2, n=40),
        value("gate.check_ns.min", 150.0, n=3, unit="ns"),
    ]
    return report.write("example", rows, device="cpu", samples={"check": [150.0]}, root=root)


def test_a_file_has_the_form_of_the_design(tmp_path: Path):
    """Every field of section 9, and what the rows say."""
    path = write_example(tmp_path)
    assert path == tmp_path / "results" / "cpu" / "example.json"
    document = json.loads(path.read_text())
    assert list(document) == [
        *("bench", "command", "commit", "versions", "device", "rows", "samples"),
    ]
    assert document["rows"][0] == {
        "metric": "gate.check_ns",
        "unit": "ns",
        "ours": 160.0,
        "baseline": 300.0,
        "baseline_name": "lock",
        "ratio": 1.875,
        "ci95": [150.0, 170.0],
        "n": 3,
        "goal": "< 200",
        "met": True,
    }
    assert document["rows"][1]["met"] is False
    assert document["rows"][2]["met"] is None
    assert document["versions"]["python"]
    with pytest.raises(ValueError, match="device must be one of cpu, h200, h200-x2, h200-x4, kube"):
        report.write("example", [], device="laptop", samples={}, root=tmp_path)


def run_scoreboard(root: Path) -> subprocess.CompletedProcess[str]:
    """The command that ``make scoreboard`` runs."""
    command = [sys.executable, "-m", "bench.scoreboard", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_scoreboard_shows_missed_goals_first(tmp_path: Path):
    """Missed, met, then rows without a goal; the counts below."""
    write_example(tmp_path)
    done = run_scoreboard(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    places = [
        next(n for n, line in enumerate(lines) if needle in line)
        for needle in ("grid.failed", "gate.check_ns ", "gate.check_ns.min")
    ]
    assert places == sorted(places)
    assert "MISSED" in lines[places[0]]
    assert "met" in lines[places[1]]
    assert f"1 goals missed, 1 met, {len(GOALS) - 2} not measured yet" in done.stdout


def damage(document: dict, kind: str) -> None:
    """Make a result lie."""
    if kind == "field":
        del document["commit"]
    elif kind == "row":
        del document["rows"][0]["n"]
    else:
        document["rows"][1]["met"] = True


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("field", "lacks commit"),
        ("row", "row 'gate.check_ns' lacks or has too much: n"),
        ("lie", "row 'grid.failed' says met=True, but by its goal (= 0) it is False"),
    ],
)
def test_the_scoreboard_refuses_a_malformed_or_untrue_file(tmp_path: Path, kind, message):
    """A file that was edited by hand or written by other rules is named, with exit code 1."""
    path = write_example(tmp_path)
    document = json.loads(path.read_text())
    damage(document, kind)
    path.write_text(json.dumps(document))
    done = run_scoreboard(tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert str(path) in done.stderr


def test_the_scoreboard_without_results_says_so(tmp_path: Path):
    """An empty clone gets a hint, not an empty table."""
    done = run_scoreboard(tmp_path)
    assert done.returncode == 1
    assert "no results under" in done.stderr


def test_the_results_of_the_repository_are_sound():
    """Every committed result loads: right form, met as its goal says."""
    if (report.ROOT / "results").exists():
        assert scoreboard.load(report.ROOT)


def test_a_ratio_to_nothing_is_null(tmp_path):
    """What is written is JSON, which has no infinity."""
    row = value("replay.late_tokens", 0, n=3, baseline=("native", 2))
    assert row.ratio == math.inf
    path = report.write("replay", [row], device="cpu", samples={}, root=tmp_path)
    assert json.loads(path.read_text())["rows"][0]["ratio"] is None
    assert "Infinity" not in path.read_text()

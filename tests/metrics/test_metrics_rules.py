"""Alerts and recording rules: promtool's verdict, on the chart's file and on broken copies."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from metrics_dashboard import ROOT

from bench.prometheus import RULES
from retire.telemetry import names

STORIES = Path(__file__).with_name("alerts.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"
CHART = ROOT / "charts" / "retire" / "templates" / "monitoring.yaml"
SECTIONS = ("## What it means", "## What to look at", "## What to do")


def alerts() -> list[dict[str, Any]]:
    """Of the rules file."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it; the caller judges the status."""
    command = ["promtool", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def judged(folder: Path, old: str = "", new: str = "") -> subprocess.CompletedProcess[str]:
    """The stories on the rules with ``old`` replaced by ``new``."""
    text = RULES.read_text()
    assert old in text, old
    (folder / "rules.yml").write_text(text.replace(old, new) if old else text)
    shutil.copy(STORIES, folder)
    return promtool("test", "rules", STORIES.name, folder=folder)


def test_every_alert_fires_when_it_must_and_is_quiet_when_it_must_not(tmp_path: Path):
    """Each alert has a story of its own, and the first story is of a sound installation."""
    done = judged(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = STORIES.read_text()
    assert [one["alert"] for one in alerts() if told.count(one["alert"]) < 2] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("increase(retire_late_tokens_total", "0 * increase(retire_late_tokens_total"),
        ("== 0\n        for: 1m", ">= 0\n        for: 1m"),
        ("_seconds{namespace=~\".*\"} / 3", "_seconds{namespace=~\".*\"}"),
        ("ratio_10m{namespace=~\".*\"} > 0.05", "ratio_10m{namespace=~\".*\"} > 0.001"),
        ("retire_pin_overdue_seconds{namespace=~\".*\"}) > 10", "retire_pin_overdue_seconds) > 1"),
        ("[15m]) > 0", "[15m]) >= 0"),
        ("offset 15m) > 0)", "offset 15m) >= 0)"),
        ("for: 2m", "for: 0m"),
    ],
)  # fmt: skip
def test_a_planted_fault_in_a_rule_is_found(tmp_path: Path, old: str, new: str):
    """Control: silent where it must fire, or firing where it must not."""
    done = judged(tmp_path, old, new)
    assert done.returncode != 0, f"{old!r} -> {new!r} was not found"
    assert "FAILED" in done.stderr, done.stdout + done.stderr


def test_rules_are_well_formed_and_a_broken_one_is_refused(tmp_path: Path):
    """``promtool check rules``; control: one parenthesis less."""
    assert promtool("check", "rules", str(RULES), folder=tmp_path).returncode == 0
    broken = tmp_path / "broken.yml"
    broken.write_text(RULES.read_text().replace("sum by (namespace, pod) (inc", "sum by (inc", 1))
    refused = promtool("check", "rules", str(broken), folder=tmp_path)
    assert refused.returncode != 0 and "could not parse expression" in refused.stderr


def test_rules_read_metrics_that_exist():
    """Every series in a rule is in the table of names, or recorded by a rule before it."""
    text = RULES.read_text()
    known = {metric.name for metric in names.METRICS}
    known |= {f"{m.name}_{s}" for m in names.METRICS for s in ("bucket", "count", "sum")}
    used = set(re.findall(r"(?<![\w:])retire_\w+", text))
    assert used - known == set() and len(used) > 10
    recorded = set(re.findall(r"record: (\S+)", text))
    assert set(re.findall(r"\w+:retire_\w+:\w+", text)) == recorded


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    """With the three questions that somebody has at night; those of the chart's own rules too."""
    own = {one["alert"] for one in alerts()}
    of_chart = set(re.findall(r"- alert: (\w+)", CHART.read_text()))
    pages = {path.stem: path.read_text() for path in RUNBOOKS.glob("Retire*.md")}
    assert set(pages) == own | of_chart and len(own) >= 11 and len(of_chart) == 2
    for one in alerts():
        assert one["annotations"]["runbook_url"] == f"docs/runbooks/{one['alert']}.md"
    for name, page in pages.items():
        assert page.startswith(f"# {name}\n"), name
        assert [section for section in SECTIONS if section not in page] == [], name


def test_runbooks_name_metrics_that_exist():
    """A metric that was renamed would send somebody the wrong way."""
    known = {metric.name for metric in names.METRICS}
    for path in RUNBOOKS.glob("*.md"):
        used = set(re.findall(r"`(retire_\w+)", path.read_text()))
        assert {re.sub("_(bucket|count|sum)$", "", one) for one in used} - known == set(), path

"""Runs the test folders, one pytest process each, cheap ones first, and adds up what they say.

A process of its own for every folder: vLLM is imported only where it is needed, and what an engine
leaves in memory ends with its folder. Fails when a folder fails, or has no test.

Usage: python scripts/run_tests.py [FOLDER ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
REPORTS = ROOT / "out" / "tests"
# Cheap first. A folder that is not named runs after these, so that none is forgotten.
ORDER = ("architecture", "protocol", "mailbox", "bench", "simulation", "telemetry", "client", "cli")
ORDER += ("registry", "sidecar", "engine_api", "engine", "stack")
# Small models on few cores: two pools of spinning threads cost far more than they give.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one folder came to."""

    folder: str
    status: int
    seconds: float
    tests: int = 0
    failed: int = 0
    skipped: int = 0


def folders() -> list[str]:
    """Every folder under tests/ that holds a test file, in the order to run."""
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else 99, name))


def run(folder: str, arguments: list[str]) -> Outcome:
    """One pytest process."""
    report = REPORTS / f"{folder}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"tests/{folder}", "--durations=5", *arguments]
    print(f"\n>>> tests/{folder}", flush=True)
    started = time.monotonic()
    environment = {**ENVIRONMENT, **os.environ}
    done = subprocess.run(
        [*command, f"--junitxml={report}"], cwd=ROOT, env=environment, check=False
    )
    return outcome(folder, done.returncode, time.monotonic() - started, report)


def outcome(folder: str, status: int, seconds: float, report: Path) -> Outcome:
    """Read the counts back; a process that died before writing them failed."""
    if not report.exists():
        return Outcome(folder, status or 1, seconds)
    suites = list(ET.parse(report).getroot().iter("testsuite"))

    def total(*names: str) -> int:
        return sum(int(suite.get(name, "0")) for suite in suites for name in names)

    tests, failed, skipped = total("tests"), total("failures", "errors"), total("skipped")
    return Outcome(folder, status, seconds, tests, failed, skipped)


def summary(outcomes: list[Outcome]) -> str:
    """One line a folder, then the sum in pytest's words."""
    lines = ["", "folder          status   tests  failed skipped  seconds"]
    for one in outcomes:
        word = "ok" if one.status == 0 else "FAILED"
        counts = f"{one.tests:7d} {one.failed:7d} {one.skipped:7d}"
        lines.append(f"{one.folder:<15} {word:<7}{counts} {one.seconds:8.1f}")
    tests, failed, skipped, seconds = (
        sum(getattr(one, name) for one in outcomes)
        for name in ("tests", "failed", "skipped", "seconds")
    )
    words = [f"{failed} failed"] if failed else []
    words.append(f"{tests - failed - skipped} passed")
    words += [f"{skipped} skipped"] if skipped else []
    lines.append(f"{' ' + ', '.join(words) + f' in {seconds:.2f}s ':=^80}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run what was asked for, all when nothing was; 1 when a folder failed."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, passed_on = arguments[:split], arguments[split + 1 :]
    REPORTS.mkdir(parents=True, exist_ok=True)
    outcomes = [run(folder, passed_on) for folder in names or folders()]
    print(summary(outcomes))
    broken = [one.folder for one in outcomes if one.status]
    if broken:
        print(f"FAILED: {', '.join(broken)}")
    return 1 if broken or not outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

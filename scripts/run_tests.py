"""Runs the test folders, one pytest process each, and adds up what they say.

A process of its own for every folder: vLLM is imported only where it is needed, and what an engine
leaves in memory ends with its folder. Folders that only compute (CALM) run beside the others with
what these leave of the machine, and so do the builds that some folders wait for; a folder with
deadlines has no rival. What a folder printed is shown when it has ended. Fails when a folder fails,
or has no test. Without a FOLDER all run but those APART.

Usage: python scripts/run_tests.py [FOLDER ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
REPORTS = ROOT / "out" / "tests"
# Cheap first. A folder that is not named runs last: none is forgotten.
ORDER = ("architecture", "protocol", "mailbox", "fence", "tier", "simulation")
ORDER += ("client", "cli", "registry", "sidecar", "page", "http_contract", "engine_api", "stack")
ORDER += ("chart", "docs", "crd", "kubectl", "operator_unit", "operator_registry", "kubernetes")
ORDER += ("metrics", "telemetry", "engine", "distributed", "bench", "e2e")
CALM = frozenset(("engine", "distributed", "bench"))
APART = frozenset(("images",))  # `make images`: needs root
KUBERNETES = frozenset(
    {"bench", "chart", "crd", "e2e", "kubectl", "kubernetes", "metrics"}
    | {"operator_registry", "operator_unit"}
)
# Script -> the folders that need what it builds.
BUILDS = {"kube-tools": KUBERNETES, "observe-tools": frozenset(("telemetry",))}
YIELDING = ("nice", "-n", "19")
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


def run(folder: str, arguments: list[str], *, yielding: bool) -> Outcome:
    """One pytest process; what it prints goes to a file until it has ended.

    ``yielding``: it takes what others leave of the machine.
    """
    report, log = REPORTS / f"{folder}.xml", REPORTS / f"{folder}.log"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"tests/{folder}", "--durations=5", *arguments]
    command = [*YIELDING, *command] if yielding else command
    started = time.monotonic()
    environment = {**ENVIRONMENT, **os.environ}
    with log.open("wb") as output:
        done = subprocess.run(
            [*command, f"--junitxml={report}"],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    return outcome(folder, done.returncode, time.monotonic() - started, report)


class Lanes:
    """Runs folders, each when what it needs is there: a lane for most, one for those that yield."""

    def __init__(self, names: list[str], arguments: list[str]) -> None:
        self.outcomes: list[Outcome] = []
        self._waiting = list(names)
        self._arguments = arguments
        self._building = [script for script, folders in BUILDS.items() if folders & {*names}]
        self._changed = threading.Condition()

    def work(self) -> list[Outcome]:
        """Until nothing is left."""
        yielding = [True] if len(self._waiting) > 1 else []
        threads = [threading.Thread(target=self._lane, args=(one,)) for one in (False, *yielding)]
        if self._building:
            threads.append(threading.Thread(target=self._build, args=(tuple(self._building),)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.outcomes

    def _lane(self, yielding: bool) -> None:
        while (folder := self._next(yielding)) is not None:
            print(f">>> tests/{folder} ...", flush=True)
            done = run(folder, self._arguments, yielding=yielding)
            text = (REPORTS / f"{folder}.log").read_text(errors="replace")
            with self._changed:
                self.outcomes.append(done)
                print(f"\n>>> tests/{folder}\n{text}", flush=True)
                print(f"<<< tests/{folder}: {done.seconds:.0f} s", flush=True)

    def _next(self, yielding: bool) -> str | None:
        """The next folder of a lane; those that yield also run where nothing else is left."""
        with self._changed:
            while mine := [one for one in self._waiting if one in CALM or not yielding]:
                mine.sort(key=lambda one: one in CALM)
                for folder in mine:
                    if not any(folder in BUILDS[script] for script in self._building):
                        self._waiting.remove(folder)
                        return folder
                self._changed.wait()
            return None

    def _build(self, scripts: tuple[str, ...]) -> None:
        for script in scripts:  # one after the other: each takes every core
            subprocess.run([*YIELDING, ROOT / "scripts" / script], cwd=ROOT, check=False)
            with self._changed:
                self._building.remove(script)  # built or not: the tests say what is missing
                self._changed.notify_all()


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
    chosen = names or [folder for folder in folders() if folder not in APART]
    outcomes = sorted(Lanes(chosen, passed_on).work(), key=lambda one: chosen.index(one.folder))
    print(summary(outcomes))
    broken = [one.folder for one in outcomes if one.status]
    if broken:
        print(f"FAILED: {', '.join(broken)}")
    return 1 if broken or not outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

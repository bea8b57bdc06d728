"""The test runner itself: what fails must fail the run, and the sum is in pytest's words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`scripts/run_tests.py` as `make test` calls it."""
    command = [sys.executable, str(root / "scripts" / "run_tests.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_folder_without_tests_fails_the_run(root: Path):
    """Neither a missing folder nor one where nothing was selected counts as passed."""
    missing = run(root, "no-such-folder")
    assert missing.returncode == 1
    assert "FAILED: no-such-folder" in missing.stdout
    nothing = run(root, "client", "--", "-k", "nothing_is_called_like_this")
    assert nothing.returncode == 1
    assert "FAILED: client" in nothing.stdout


def test_a_passing_folder_passes_and_is_counted(root: Path):
    """The closing line adds up the folders."""
    done = run(root, "client", "--", "-k", "an_endless_event")
    assert done.returncode == 0, done.stdout
    assert "= 1 passed in " in done.stdout.splitlines()[-1]

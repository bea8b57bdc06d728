"""What the rules look at: the files of the repository, generated ones apart."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "node" / "retire" / "sidecar" / "pb"


def listed_files() -> list[Path]:
    """Files that git tracks or would track; in a source archive, all that are not made."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        made = {".git", ".venv", ".cache", "out", "dist", "__pycache__"}
        return sorted(
            path for path in ROOT.rglob("*") if path.is_file() and not made & {*path.parts}
        )
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted({path for name in names if name and (path := ROOT / name).is_file()})


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """Every file of the repository."""
    found = listed_files()
    assert len(found) > 50, "the listing must not be empty, or no rule is checked"
    return found


@pytest.fixture(scope="session")
def sources(files: list[Path]) -> list[Path]:
    """Every Python file written by hand."""
    return [path for path in files if path.suffix == ".py" and GENERATED not in path.parents]

"""The site is built strictly: a link that leads nowhere fails it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("docs", "examples", "results/h200")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`make docs`, into a folder of its own."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the site is made of, to be spoilt."""
    root = tmp_path / "copy"
    for name in NEEDED:
        shutil.copytree(ROOT / name, root / name)
    (root / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "docs_hooks.py", root / "scripts")
    shutil.copy(ROOT / "mkdocs.yml", root)
    return root


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """No warning; pages, pictures and the pictures of results/ are there."""
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "WARNING -" not in done.stderr
    site = tmp_path / "site"
    for name in ("index.html", "reference/metrics.html", "pictures/timeline.svg", "openapi.json"):
        assert (site / name).is_file(), name
    assert (site / "results/h200/fence.svg").is_file()
    agents = (site / "agents.html").read_text()
    assert "graph_of" in agents, "the example is part of its page"


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("[gone](gone.md)", "gone.md"),
        ("[no heading](security.md#no-such-heading)", "no-such-heading"),
        ("![no picture](../results/h200/none.svg)", "none.svg"),
        ('```python\n--8<-- "examples/none.py"\n```', "none.py"),
    ],
    ids=["page", "heading", "picture", "example"],
)
def test_a_broken_link_fails_the_build(copy: Path, planted: str, said: str) -> None:
    """Control."""
    page = copy / "docs" / "operations.md"
    page.write_text(f"{page.read_text()}\n{planted}\n")
    done = build(copy, copy / "site")
    assert done.returncode != 0
    assert said in done.stderr

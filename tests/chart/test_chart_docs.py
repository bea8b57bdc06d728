"""The values that the documentation sets are values of the chart."""

from __future__ import annotations

import re

import pytest
from chart_render import CHART, ROOT, helm

PAGES = ("kubernetes.md", "security.md")


def settings(page: str) -> list[list[str]]:
    """The ``--set`` options of each helm command of a page."""
    text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
    commands = re.findall(r"(?m)^helm (?:install|upgrade) .*$", text)
    return [re.findall(r"--set (\S+)", one) for one in commands]


@pytest.mark.parametrize("page", PAGES)
def test_every_helm_command_of_the_docs_renders(page: str):
    """Each by itself, with a model where the command leaves it to an earlier one."""
    commands = settings(page)
    assert sum(map(len, commands)) > 3
    for options in commands:
        words = [word for one in ["model=m", *options] for word in ("--set", one)]
        done = helm("template", "retire", str(CHART), *words)
        assert done.returncode == 0, (options, done.stderr)


@pytest.mark.parametrize("page", PAGES)
def test_files_and_objects_that_the_docs_name_exist(page: str):
    """Paths of this repository."""
    text = (ROOT / "docs" / page).read_text()
    named = re.findall(r"`((?:charts|node|crds)/[A-Za-z0-9_./-]+)`", text)
    assert named or page == "kubernetes.md"
    assert [path for path in named if not (ROOT / path).exists()] == []

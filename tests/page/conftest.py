"""Fixtures of the live page's tests: one browser, one node with a story, one without."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from page_browser import Browser
from page_world import World


def short_folder() -> Path:
    """Short enough for the path of a Unix socket."""
    return Path(tempfile.mkdtemp(prefix="rp-"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    profile = short_folder()
    started = Browser(profile)
    yield started
    started.close()
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are left, to be looked at."""
    return Path(__file__).parents[2] / "out" / "page"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    folder = short_folder()
    with World(folder, RETIRE_PIN_QUOTA_BLOCKS="2048") as started:
        yield started
    shutil.rmtree(folder, ignore_errors=True)

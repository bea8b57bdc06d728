"""One real stack for the snippets and examples; started as the quickstart says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from docs_session import Reader

from bench.stack import ENGINE_ARGS, Stack, StackSettings

# A tiny model has no sense of an end: greedy, so that every run is the same, and not for ever.
SHORT = ("--override-generation-config", '{"temperature": 0.0, "max_new_tokens": 3000}')
SETTINGS = StackSettings(
    engine_args=(*ENGINE_ARGS, *SHORT),
    env={"RETIRE_LEASE_S": "20", "RETIRE_SCOPE_FROM_SESSION": "1"},
)
_PAGE = re.compile(r"live page: (\S+)")


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """`retire serve --model ...`, on any free port."""
    with Stack(SETTINGS) as running:
        yield running


@pytest.fixture
def reader(stack: Stack, tmp_path: Path) -> Reader:
    """Somebody who has started it."""
    page = stack.wait_log(_PAGE, 5.0)[1]
    env = {"RETIRE_PAGE_URL": page, "RETIRE_HISTORY": str(stack.history)}
    return Reader(tmp_path, stack.url, env)

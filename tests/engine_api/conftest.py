"""Fixtures of the API process's tests; their parts are in ``engine_api_world.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

from engine_api_world import Node, node_at


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with a held lease over a mailbox of its own."""
    with node_at(tmp_path) as made:
        yield made

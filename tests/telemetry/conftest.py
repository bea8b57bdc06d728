"""A real path for spans, one stack that sends its own there, and the story of one SUPERSEDE."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

from telemetry_story import Story, tell

from bench.observatory import Observatory
from bench.stack import Stack, StackSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def observatory() -> Iterator[Observatory]:
    """Collector and Jaeger."""
    with Observatory() as running:
        yield running


@pytest.fixture(scope="session")
def stack(observatory: Observatory) -> Iterator[Stack]:
    """Every process of it traces, and logs each stage as JSON."""
    env = {
        "RETIRE_LEASE_S": "20",
        "RETIRE_LOG_LEVEL": "debug",
        **observatory.env,
    }
    settings = StackSettings(env=env, serve_args=("--log-format", "json"))
    with Stack(settings) as running:
        yield running


@pytest.fixture(scope="session")
def story(stack: Stack, observatory: Observatory) -> Story:
    """A SUPERSEDE of running work by ``retire supersede``, and its trace as Jaeger has it."""
    return tell(stack, observatory)

"""The real stack as processes: one for the whole session, one of its own where a test kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 480  # a first start loads torch and vLLM three times


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that waits for a start may take as long as a start, unless it says otherwise."""
    for item in items:
        item.add_marker(pytest.mark.stack)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_S))


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Shared by every test that kills nothing; ask for it before anything that takes long."""
    with Stack() as running:
        yield running


@pytest.fixture(scope="module")
def fault_stack() -> Iterator[Stack]:
    """One stack for a module whose faults the stack recovers from."""
    with Stack() as running:
        yield running


@pytest.fixture
def fresh_stack() -> Iterator[Stack]:
    """A stack for one test, which may ruin it."""
    with Stack() as running:
        yield running

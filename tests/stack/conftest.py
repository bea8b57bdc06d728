"""The real stack as processes: one for the whole session, one of its own where a test kills."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

import stack_forms

from bench.stack import Stack, StackSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 480  # a first start loads torch and vLLM three times
# What is not about the lease must not fail because the machine has other work.
CALM = StackSettings(env={"RETIRE_LEASE_S": "20"})
PLANTED = Path(__file__).with_name("stack_planted.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that waits for a start may take as long as a start, unless it says otherwise."""
    for item in items:
        item.add_marker(pytest.mark.stack)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_S))


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Shared by every test that kills nothing; ask for it before anything that takes long."""
    with Stack(CALM) as running:
        yield running


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two API processes that serve every form; see ``stack_forms.py``."""
    with Stack(stack_forms.settings(tmp_path_factory.mktemp("adapters"))) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test on ``forms``: once its scopes are cancelled, every block has come back."""
    yield
    if "forms" in request.fixturenames:
        stack_forms.audit(request.getfixturevalue("forms"))


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


@pytest.fixture
def ungated_stack() -> Iterator[Stack]:
    """A stack whose gates are open for ever: what the grid must be able to see."""
    command = (sys.executable, str(PLANTED))
    with Stack(StackSettings(command=command, env=CALM.env)) as running:
        yield running

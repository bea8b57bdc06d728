"""One installation of the chart for the folder's scenarios; each has a namespace of its own."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# importmode=importlib puts nothing there: the folder's own modules, and the harness.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from bench.tiny_models import tiny_model
from e2e.deployment import Deployment
from e2e.node.harness import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 600
LAST = ("test_e2e_uninstall", "test_e2e_walkthrough")  # what they leave is no installation


def pytest_configure(config: pytest.Config) -> None:
    """What other libraries warn of is no finding here."""
    config.addinivalue_line("filterwarnings", "ignore")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The installation starts with the first test, and the machine may be slow."""
    items.sort(key=lambda item: _when(item.path.stem))
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S, func_only=True))


def _when(module: str) -> int:
    """Faults raise the term, so that they come after what is written for the first one."""
    if module in LAST:
        return 2 + LAST.index(module)
    return 1 if module.startswith("test_e2e_faults") else 0


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    """The chart, installed and ready."""
    if lack := requirements():
        pytest.fail(lack)
    with Deployment(tiny_model()) as running:
        yield running


@pytest.fixture
def tenant(deployment: Deployment) -> str:
    """A namespace of its own, which is also the tenant's name."""
    return deployment.cluster.create_namespace(f"t-{uuid.uuid4().hex[:8]}")

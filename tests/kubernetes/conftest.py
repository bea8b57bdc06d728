"""A real API server, and the harness whose pods are processes, for the tests of both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# importmode=importlib puts nothing there: the folder's own modules, and the harness.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from kubernetes_pods import IMAGE, Pods

from e2e.cluster import Cluster, ExistingCluster
from e2e.fixtures import cluster, crd, namespace
from e2e.node.harness import Harness, requirements
from e2e.node.images import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cluster", "crd", "namespace"]
TIMEOUT_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A pod's life has seconds in it, and the machine may be slow."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def own_cluster(cluster: ExistingCluster) -> Cluster:
    """The cluster, if it is ours to harm."""
    if not isinstance(cluster, Cluster):
        pytest.skip("E2E_KUBECONFIG: a cluster that others run has nodes of its own")
    return cluster


@pytest.fixture(scope="session")
def harness(own_cluster: Cluster) -> Iterator[Harness]:
    """Two nodes, with Python as the only image."""
    if lack := requirements():
        pytest.fail(lack)
    with Harness(own_cluster, [plain(IMAGE)]) as running:
        yield running


@pytest.fixture
def pods(own_cluster: Cluster, harness: Harness, namespace: str) -> Pods:
    """Pods of the test's namespace."""
    return Pods(own_cluster, harness, namespace)

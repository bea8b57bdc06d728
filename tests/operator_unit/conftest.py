"""Fixtures of the operator's tests: its pure values, and one real cluster, registry and nodes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

# importmode=importlib puts nothing there: the folder's own modules, the sidecar's world, e2e.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "sidecar"))
sys.path.insert(2, str(Path(__file__).parents[2]))

from e2e.cluster import ExistingCluster
from e2e.fixtures import cluster, crd, namespace

__all__ = ["cluster", "crd", "namespace"]


@pytest.fixture
async def lab(cluster: ExistingCluster, crd: str, namespace: str) -> AsyncIterator[object]:
    """A registry, an operator process, and nodes on request, in a namespace of its own."""
    from e2e.installation import Lab

    del crd
    async with Lab(cluster, namespace) as made:
        yield made
        made.print_logs()

"""A real API server with the CRD, and somebody who answers as the operator does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# importmode=importlib puts nothing there: the folder's own modules, and the harness.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from kubectl_world import Answering, Plugin

from e2e.fixtures import cluster, crd, namespace

__all__ = ["cluster", "crd", "namespace"]


@pytest.fixture
def plugin(cluster, crd: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> Plugin:
    """``kubectl retire`` in this process, as the administrator, in a namespace of its own."""
    return Plugin(cluster, namespace, capsys)


@pytest.fixture
def answering(cluster, crd: str, namespace: str) -> Iterator[Callable[..., Answering]]:
    """Start an operator's answers for the namespace."""
    started: list[Answering] = []

    def start(**settings: object) -> Answering:
        started.append(Answering(cluster, namespace, **settings))
        return started[-1].start()

    yield start
    for one in started:
        one.stop()

"""The chart as helm renders it, each variant once, and a real API server for what needs one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# importmode=importlib puts nothing there: the folder's own modules, and the harness.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from chart_render import Rendered, render_variant

from e2e.fixtures import cluster

__all__ = ["cluster"]


@pytest.fixture(scope="session")
def variant() -> Callable[[str], Rendered]:
    """One render a values file of charts/retire/ci."""
    kept: dict[str, Rendered] = {}

    def of(name: str) -> Rendered:
        if name not in kept:
            kept[name] = render_variant(name)
        return kept[name]

    return of

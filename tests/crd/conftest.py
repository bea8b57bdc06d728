"""A real API server for every rule of the CRD."""

from __future__ import annotations

import sys
from pathlib import Path

# importmode=importlib puts nothing there: the folder's own modules, and the harness.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from e2e.fixtures import cluster, crd, namespace

__all__ = ["cluster", "crd", "namespace"]

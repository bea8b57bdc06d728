"""A real API server for every rule of the CRD."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # importmode=importlib puts nothing there

from e2e.fixtures import cluster, crd, namespace

__all__ = ["cluster", "crd", "namespace"]

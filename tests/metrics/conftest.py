"""Fixtures of the metrics' tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # the tests start servers while gRPC runs
# importmode=importlib puts nothing there: the folder's own modules, the dashboard's source, e2e.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(2, str(Path(__file__).parents[2]))

from e2e.fixtures import cluster, crd, namespace

__all__ = ["cluster", "crd", "namespace"]

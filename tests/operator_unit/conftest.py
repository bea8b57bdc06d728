"""Fixtures of the operator's tests; their parts are in ``operator_world.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

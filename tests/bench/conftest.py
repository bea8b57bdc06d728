"""The repository's root on the path: a bench that starts real parts finds ``e2e`` there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

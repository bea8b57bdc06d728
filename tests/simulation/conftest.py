"""Puts this folder on the path: the worlds are modules of their own, shared by the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

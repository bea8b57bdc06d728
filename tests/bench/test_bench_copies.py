"""The transfers' benchmark in small: both directions, bytes that arrive, shares of a plain copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.copies import Options, Samples, Subject, main, rows
from retire.engine.tier.orders import Restore


def test_a_short_run_writes_both_directions(tmp_path: Path):
    """The tier's own copier on scattered pages; its command's files."""
    assert main(["--layers", "2", "--pages", "8", "--rounds", "3", "--root", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "results" / "cpu" / "copies.json").read_text())
    found = {row["metric"]: row for row in document["rows"]}
    for metric in ("copy.d2h", "copy.h2d"):
        assert found[metric]["ours"] > 0 and found[metric]["goal"] == "> 0.8"
        assert found[f"{metric}_rate"]["baseline"] > 0
    assert all(len(series) == 3 for series in document["samples"].values())
    assert "</svg>" in (tmp_path / "results" / "cpu" / "copies.svg").read_text()


def test_a_share_is_of_the_plain_copy_of_its_round():
    """CONTROL: half as fast misses the goal, as fast meets it."""
    half = {row.metric: row for row in rows(Samples([2.0], [1.0], [1.0], [1.0]), 10**9)}
    assert half["copy.d2h"].ours == pytest.approx(0.5) and not half["copy.d2h"].met
    assert half["copy.h2d"].ours == pytest.approx(1.0) and half["copy.h2d"].met


def test_a_transfer_that_brings_other_bytes_is_no_measurement(monkeypatch: pytest.MonkeyPatch):
    """CONTROL: a byte that changes at rest fails the round; untouched, it goes through."""
    subject = Subject(Options(2, 32768, 8, 1))
    stock = subject._restore

    def changed(copy: int, ids: tuple[int, ...]) -> Restore:
        segment = subject.copier.arena.segment(subject.copier.copies[copy][0], 0)
        with torch.inference_mode():
            segment[0, 0] += 1
        return stock(copy, ids)

    try:
        subject.round(Samples())
        monkeypatch.setattr(subject, "_restore", changed)
        with pytest.raises(RuntimeError, match="what came back differs"):
            subject.round(Samples())
    finally:
        subject.close()

"""A short run on two ranks reaches its files; an unsigned rank, a moved tenant would show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import distributed
from bench.distributed_engine import Topology, longest_gap_ms
from bench.fence_engine import Arm

SHORT = ("--pairs=1", "--prompt=512", "--inherited=224", "--unit=128", "--frames=16")


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_short_run_writes_rows_and_a_picture(tmp_path: Path):
    """Both ranks sign, what was certified is reused, the other tenant says what it says alone."""
    assert distributed.main([*SHORT, "--topologies=tp2", f"--root={tmp_path}"]) == 0
    folder = tmp_path / "results" / "cpu"
    found = {}
    for name in ("distributed", "tenant"):
        found |= {
            row["metric"]: row for row in json.loads((folder / f"{name}.json").read_text())["rows"]
        }
    assert found["tp2.signed"]["ours"] == 2
    assert found["tp2.inherited_tokens"]["ours"] == 224
    for metric in ("fence", "to_successor", "to_successor_prefix", "inherit"):
        assert found[f"tp2.{metric}"]["ours"] > 0 and found[f"tp2.{metric}"]["ratio"] > 0
    assert found["tenant.unchanged"]["ours"] == 1
    assert "</svg>" in (folder / "distributed.svg").read_text()


def _samples(**change: list[float]) -> distributed.Samples:
    arms = [arm.value for arm in (Arm.RETIRE, Arm.PREFIX, Arm.COLD)]
    scenes = {
        f"{scene} {arm}": [10.0, 12.0] for scene in ("tail", "first", "inherit") for arm in arms
    }
    tenant = {f"tenant {what} {arm}": [5.0, 5.0] for what in ("runtime", "gap") for arm in arms[:2]}
    same = {f"tenant same {arm}": [1.0, 1.0] for arm in arms[:2]}
    return {**scenes, **tenant, **same, "reused ours": [64.0, 64.0], "signed": [2.0, 2.0], **change}


def test_the_worst_pair_is_what_is_reported():
    """CONTROL: one rank that did not sign, one prefix that was lost, one moved tenant, one cost."""
    assert {row.metric: row.ours for row in distributed.rows("tp2", _samples())}["tp2.signed"] == 2
    worse = _samples(signed=[2.0, 1.0]) | {"reused ours": [64.0, 0.0]}
    found = {row.metric: row.ours for row in distributed.rows("tp2", worse)}
    assert found["tp2.signed"] == 1 and found["tp2.inherited_tokens"] == 0
    moved = _samples() | {"tenant same ours": [1.0, 0.0], "tenant runtime ours": [5.5, 5.5]}
    told = {row.metric: row.ours for row in distributed.tenant_rows("tenant", moved)}
    assert told["tenant.unchanged"] == 0 and told["tenant.runtime_pct"] == pytest.approx(10)
    assert told["tenant.frame_gap_pct"] == 0


def test_a_topology_has_one_name():
    """Both ways; what is none is refused with the form."""
    for name, tp, pp in (("tp2", 2, 1), ("pp2", 1, 2), ("tp2pp2", 2, 2), ("tp4", 4, 1)):
        made = Topology.parse(name)
        assert (made.tp, made.pp, made.name) == (tp, pp, name)
    for bad in ("tp1", "pp", "2", "pp2tp2"):
        with pytest.raises(ValueError, match="write tp2, pp2 or tp2pp2|invalid literal"):
            Topology.parse(bad)


def test_a_silence_is_between_two_neighbours():
    """The longest one, ms."""
    assert longest_gap_ms([0.0, 0.010, 0.050, 0.055]) == pytest.approx(40)


def test_too_few_frames_are_refused_by_the_option(capsys: pytest.CaptureFixture[str]):
    """A co-tenant that ends before anybody else begins has no silence to be measured."""
    with pytest.raises(SystemExit):
        distributed.main(["--frames", "8"])
    assert "--frames 8: at least 16" in capsys.readouterr().err

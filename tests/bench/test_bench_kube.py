"""The Kubernetes benchmark: a small run on the real parts, and what its figures are made of."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from bench import scoreboard
from bench.goals import GOALS
from bench.kube_many import Restart
from bench.kube_rows import Seen, rows_of
from bench.report import Row

ROOT = Path(__file__).resolve().parents[2]
RANKED = (
    *("apply_to_unpublishable_ms", "kubectl_to_unpublishable_ms", "runtime_unpublishable2_ms"),
    *("two_operators.apply_to_unpublishable_ms", "patch_ms", "watch_ms", "apply_answered_ms"),
    *("kubectl_apply_ms", "kubectl_start_ms", "cas_ms"),
)
PER_COUNT = ("resync{}_s", "resync{}_first_s", "resync{}_cpu_s", "resync{}_writes")
PER_COUNT += ("resync{}_changed", "revise{}_s", "revise{}_status_s", "operator_rss_mb.scopes{}")
SINGLE = ("operator_rss_mb.idle", "lost_revisions", "repeated_revisions", "disordered_scopes")
SINGLE += ("open_at_switch", "wrong_final_versions", "switched_without_operator")


def metrics(scopes: int) -> set[str]:
    names = {f"{name}.{rank}" for name in RANKED for rank in ("p50", "p99")}
    names |= {name.format(scopes) for name in PER_COUNT} | set(SINGLE)
    return {f"kube.{name}" for name in names}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_quick_run_measures_everything_and_loses_nothing(tmp_path: Path):
    """Real control plane, registry, sidecars and operators: every row is there, in the form of the
    scoreboard; nothing is lost, nothing is written for nothing, nothing moves without an
    operator."""
    command = [sys.executable, "-m", "bench.kube", "--quick", "--root", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    document = json.loads((tmp_path / "results" / "kube" / "kube.json").read_text())
    assert document["command"] == f"python -m bench.kube --quick --root {tmp_path.name}"
    assert document["bench"] == "kube"
    assert all(set(row) == {field.name for field in fields(Row)} for row in document["rows"])
    assert len(scoreboard.load(tmp_path)) == len(document["rows"])
    found = {row["metric"]: row for row in document["rows"]}
    assert set(found) == metrics(20)
    assert {name: found[f"kube.{name}"]["ours"] for name in SINGLE[1:]} == dict.fromkeys(
        SINGLE[1:], 0
    )
    assert found["kube.resync20_writes"]["ours"] == found["kube.resync20_changed"]["ours"] == 0
    apply, bare = (
        found[f"kube.{name}_ms.p50"]["ours"] for name in ("apply_to_unpublishable", "patch")
    )
    kubectl, start = (
        found[f"kube.{name}_ms.p50"]["ours"]
        for name in ("kubectl_to_unpublishable", "kubectl_start")
    )
    assert apply > bare, "UNPUBLISHABLE comes after the object was written"
    assert kubectl > start, "and kubectl has to start first"
    assert len(document["samples"]["apply_ms"]) == 4


def test_the_full_run_has_every_goal_of_the_table():
    """The names in the goals are those of a run over 500 scopes; a lost revision misses one."""
    names = ("apply_ms", "patch_ms", "watch_ms", "apply_answered_ms", "kubectl_apply_ms")
    names += ("kubectl_to_unpublishable_ms", "kubectl_start_ms", "two_operators_ms", "runtime_ms")
    seen = Seen(
        samples={name: [1.0, 2.0] for name in (*names, "cas_ms")},
        scopes=500,
        rss_mb=(100.0, 150.0),
        restart=Restart(first_s=1.0, all_s=2.0, cpu_s=1.0, writes=0, changed=0),
        revised_s=1.0,
        told_s=2.0,
        without_operator=0,
        faults={"lost": 1, "repeated": 0, "disordered": 0, "open": 0},
        wrong_final=0,
        revisions=100,
    )
    found = {row.metric: row for row in rows_of(seen)}
    assert set(found) == metrics(500)
    goals = {metric for metric in GOALS if metric.startswith("kube.")}
    assert goals == {metric for metric, row in found.items() if row.goal}
    assert {metric for metric, row in found.items() if row.met is False} == {"kube.lost_revisions"}

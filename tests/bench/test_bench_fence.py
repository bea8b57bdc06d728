"""A short fence run of every path reaches its files; drafts are seen in the step, never assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import fence
from bench.fence_engine import Arm, Subject, once
from bench.fence_engine import Path as Scene


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bench", sorted(fence.PATHS))
def test_a_quick_run_writes_rows_and_a_picture(bench: str, tmp_path: Path):
    """Both arms, both intervals, on every path of that engine."""
    path = fence.run(bench, fence.quick(bench), Console(quiet=True), root=tmp_path)
    document = json.loads(path.read_text())
    found = {row["metric"]: row for row in document["rows"]}
    for scene in fence.PATHS[bench]:
        row = found[f"fence.{scene.value}"]
        assert row["ours"] > 0 and row["baseline"] > 0 and row["n"] == 2
        if scene is not Scene.DECODE:
            assert found[f"fence.{scene.value}.to_successor"]["ratio"] > 0
            assert found[f"fence.{scene.value}.to_cold"]["ratio"] > 0
    assert "</svg>" in path.with_suffix(".svg").read_text()


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arm", [Arm.RETIRE, Arm.PREFIX])
def test_a_step_without_drafts_is_not_taken_for_one_with(monkeypatch: pytest.MonkeyPatch, arm: Arm):
    """CONTROL: where no draft is in flight, nothing is revised, and the scene says so."""
    subject = Subject(fence.quick("fence_speculation"))
    try:
        subject.use(Scene.SPEC_DECODE, 256)
        monkeypatch.setattr(subject, "_drafting", lambda: False)
        with pytest.raises(AssertionError, match="no step was one to revise in"):
            subject.tail(arm)
    finally:
        subject.lab.close()


def test_a_call_is_made_until_it_says_yes():
    """Then never again."""
    answers = [False, True]
    made: list[bool] = []

    def call() -> bool:
        made.append(answers.pop(0))
        return made[-1]

    again = once(call)
    for _ in range(4):
        again()
    assert made == [False, True]


def test_the_paper_s_unit_carries_the_goal():
    """Other units have names of their own; the default policy's fence is the finest unit's."""
    unit = fence.Unit({Arm.RETIRE: [4.0], Arm.PREFIX: [400.0]}, {})
    coarse = fence.Unit({Arm.RETIRE: [9.0], Arm.PREFIX: [400.0]}, {})
    made = fence.rows({(Scene.LONG_PREFILL, 2048): unit, (Scene.LONG_PREFILL, 4096): coarse})
    found = {row.metric: row for row in made}
    assert found["fence.long_prefill"].met is False and found["fence.long_prefill"].ours == 9.0
    assert found["fence.long_prefill_2048"].goal is None
    assert found["fence.long_prefill_ms"].ours == 4.0 and found["fence.long_prefill_ms"].met

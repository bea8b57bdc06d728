"""A short replay runs to its files; sessions are read as recorded; what is checked can fail."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.replay_engine import Execution, Native, Retire
from bench.replay_plan import OUT_MIN, Scale, Speed, Stratum, plan
from bench.replay_rows import Round, current, curve, faults, missed, obsolete, peak, rows
from bench.replay_sessions import BadSession, generate, parse, read

SPEED = Speed(0.001, 0.01)
SCALE = Scale(4, 6, prompt_max=1000, gap_s=1.0)


@pytest.mark.stack
@pytest.mark.timeout(500)
def test_a_quick_replay_writes_rows_and_a_picture(tmp_path: Path):
    """Real sidecar, registry, engine process: nothing late or wrong, every final advanced.

    A process of its own: an engine that is stepped by hand leaves another environment behind.
    """
    command = [sys.executable, "-m", "bench.replay", "--quick", "--root", str(tmp_path)]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RETIRE_", "VLLM_"))}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=480, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    path = tmp_path / "results" / "cpu" / "replay.json"
    found = {row["metric"]: row for row in json.loads(path.read_text())["rows"]}
    assert found["replay.late_tokens"]["ours"] == 0
    assert found["replay.final_fraction"]["ours"] == 1
    assert found["replay.goodput"]["ratio"] > 0 and found["replay.goodput"]["ci95"] is not None
    assert found["replay.cleanup_ms"]["n"] > 0
    assert found["replay.bystander_power"]["ours"] > 0.05
    assert "</svg>" in path.with_suffix(".svg").read_text()


def test_a_file_is_read_as_it_was_generated(tmp_path: Path):
    """Plain and gzip; a prompt shares with the next what their block ids share, at any scale."""
    made = generate(3, seed=7)
    lines = "".join(json.dumps(one) + "\n" for one in made)
    (tmp_path / "plain.jsonl").write_text(lines)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read(tmp_path / "plain.jsonl") == read(tmp_path / "packed.jsonl.gz") == parse(made)
    session = parse(made)[0]
    for factor in (0.01, 1 / 64, 0.05):
        for before, after in zip(session.calls, session.calls[1:], strict=False):
            same = _common(before.hash_ids, after.hash_ids) * session.block
            shared = _common(session.prompt(before, factor), session.prompt(after, factor))
            longest = min(before.tokens_in, after.tokens_in)
            assert shared == pytest.approx(min(same, longest) * factor, abs=2)


def _common(one, other) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("line", ["{}", "no json", '{"id": 1, "block_size": 64, "requests": [{}]}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str):
    """File and line stand in the message."""
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(generate(1)[0]) + "\n" + line + "\n")
    with pytest.raises(BadSession, match=r"bad.jsonl:2"):
        read(path)


def test_a_plan_is_seeded_and_covers_every_stratum():
    """Equal for equal seeds; six strata evenly; bursts of 1 to 8 within a second; one factor."""
    sessions = parse(generate(4))
    agents = plan(sessions, SCALE, SPEED, seed=1)
    assert agents == plan(sessions, SCALE, SPEED, seed=1) != plan(sessions, SCALE, SPEED, seed=2)
    turns = [turn for agent in agents for turn in agent.turns]
    assert set(Counter(turn.stratum for turn in turns).values()) == {len(turns) // len(Stratum)}
    sizes = {len(turn.revisions) for turn in turns}
    assert {1, 2, 8} <= sizes <= set(range(1, 9))
    for turn in turns:
        assert turn.revisions[-1].after_s - turn.revisions[0].after_s < 1.001
        assert len(turn.revisions[-1].prompt) == len(turn.prompt) and turn.out >= OUT_MIN
    assert max(len(turn.prompt) for turn in turns) == SCALE.prompt_max


# --- what is counted -----------------------------------------------------------------------------


def _run(name: str, *, tokens: int = 2, at_s: float = 1.0, logprob: float = -1.0) -> Execution:
    run = Execution(name, (1,), 2, began_s=0.5)
    run.delivered = [(at_s, tokens)] if tokens else []
    run.tokens, run.logprobs = [5] * tokens, [logprob] * tokens
    run.ended_s = 3.0
    return run


def _revised(name: str, *, at_s: float = 1.0) -> Execution:
    run = _run(name, at_s=at_s)
    run.revised_s, run.acked_s, run.closed_s, run.state = 1.5, 1.6, 2.0, "decode"
    return run


def _rounds(arm: str) -> list[Round]:
    made = []
    for number in range(2):
        final = _run(f"{arm}{number}/a-0/1")
        old = _revised(f"{arm}{number}/a-0/0")
        one = Round(0.0, 4.0, [old, final], [final], [_run("by")])
        made.append(one)
    return made


def _rows(planted: Round | None = None):
    rounds = {Native.name: _rounds("native"), Retire.name: _rounds("retire")}
    if planted is not None:
        rounds[Retire.name][0] = planted
    clean = {"bystander": _run("c"), "a-0": _run("c0", logprob=-4.0)}
    return rows(rounds, Retire.name, Native.name, clean)


def test_a_sound_replay_has_no_fault():
    """Two tokens of one final version in four seconds; cleanup 0.4 s; one obsolete at a time."""
    made = _rows()
    assert faults(made) == []
    found = {row.metric: row for row in made}
    assert found["replay.goodput"].ours == pytest.approx(0.5)
    assert found["replay.goodput"].ratio == pytest.approx(1.0)
    assert found["replay.cleanup_ms"].ours == pytest.approx(400)
    assert found["replay.obsolete_peak"].ours == 1
    rounds = _rounds("retire")
    goodput, cleanup = missed(made, rounds, rounds)
    assert "after 500 ms (ours 500)" in goodput and "no version was live in 38%" in goodput
    assert "cleanup_ms" in cleanup


def test_curves_count_what_is_live():
    """Current until revised or ended, obsolete until closed."""
    one = _rounds("retire")[0]
    assert peak(one) == 1
    assert curve(one, obsolete) == ([0.0, 1.5, 2.0, 4.0], [0, 1, 0, 0])
    assert max(curve(one, current)[1]) == 2


def test_a_late_token_would_be_seen():
    """Control: delivered before the acknowledgement it is none, after it both are."""
    assert _revised("x", at_s=1.59).late == 0
    late = _rounds("retire")[0]
    late.executions[0] = _revised("retire0/a-0/0", at_s=1.61)
    assert faults(_rows(late)) == ["replay.late_tokens is 2 tokens, at most 0 may be"]


def test_a_wrong_answer_would_be_seen():
    """Control: other tokens than the clean run's."""
    wrong = _rounds("retire")[0]
    wrong.finals[0].tokens = [5, 6]
    assert faults(_rows(wrong)) == ["replay.wrong_finals is 1 answers, at most 0 may be"]


def test_a_stuck_final_version_would_be_seen():
    """Control: a final version without a token; its empty answer is wrong, too."""
    stuck = _rounds("retire")[0]
    stuck.finals[0] = _run("retire0/a-0/1", tokens=0)
    assert "only 50.0% of the final versions advanced" in faults(_rows(stuck))


def test_a_moved_bystander_would_be_seen():
    """Control: another logprob of another tenant's token."""
    moved = _rounds("retire")[0]
    moved.bystander = [_run("by", logprob=-1.1)]
    (line,) = faults(_rows(moved))
    assert "bystander_drift" in line

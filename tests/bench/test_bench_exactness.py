"""A short exactness run reaches its file; a difference, a lost control, a moved page would show."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from bench import exactness
from bench.exactness import Found, distance, drifted, faults, moved
from bench.exactness_engine import Answer
from bench.exactness_weights import LOUD, SHARP, sharpen


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_a_quick_run_finds_every_successor_exact(tmp_path: Path):
    """With power; overwritten pages are noticed, restored ones are not."""
    path, broken = exactness.run(exactness.quick(tmp_path), Console(quiet=True))
    assert broken == []
    found = {row["metric"]: row["ours"] for row in json.loads(path.read_text())["rows"]}
    assert found["exact.power"] > 0.05
    for source in ("clean_prefix", "completed_predecessor", "superseded_predecessor"):
        assert found[f"exact.reused.{source}"] == 160
    assert found["exact.reused.cold"] == 0
    assert found["exact.fault_changes_output"] == found["exact.restored_recovers"] == 3
    assert found["exact.bystander_pages_changed"] == 0


def _found() -> Found:
    return Found(
        power=[1.0], drift={"a against b": [0.0]}, reused={"cold": [0]}, faulted=[0.5],
        restored=[0.0], bystander=[0.0], bystander_native=[0.0],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drift": {"a against b": [0.2]}}, "exact.wrong.a_against_b: 1 of 1"),
        ({"drift": {"a against b": [inf]}}, "exact.wrong.a_against_b: 1 of 1"),
        ({"faulted": [0.01]}, "exact.fault_changes_output: 0 of 1"),
        ({"restored": [inf]}, "exact.restored_recovers: 0 of 1"),
        ({"bystander": [0.3]}, "exact.bystander_same: 0 of 1, native 1"),
        ({"power": [0.01]}, "exact.power: 0.01 nats: no comparison here can tell"),
        ({"pages_changed": 1}, "a bystander's pages changed in 1 trials"),
    ],
)
def test_what_is_off_is_said(change: dict, said: str):
    """CONTROL: each promise can be broken, and a run with none broken says nothing."""
    assert faults(_found()) == []
    assert faults(replace(_found(), **change)) == [said]


def test_rounding_between_equally_likely_tokens_is_no_drift():
    """Two texts part where either token would do. CONTROL: another likelihood is a drift."""
    one = Answer((1, 2, 3), (-1.0, -2.0, -0.1), 0)
    assert drifted(one, Answer((1, 7, 9), (-1.0, -2.001, -5.0), 0)) == pytest.approx(0.001)
    assert drifted(one, Answer((1, 7, 9), (-1.0, -2.5, -0.1), 0)) == pytest.approx(0.5)
    assert drifted(one, Answer((1, 2, 3), (-1.0, -2.0, -0.4), 0)) == pytest.approx(0.3)


def test_a_bystander_may_move_as_far_as_beside_native_vllm():
    """Kernels round by the shape of a batch, on a GPU; that is not ours to mend."""
    assert faults(replace(_found(), bystander=[0.3], bystander_native=[0.4])) == []


def test_dummy_weights_are_given_power():
    """Norms as trained ones, queries and keys sharp; once. Without it a norm's output is nearly 0,
    attention is flat, and ``exact.power`` says so."""
    names = ("input_layernorm", "self_attn.q_norm", "self_attn.o_proj", "mlp.down_proj", "lm_head")
    dummy = {f"{name}.weight": torch.full((4,), 1e-3) for name in names}
    model = SimpleNamespace(named_parameters=dummy.items)
    config = SimpleNamespace(load_config=SimpleNamespace(load_format="dummy"))
    lab: Any = SimpleNamespace(core=SimpleNamespace(vllm_config=config), model=model)
    for _ in range(2):
        assert sharpen(lab)
        assert dummy["input_layernorm.weight"].eq(1).all()
        assert dummy["self_attn.q_norm.weight"].eq(SHARP).all()
        assert dummy["self_attn.o_proj.weight"].eq(LOUD * 1e-3).all()
        assert dummy["mlp.down_proj.weight"].eq(1e-3).all()
        assert dummy["lm_head.weight"].std() > 0
    config.load_config.load_format = "auto"
    assert not sharpen(lab), "weights that have power are left alone"


def test_another_token_is_another_answer():
    """Whatever the logprobs are; the power is taken at equal places."""
    one, two = Answer((1, 2), (-1.0, -2.0), 0), Answer((1, 3), (-1.0, -2.5), 0)
    assert distance(one, one) == 0 and distance(one, two) == inf
    assert distance(Answer((), (), 0), Answer((), (), 0)) == inf
    assert moved(one, two) == 0.5

"""What users of today's servers hit, in numbers of steps: abandoned prefills, bursts of retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from bench.lab import Lab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
PREFILLS = 10
RETRIES = 5


def steps_until_first_token(lab: Lab, name: str) -> int:
    """Forward passes from now until a short request says its first token."""
    before = lab.launched_steps
    short = lab.submit(name, prompt_tokens(40, 9), max_tokens=1)
    lab.run(lambda: bool(short.tokens))
    return lab.launched_steps - before


def long_prefills(lab: Lab, name: str) -> list[ScopeKey]:
    """Ten cold prompts that need more than fifty steps, the first of them under way."""
    keys = [ScopeKey("acme", f"{name}-{i}") for i in range(PREFILLS)]
    for i, key in enumerate(keys):
        lab.submit(f"{name}-{i}", prompt_tokens(1500, 900 + i), lab.tag(key), max_tokens=1)
    for _ in range(3):
        lab.step()
    return keys


@pytest.mark.parametrize("terminal", [True, False], ids=["cancelled", "superseded"])
def test_abandoned_prefills_are_not_computed(lab: Lab, terminal: bool) -> None:
    """After ten of them a short request waits for one step of its own, and nothing else runs."""
    keys = long_prefills(lab, f"gone-{terminal}")
    for key in keys:
        lab.advance(key)
        lab.fence(key, terminal=terminal)
    assert steps_until_first_token(lab, "short") == 1
    assert not lab.scheduler.requests and not lab.scheduler.tags


def test_prefills_that_nobody_abandons_are_in_the_way(lab: Lab) -> None:
    """NEGATIVE CONTROL of the one above: first come, first served."""
    long_prefills(lab, "kept")
    assert steps_until_first_token(lab, "behind") > 20


def test_a_prefill_given_up_near_its_end_is_taken_over_by_its_retry(lab: Lab) -> None:
    """The same call again computes what was missing, not the whole prompt a second time."""
    prompt = prompt_tokens(1500, 950)
    lab.submit("first", prompt, lab.tag(lab.key), max_tokens=1)
    for _ in range(20):  # of 24 quanta
        lab.step()
    lab.advance(lab.key)
    lab.fence(lab.key)
    before = lab.launched_steps
    retry = lab.submit("retry", prompt, lab.tag(lab.key), max_tokens=1)
    lab.run()
    assert retry.cached_tokens == 20 * 64
    assert lab.launched_steps - before <= 5


@pytest.mark.parametrize("seed", range(4))
def test_five_retries_at_once_say_what_a_clean_run_says(lab: Lab, seed: int) -> None:
    """Five given up in the middle of decoding, five retried before anything else runs."""
    prompts = [prompt_tokens(70 + 13 * i, 1000 * seed + i) for i in range(RETRIES)]
    clean = [lab.submit(f"clean{i}", prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    lab.run()
    lab.clean()
    keys = [ScopeKey("acme", f"retry-{seed}-{i}") for i in range(RETRIES)]
    olds = [
        lab.submit(f"old{i}", prompt, lab.tag(key), max_tokens=200)
        for i, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
    ]
    lab.run(lambda: all(len(old.tokens) >= 3 + seed for old in olds[:4]))
    for key in keys:
        lab.advance(key)
    retries = [
        lab.submit(f"retry{i}", prompt, lab.tag(key), max_tokens=12)
        for i, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
    ]
    lab.run()
    assert [r.tokens for r in retries] == [c.tokens for c in clean]
    assert all(r.cached_tokens for r in retries[:4]), "they took over what was written"

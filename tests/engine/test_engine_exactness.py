"""A successor's logprobs equal a clean run's, and the comparison can tell (C2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
BLOCK = 32
TOLERANCE = 1e-4  # float32 on the CPU; the power below is over a thousand times larger
OLD = prompt_tokens(600, 1)
TAIL = prompt_tokens(80, 2)


def distance(one: Stream, other: Stream) -> float:
    """Largest difference of a logprob; infinite when the tokens differ in number."""
    if len(one.logprobs) != len(other.logprobs) or not one.logprobs:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


ARGMAX = {"temperature": 1.0, "top_k": 1}  # greedy, but allowed with n > 1


def clean_run(lab: Lab, prompt: Sequence[int], **sampling: float) -> Stream:
    """The same prompt, cold and alone."""
    lab.clean()
    stream = lab.submit("clean", prompt, **sampling)
    lab.run()
    lab.clean()
    return stream


def retire_at(lab: Lab, prompt: Sequence[int], *, outputs: int | None, steps: int = 0) -> Stream:
    """Run an old version until it has ``outputs`` tokens (or for ``steps``), then ADVANCE."""
    old = lab.submit("old", prompt, lab.tag(lab.key), max_tokens=400)
    if outputs is None:
        for _ in range(steps):
            lab.step()
    else:
        lab.run(lambda: len(old.tokens) >= outputs)
    lab.advance(lab.key)
    return old


def test_another_prefix_moves_the_logprobs_far_more_than_the_tolerance(lab: Lab) -> None:
    """The power of every comparison below, measured before it is trusted."""
    successor = OLD[:320] + TAIL
    expected = clean_run(lab, successor)
    other = clean_run(lab, prompt_tokens(320, 77) + TAIL)
    assert distance(expected, other) > 1000 * TOLERANCE
    assert distance(expected, clean_run(lab, successor)) < TOLERANCE


@pytest.mark.parametrize(
    ("common", "certified"),
    [(0, 0), (BLOCK - 1, 0), (BLOCK, BLOCK), (400, 384), (600, 576)],
    ids=["nothing", "one block less one token", "one block", "many blocks", "everything"],
)
def test_successor_of_a_decoding_request_is_exact(lab: Lab, common: int, certified: int) -> None:
    """Inherited length is the block-aligned common prefix, and the output is a clean run's."""
    successor = OLD[:common] + TAIL
    expected = clean_run(lab, successor)
    retire_at(lab, OLD, outputs=3)
    stream = lab.submit("new", successor, lab.tag(lab.key))
    outcome = lab.certificate(lab.key)
    lab.run()
    assert (outcome["inheritable_tokens"], outcome["certified_tokens"]) == (common, certified)
    assert stream.cached_tokens == certified
    assert distance(stream, expected) < TOLERANCE


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_successor_of_a_prefilling_request_is_exact(lab: Lab, steps: int) -> None:
    """Mid-prefill only the written frontier is inherited."""
    successor = OLD[:500] + TAIL
    expected = clean_run(lab, successor)
    retire_at(lab, OLD, outputs=None, steps=steps)
    stream = lab.submit("new", successor, lab.tag(lab.key))
    outcome = lab.certificate(lab.key)
    lab.run()
    frontier = min(steps * 64, 480)
    assert outcome["certified_tokens"] == frontier == stream.cached_tokens
    assert distance(stream, expected) < TOLERANCE


def test_successor_inherits_generated_tokens_too(lab: Lab) -> None:
    """A context that extends the old output keeps the KV of what was generated."""
    old = retire_at(lab, OLD[:100], outputs=70)
    successor = OLD[:100] + old.tokens[:60] + TAIL
    stream = lab.submit("new", successor, lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == 160
    expected = clean_run(lab, successor)
    assert distance(stream, expected) < TOLERANCE


def test_the_same_prompt_again_recomputes_only_the_last_block(lab: Lab) -> None:
    """A whole prompt is inherited up to the block of its last token, whose logits are needed."""
    expected = clean_run(lab, OLD[:320])
    retire_at(lab, OLD, outputs=2)
    stream = lab.submit("new", OLD[:320], lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == 288
    assert distance(stream, expected) < TOLERANCE


def test_three_samples_of_a_successor_all_inherit(lab: Lab) -> None:
    """With n=3 every sample adopts the certified blocks and decodes as a clean run."""
    successor = OLD[:400] + TAIL
    expected = clean_run(lab, successor)
    retire_at(lab, OLD, outputs=3)
    stream = lab.submit("new", successor, lab.tag(lab.key), n=3, **ARGMAX)
    lab.run()
    assert set(stream.choices) == {0, 1, 2}
    assert all(tokens == expected.tokens for tokens in stream.choices.values())
    assert stream.cached_tokens == 384


def test_three_old_samples_leave_one_successor(lab: Lab) -> None:
    """A scope of several requests retires whole; the successor takes the longest prefix."""
    successor = OLD[:400] + TAIL
    expected = clean_run(lab, successor)
    old = lab.submit("old", OLD, lab.tag(lab.key), n=3, max_tokens=300, **ARGMAX)
    lab.run(lambda: len(old.choices.get(2, ())) >= 2)
    lab.advance(lab.key)
    stream = lab.submit("new", successor, lab.tag(lab.key))
    lab.run()
    assert len(lab.fence(lab.key)["requests"]) == 3
    assert stream.cached_tokens == 384
    assert distance(stream, expected) < TOLERANCE


def test_adopted_pages_that_were_corrupted_are_noticed(lab: Lab) -> None:
    """NEGATIVE CONTROL (paper, A.3): same block ids and counts, other bytes, another output."""
    successor = OLD[:400] + TAIL
    expected = clean_run(lab, successor)
    retire_at(lab, OLD, outputs=3)
    stream = lab.submit("new", successor, lab.tag(lab.key))
    chain = lab.scheduler.inheritance._outcomes[lab.internal_id("new")].chain
    saved = lab.overwrite_blocks(chain.block_ids()[0])
    lab.run()
    assert stream.cached_tokens == 384
    assert distance(stream, expected) > 100 * TOLERANCE

    lab.clean()
    retire_at(lab, OLD, outputs=3)
    stream = lab.submit("again", successor, lab.tag(lab.key))
    chain = lab.scheduler.inheritance._outcomes[lab.internal_id("again")].chain
    saved = lab.overwrite_blocks(chain.block_ids()[0])
    lab.restore_blocks(chain.block_ids()[0], saved)
    lab.run()
    assert distance(stream, expected) < TOLERANCE

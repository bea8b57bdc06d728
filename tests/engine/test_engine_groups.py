"""Two KV groups, sliding (256 tokens) and full: one common boundary, and the window before it.

Lengths are swept around the window and the block edges; every trial must be exact.
"""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from bench.lab import prompt_tokens
from retire.engine.fence_policy import StepTimes
from retire.engine.seams import kv_cache
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
WINDOW, BLOCK, QUANTUM = 256, 32, 64
TOLERANCE = 1e-4
LONG = prompt_tokens(900, 51)
TAIL = prompt_tokens(40, 52)
OTHER = ScopeKey("globex", "job")
_NUMBERS = count()


@pytest.fixture(scope="module")
def two_groups() -> Iterator[Lab]:
    """A tiny Gemma3: layers 1 and 3 slide, layers 2 and 4 do not."""
    from bench.lab import Lab

    lab = Lab("gemma3-swa-tiny", max_num_seqs=4, quantum=QUANTUM)
    yield lab
    lab.close()


@pytest.fixture
def lab(two_groups: Lab) -> Iterator[Lab]:
    """Empty before, and nothing left afterwards."""
    two_groups.clean()
    _fresh(two_groups)
    yield two_groups
    two_groups.limit_free_blocks(None)
    two_groups.run()
    two_groups.scheduler.inheritance.expire(float("inf"))
    assert two_groups.settled() == []


def _fresh(lab: Lab) -> None:
    lab.key = ScopeKey("acme", f"groups-{next(_NUMBERS)}")


def distance(one: Stream, other: Stream) -> float:
    """Largest difference of a logprob; infinite when the tokens differ."""
    if one.tokens != other.tokens or not one.tokens:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def clean_run(lab: Lab, prompt: Sequence[int], **sampling: Any) -> Stream:
    """The same prompt, cold and alone; none of its bytes stay."""
    lab.clean()
    stream = lab.submit("clean", prompt, **{"max_tokens": 4, **sampling})
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 200))
    return stream


def after_prefill_steps(lab: Lab, prompt: Sequence[int], steps: int) -> None:
    """Supersede a request that has prefilled for ``steps`` quanta."""
    lab.submit("old", prompt, lab.tag(lab.key), max_tokens=400)
    for _ in range(steps):
        lab.step()
    lab.advance(lab.key)


def after_outputs(lab: Lab, prompt: Sequence[int], outputs: int) -> Stream:
    """Supersede a request that has made ``outputs`` tokens."""
    old = lab.submit("old", prompt, lab.tag(lab.key), max_tokens=400)
    lab.run(lambda: len(old.tokens) >= outputs)
    lab.advance(lab.key)
    return old


def successor(lab: Lab, prompt: Sequence[int], **sampling: Any) -> Stream:
    stream = lab.submit("new", prompt, lab.tag(lab.key), **{"max_tokens": 4, **sampling})
    lab.run()
    return stream


def test_there_are_two_groups_with_one_boundary(lab: Lab) -> None:
    """What the sweep stands on."""
    kv = lab.scheduler.kv
    assert sorted(kv.windows, key=str) == [WINDOW, None]
    assert kv.boundary == BLOCK


def test_another_prefix_moves_the_logprobs(lab: Lab) -> None:
    """The power of the comparison, for a difference that lies within the window and beyond it."""
    expected = clean_run(lab, LONG[:600] + TAIL)
    assert distance(clean_run(lab, LONG[:600] + TAIL), expected) < TOLERANCE
    for at in (100, 550):
        other = clean_run(lab, [*LONG[:at], *prompt_tokens(4, 9), *LONG[at + 4 : 600], *TAIL])
        pairs = zip(other.logprobs, expected.logprobs, strict=False)
        assert max(abs(a - b) for a, b in pairs) > 10 * TOLERANCE


# Around a block edge, the window, and a window and a block.
EDGES = [n + d for n in (BLOCK, WINDOW, WINDOW + BLOCK, 2 * WINDOW) for d in (-1, 0, 1)]


@pytest.mark.parametrize("common", [*EDGES, 600, 799])
def test_prompt_edges_are_exact_at_every_frontier(lab: Lab, common: int) -> None:
    """The old prompt is left at ``common``, after 3, 6 and 13 quanta and while it decodes."""
    prompt = LONG[:common] + TAIL
    expected = clean_run(lab, prompt)
    for steps in (3, 6, 13):
        _fresh(lab)
        after_prefill_steps(lab, LONG, steps)
        stream = successor(lab, prompt)
        want = min(common, steps * QUANTUM) // BLOCK * BLOCK
        assert (steps, stream.cached_tokens) == (steps, want)
        assert distance(stream, expected) < TOLERANCE, steps
        lab.clean()
        lab.overwrite_blocks(range(1, 200))
    _fresh(lab)
    after_outputs(lab, LONG, 3)
    stream = successor(lab, prompt)
    assert stream.cached_tokens == common // BLOCK * BLOCK
    assert distance(stream, expected) < TOLERANCE


@pytest.mark.parametrize("prompt", [BLOCK - 1, WINDOW - 20, WINDOW, WINDOW + 1, 500])
@pytest.mark.parametrize("outputs", [1, 31, 33, 70])
def test_output_edges_are_exact(lab: Lab, prompt: int, outputs: int) -> None:
    """The successor's context goes on from the old output, within and beyond the window."""
    old = after_outputs(lab, LONG[:prompt], outputs)
    context = LONG[:prompt] + old.tokens
    stream = successor(lab, context + TAIL)
    written = len(context) - 1  # the last token's KV is not there yet
    assert stream.cached_tokens == written // BLOCK * BLOCK
    inherited = stream.cached_tokens
    assert distance(stream, clean_run(lab, context + TAIL)) < TOLERANCE, inherited


def test_random_lengths_are_exact_in_every_trial(lab: Lab) -> None:
    """Prompt, progress and common prefix drawn at random, half of them next to an edge."""
    rng = random.Random(20261130)
    for number in range(25):
        total = rng.randint(40, 880)
        edge = rng.choice([BLOCK, WINDOW, WINDOW + BLOCK, 512]) + rng.randint(-2, 2)
        common = min(total, edge if rng.random() < 0.5 else rng.randint(1, total))
        prompt = LONG[:common] + prompt_tokens(rng.randint(1, 70), number)
        expected = clean_run(lab, prompt)
        _fresh(lab)
        if rng.random() < 0.5:
            after_prefill_steps(lab, LONG[:total], rng.randint(1, total // QUANTUM + 1))
        else:
            after_outputs(lab, LONG[:total], rng.randint(1, 40))
        stream = successor(lab, prompt)
        trial = (number, total, common, len(prompt), stream.cached_tokens)
        assert distance(stream, expected) < TOLERANCE, trial


# --- window tails -------------------------------------------------------------------------------


def _churned(lab: Lab, common: int) -> Stream:
    """Superseded, then churn through every block that is not pinned, then the successor."""
    after_outputs(lab, LONG, 3)
    lab.fence(lab.key)
    lab.step()
    lab.limit_free_blocks(100)
    for number in range(4):
        lab.submit(f"churn-{number}", prompt_tokens(700, 600 + number), max_tokens=1)
        lab.run()
    return successor(lab, LONG[:common] + TAIL)


@pytest.mark.parametrize("common", [200, 400, 640, 900])
def test_windows_left_behind_are_pinned_too(lab: Lab, common: int) -> None:
    """Wherever the successor leaves the old context, the window before that place survives churn.

    The old request itself had given those blocks back long ago.
    """
    expected = clean_run(lab, LONG[:common] + TAIL)
    stream = _churned(lab, common)
    assert stream.cached_tokens == common // BLOCK * BLOCK
    assert distance(stream, expected) < TOLERANCE


def test_without_those_pins_the_window_is_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: only what the request itself held: cold, and still exact."""
    monkeypatch.setattr(lab.scheduler.kv, "with_windows", lambda chain, request: chain)
    expected = clean_run(lab, LONG[:400] + TAIL)
    stream = _churned(lab, 400)
    assert stream.cached_tokens == 0
    assert distance(stream, expected) < TOLERANCE


def test_a_boundary_without_its_window_would_be_seen(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: the window's pages overwritten, the successor differs."""
    common = 640
    expected = clean_run(lab, LONG[:common] + TAIL)
    after_outputs(lab, LONG, 3)
    stream = lab.submit("new", LONG[:common] + TAIL, lab.tag(lab.key), max_tokens=4)
    assert lab.certificate(lab.key)["certified_tokens"] == common
    sliding = lab.scheduler.kv.windows.index(WINDOW)
    adopted: list[kv_cache.Chain] = []
    holds = lab.scheduler.kv.holds
    monkeypatch.setattr(
        lab.scheduler.kv, "holds", lambda i, chain: (adopted.append(chain), holds(i, chain))[1]
    )
    with lab.before_forward(
        lambda: (
            lab.overwrite_blocks(
                block.block_id for block in adopted[0].blocks[sliding][-4:] if not block.is_null
            )
            if len(adopted) == 1
            else None
        )
    ):
        lab.step()
    lab.run()
    pairs = list(zip(stream.logprobs, expected.logprobs, strict=False))
    assert max(abs(a - b) for a, b in pairs) > 10 * TOLERANCE


# --- the layer stop, and bystanders --------------------------------------------------------------


class SlowSteps(StepTimes):
    """Steps as long as on a large model, so that the choice does not hang on this machine."""

    def predicted_ms(self, tokens: int) -> float | None:
        return 1000.0 * tokens


@pytest.fixture
def slow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.scheduler.steps, "times", SlowSteps())


def _stopped(lab: Lab, steps: int, layer: int) -> Stream:
    old = lab.submit("old", LONG, lab.tag(lab.key), max_tokens=50)
    for _ in range(steps):
        lab.step()
    forwards = lab.launched_steps
    with lab.at_layer(layer, lambda: lab.advance(lab.key)):
        lab.step()
    assert lab.launched_steps == forwards + 1
    report = lab.fence(lab.key)
    assert report["branch"] == "layer_stop"
    assert report["requests"][0]["frontier_tokens"] == steps * QUANTUM
    return old


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("steps", [3, 4, 9])
def test_a_half_computed_step_is_never_inherited(
    lab: Lab, slow: None, steps: int, layer: int
) -> None:
    """Stopped in a sliding or a full layer, before the window is full and long after."""
    prompt = LONG[:800] + TAIL
    expected = clean_run(lab, prompt)
    _stopped(lab, steps, layer)
    stream = successor(lab, prompt)
    assert stream.cached_tokens == steps * QUANTUM
    assert distance(stream, expected) < TOLERANCE


def test_without_unhashing_a_half_computed_step_is_inherited(
    lab: Lab, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: blocks of either group that were never written come in by their hashes."""
    prompt = LONG[:800] + TAIL
    expected = clean_run(lab, prompt)
    monkeypatch.setattr(lab.scheduler.kv, "unhash", lambda block_ids: None)
    _stopped(lab, 4, 1)
    stream = successor(lab, prompt)
    assert stream.cached_tokens == 5 * QUANTUM
    assert distance(stream, expected) > 10 * TOLERANCE


def _bystander(lab: Lab, beside: Callable[[], None] | None) -> Stream:
    lab.clean()
    stream = lab.submit("bystander", LONG[::-1][:300], lab.tag(OTHER), max_tokens=60)
    if beside is not None:
        lab.run(lambda: len(stream.tokens) >= 10)
        beside()
    lab.run()
    return stream


def _held(lab: Lab) -> tuple[object, list[str]]:
    """The bystander's blocks of the full group and of its window, and digests of their pages."""
    chain = lab.scheduler.kv.chain(lab.internal_id("bystander"), 288)
    real = tuple(b.block_id for group in chain.blocks for b in group if not b.is_null)
    return real, lab.page_digests("bystander", tokens=288)


def test_a_bystander_of_a_stopped_step_is_untouched(lab: Lab, slow: None) -> None:
    """C3: another tenant's tokens, logprobs, block ids and pages are what they are alone."""
    alone = _bystander(lab, None)

    def beside() -> None:
        before = _held(lab)
        _stopped(lab, 3, 1)
        assert _held(lab) == before
        lab.submit("new", LONG[:500] + TAIL, lab.tag(lab.key))
        lab.step()
        assert _held(lab)[1] == before[1]

    assert distance(_bystander(lab, beside), alone) < TOLERANCE

"""Speculative decoding (n-gram): drafts die at the fence, and nothing of theirs is inherited.

The engine may only say three tokens, so that the past holds what comes next: drafts are proposed in
most steps; some are accepted, some are not.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from bench.lab import prompt_tokens
from retire.engine.fence_policy import StepTimes
from retire.engine.seams import runner, safe_point
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
DRAFTS = 4  # tokens a step
BLOCK = 32
OLD = prompt_tokens(200, 41)
TAIL = prompt_tokens(40, 42)
LONG = prompt_tokens(600, 43)
BYSTANDER = prompt_tokens(100, 44)
OTHER = ScopeKey("globex", "job")
SAYS: dict[str, Any] = {"allowed_token_ids": [11, 12, 13]}
TOLERANCE = 1e-4
_NUMBERS = count()


@pytest.fixture(scope="module")
def drafting() -> Iterator[Lab]:
    """An engine that verifies up to four drafts a request and step."""
    from bench.lab import Lab

    how = {
        "method": "ngram",
        "num_speculative_tokens": DRAFTS,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    lab = Lab(max_num_seqs=4, speculative_config=how)
    yield lab
    lab.close()


@pytest.fixture
def lab(drafting: Lab) -> Iterator[Lab]:
    """Empty before, and nothing left afterwards."""
    drafting.clean()
    drafting.key = ScopeKey("acme", f"draft-{next(_NUMBERS)}")
    yield drafting
    drafting.run()
    drafting.scheduler.inheritance.expire(float("inf"))
    assert drafting.settled() == []


def distance(one: Stream, other: Stream) -> float:
    """Largest difference of a logprob; infinite when the tokens differ."""
    if one.tokens != other.tokens or not one.tokens:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def clean_run(lab: Lab, prompt: Sequence[int], **sampling: Any) -> Stream:
    """The same prompt, cold and alone, in this engine; none of its bytes stay."""
    lab.clean()
    stream = lab.submit("clean", prompt, **{**SAYS, "max_tokens": 24, **sampling})
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 400))
    return stream


def superseded_in_a_draft(lab: Lab, *, after: int = 20, blocks: bool = False) -> Stream:
    """ADVANCE while drafts of the old request are being verified; ``blocks``: beyond its last one.

    They are seen in the step itself, never assumed.
    """
    old = lab.submit("old", OLD, lab.tag(lab.key), max_tokens=300, **SAYS)
    lab.run(lambda: len(old.tokens) >= after)
    seen: list[list[int]] = []

    def event() -> None:
        drafts = lab.drafts("old")
        if not seen and drafts and (not blocks or _opens_a_block(lab, drafts)):
            seen.append(drafts)
            lab.advance(lab.key)

    with lab.during_forward(event):
        lab.run(lambda: bool(seen) or len(old.tokens) > 280)
    assert seen, "no step had drafts in flight"
    return old


def _opens_a_block(lab: Lab, drafts: list[int]) -> bool:
    """The accepted tokens end in a block, and the drafts in the next one."""
    known = lab.request("old").num_tokens
    return known % BLOCK == 0 and bool(drafts)


def test_drafts_are_accepted_and_rejected(lab: Lab) -> None:
    """What the other tests stand on: steps with drafts, more than one token from some, not all."""
    old = lab.submit("old", OLD, lab.tag(lab.key), max_tokens=100, **SAYS)
    made: list[tuple[int, int]] = []
    while lab.scheduler.has_requests():
        before = len(old.tokens)
        lab.step()
        if drafts := lab.drafts("old"):
            made.append((len(drafts), len(old.tokens) - before - 1))
    accepted, proposed = sum(n for _, n in made), sum(n for n, _ in made)
    assert len(made) > 10
    assert 0 < accepted < proposed


def test_another_prefix_moves_the_logprobs(lab: Lab) -> None:
    """The power of the comparisons below, in this mode."""
    expected = clean_run(lab, OLD[:192] + TAIL)
    again = clean_run(lab, OLD[:192] + TAIL)
    other = clean_run(lab, prompt_tokens(192, 99) + TAIL)
    assert distance(expected, again) < TOLERANCE
    both = zip(expected.logprobs, other.logprobs, strict=False)
    assert max(abs(a - b) for a, b in both) > 1000 * TOLERANCE


@pytest.mark.parametrize("after", [3, 20, 60])
def test_a_successor_of_drafting_work_is_exact(lab: Lab, after: int) -> None:
    """Tokens and logprobs of a clean run, with the old prompt's KV inherited."""
    expected = clean_run(lab, OLD[:195] + TAIL)
    old = superseded_in_a_draft(lab, after=after)
    told = len(old.tokens)
    stream = lab.submit("new", OLD[:195] + TAIL, lab.tag(lab.key), max_tokens=24, **SAYS)
    lab.run()
    assert stream.cached_tokens == 192
    assert distance(stream, expected) < TOLERANCE
    assert (len(old.tokens), old.stop_reason) == (told, "superseded")


def test_a_successor_inherits_accepted_output_and_not_one_draft(lab: Lab) -> None:
    """The old output is context now: its accepted tokens are inherited, exactly."""
    old = superseded_in_a_draft(lab, after=80)
    context = OLD + old.tokens
    stream = lab.submit("new", context + TAIL, lab.tag(lab.key), max_tokens=24, **SAYS)
    lab.run()
    assert stream.cached_tokens == len(context) // BLOCK * BLOCK
    inherited = stream.cached_tokens
    assert inherited > len(OLD)
    assert distance(stream, clean_run(lab, context + TAIL)) < TOLERANCE


def test_the_frontier_counts_no_unverified_draft(lab: Lab) -> None:
    """What the step verified was not taken: it ends where the known tokens end."""
    old = superseded_in_a_draft(lab)
    frontier = lab.fence(lab.key)["requests"][0]["frontier_tokens"]
    assert frontier <= len(OLD) + len(old.tokens)
    assert frontier >= len(OLD) + len(old.tokens) - BLOCK  # a step given up takes its block along


def test_counted_drafts_would_be_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: the step's drafts taken for written tokens, the frontier is too far."""
    monkeypatch.setattr(safe_point.SafePoints, "_decide", lambda self, plan: None)
    frontier = type(lab.scheduler)._frontier

    def with_drafts(self: Any, request: Any) -> int:
        drafts = self._step.scheduled_spec_decode_tokens.get(request.request_id, ())
        return frontier(self, request) + len(drafts)

    monkeypatch.setattr(type(lab.scheduler), "_frontier", with_drafts)
    old = superseded_in_a_draft(lab)
    told = lab.fence(lab.key)["requests"][0]["frontier_tokens"]
    assert told > len(OLD) + len(old.tokens)


def test_a_block_that_only_drafts_have_reached_is_never_certified(lab: Lab) -> None:
    """Drafts open a new block: it has no hash, no pin, and the certificate does not name it."""
    old = superseded_in_a_draft(lab, blocks=True)
    pins = lab.scheduler.inheritance.ledger.pins.values()
    pinned = {block_id for pin in pins for block_id in pin.block_ids}
    assert 0 < len(pinned) <= (len(OLD) + len(old.tokens)) // BLOCK
    hashed = {
        block.block_id
        for block in lab.scheduler.kv_cache_manager.block_pool.blocks
        if block.block_hash is not None and block.ref_cnt
    }
    assert hashed <= pinned
    context = OLD + old.tokens
    stream = lab.submit("new", context + TAIL, lab.tag(lab.key), max_tokens=24, **SAYS)
    assert lab.certificate(lab.key)["certified_tokens"] <= len(context) // BLOCK * BLOCK
    lab.run()
    assert distance(stream, clean_run(lab, context + TAIL)) < TOLERANCE


def _bystander(lab: Lab, beside: Callable[[Stream], None] | None) -> Stream:
    """Another tenant's request, alone or with something ``beside`` it once it decodes."""
    lab.clean()
    stream = lab.submit("bystander", BYSTANDER, lab.tag(OTHER), max_tokens=80, **SAYS)
    if beside is not None:
        lab.run(lambda: len(stream.tokens) >= 10)
        beside(stream)
    lab.run()
    return stream


def test_a_bystander_that_drafts_is_untouched(lab: Lab) -> None:
    """C3: its tokens, logprobs, block ids and pages are what they are alone."""
    alone = _bystander(lab, None)

    def beside(stream: Stream) -> None:
        before = _blocks(lab), lab.page_digests("bystander", tokens=96)
        superseded_in_a_draft(lab)
        lab.submit("new", OLD[:195] + TAIL, lab.tag(lab.key), **SAYS)
        for _ in range(3):
            lab.step()
        assert _blocks(lab) == before[0]
        assert lab.page_digests("bystander", tokens=96) == before[1]

    assert distance(_bystander(lab, beside), alone) < TOLERANCE


def _blocks(lab: Lab) -> tuple[tuple[int, ...], ...]:
    return lab.scheduler.kv.chain(lab.internal_id("bystander"), 96).block_ids()


# --- the layer stop ---------------------------------------------------------------------------


class SlowSteps(StepTimes):
    """Steps as long as on a large model, so that the choice does not hang on this machine."""

    def predicted_ms(self, tokens: int) -> float | None:
        return 1000.0 * tokens


@pytest.fixture
def slow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.scheduler.steps, "times", SlowSteps())


def stopped_beside(lab: Lab, bystander: Stream) -> None:
    """A long prefill is stopped after one of four layers, drafts of a survivor in the same step."""
    old = lab.submit("old", LONG, lab.tag(lab.key), max_tokens=50, **SAYS)
    for _ in range(2):
        lab.step()
    seen: list[list[int]] = []

    def event() -> None:
        seen.append(lab.drafts("bystander"))
        lab.advance(lab.key)

    for _ in range(5):  # of the next steps, one in which the survivor has drafts
        if lab.request("bystander").spec_token_ids:
            break
        lab.step()
    told = len(bystander.tokens)
    with lab.at_layer(1, event):
        lab.step()
    assert seen[0], "the survivor had no drafts in the stopped step"
    assert len(bystander.tokens) == told, "the step was not stopped"
    assert not old.tokens
    assert lab.request("bystander").spec_token_ids == []


def test_survivors_of_a_stopped_step_lose_their_drafts_and_nothing_else(
    lab: Lab, slow: None
) -> None:
    """Rolled back past the drafts, they go on: same tokens, logprobs, blocks and pages."""
    alone = _bystander(lab, None)

    def beside(stream: Stream) -> None:
        before = _blocks(lab), lab.page_digests("bystander", tokens=96)
        stopped_beside(lab, stream)
        assert (_blocks(lab), lab.page_digests("bystander", tokens=96)) == before

    assert distance(_bystander(lab, beside), alone) < TOLERANCE


def test_survivors_whose_drafts_stay_counted_never_speak_again(
    lab: Lab, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: one draft left in the count, and there is nothing left to compute."""
    roll_back = type(lab.scheduler)._roll_back

    def short(self: Any, step: Any) -> None:
        roll_back(self, step)
        for request_id in step.scheduled_spec_decode_tokens:
            if request_id in self.requests:
                self.requests[request_id].num_computed_tokens += 1

    monkeypatch.setattr(type(lab.scheduler), "_roll_back", short)
    stream = lab.submit("bystander", BYSTANDER, lab.tag(OTHER), max_tokens=80, **SAYS)
    lab.run(lambda: len(stream.tokens) >= 10)
    stopped_beside(lab, stream)
    told = len(stream.tokens)
    for _ in range(10):
        lab.step()
    assert len(stream.tokens) == told
    lab.engine.abort_request(["bystander"])


def test_a_stopped_step_offers_no_old_drafts(lab: Lab, slow: None) -> None:
    """The worker's drafts of the step before are kept by row: after a stop they are nobody's."""
    taken: list[Any] = []
    take = lab.core.model_executor.take_draft_token_ids
    lab.core.model_executor.take_draft_token_ids = lambda: taken.append(take()) or taken[-1]
    try:
        _bystander(lab, lambda stream: (stopped_beside(lab, stream), taken.append("stop")))
    finally:
        del lab.core.model_executor.take_draft_token_ids
    assert taken[taken.index("stop") - 1] is None


def test_only_the_n_gram_drafter_may_be_stopped(lab: Lab) -> None:
    """A drafter with a model has KV of its own in the step."""
    from types import SimpleNamespace

    config = lab.scheduler.vllm_config
    assert runner.may_abandon(config)
    other = SimpleNamespace(
        parallel_config=config.parallel_config,
        kv_transfer_config=None,
        model_config=config.model_config,
        speculative_config=SimpleNamespace(method="eagle"),
    )
    assert not runner.may_abandon(other)

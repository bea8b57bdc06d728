"""FENCE inside a step: it ends at a safe point, and nothing that it did not write is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.engine.fence_policy import Branch, StepTimes
from retire.engine.seams import safe_point
from retire.mailbox import Overlaps
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
OLD = prompt_tokens(600, 21)
NEW = OLD[:500] + prompt_tokens(60, 22)
LAYERS = 4


class SlowSteps(StepTimes):
    """Steps as long as on a large model, so that the choice does not hang on this machine."""

    def predicted_ms(self, tokens: int) -> float | None:
        return 1000.0 * tokens


@pytest.fixture(autouse=True)
def slow_steps(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.scheduler.steps, "times", SlowSteps())


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The safe points reached since the last ``clear()``, by layer name."""
    seen: list[object] = []
    reach = safe_point.SafePoints.reach

    def counted(self: safe_point.SafePoints, name: object) -> None:
        if self._plan is not None and name != self._layer_name:
            seen.append(name)
        reach(self, name)

    monkeypatch.setattr(safe_point.SafePoints, "reach", counted)
    return seen


def _branches(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[Branch | None]:
    """What the scheduler is told of each step from now on."""
    told: list[Branch | None] = []
    fence = lab.scheduler._fence_step
    monkeypatch.setattr(
        lab.scheduler,
        "_fence_step",
        lambda *args: (told.append(lab.scheduler._fence.branch), fence(*args))[1],
    )
    return told


def _prefill(lab: Lab, request_id: str = "old") -> Stream:
    """Three quanta of 64 tokens are written."""
    stream = lab.submit(request_id, OLD, lab.tag(lab.key))
    for _ in range(3):
        lab.step()
    return stream


def test_the_step_ends_at_the_next_layer(
    lab: Lab, layers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Superseded after two of four layers: the third is reached, the fourth is not."""
    _prefill(lab)
    told = _branches(lab, monkeypatch)
    layers.clear()
    with lab.at_layer(2, lambda: lab.advance(lab.key)):
        lab.step()
    assert len(set(layers)) == 3 < LAYERS
    assert told == [Branch.LAYER_STOP]
    report = lab.fence(lab.key)
    assert report["requests"][0]["frontier_tokens"] == 192
    lab.run()


def test_seam_closed_every_layer_runs(
    lab: Lab, layers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: without the decision the whole step is computed."""
    _prefill(lab)
    monkeypatch.setattr(safe_point.SafePoints, "_decide", lambda self, plan: None)
    layers.clear()
    with lab.at_layer(2, lambda: lab.advance(lab.key)):
        lab.step()
    assert len(set(layers)) == LAYERS
    lab.run()


def _successor(lab: Lab, stop: Callable[[], None]) -> Stream:
    _prefill(lab)
    stop()
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    return stream


def _stop_after(lab: Lab, layer: int) -> None:
    with lab.at_layer(layer, lambda: lab.advance(lab.key)):
        lab.step()


def _clean(lab: Lab) -> Stream:
    stream = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 400))  # no bytes of the clean run may help
    return stream


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_half_computed_step_is_never_inherited(lab: Lab, layer: int) -> None:
    """Some of its layers were written, all of its blocks were hashed: none is adopted."""
    expected = _clean(lab)
    stream = _successor(lab, lambda: _stop_after(lab, layer))
    assert stream.cached_tokens == 192
    assert stream.tokens == expected.tokens
    assert stream.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_without_unhashing_a_half_computed_step_is_inherited(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: un-hashing off, the successor reads layers that were never written."""
    expected = _clean(lab)
    monkeypatch.setattr(lab.scheduler.kv, "unhash", lambda block_ids: None)
    stream = _successor(lab, lambda: _stop_after(lab, 1))
    assert stream.cached_tokens == 256
    assert stream.logprobs != pytest.approx(expected.logprobs, abs=1e-2)


def test_a_step_that_the_successor_shares_is_finished(
    lab: Lab, layers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its whole chunk inside the common prefix, letting the step end is cheaper."""
    _prefill(lab)
    told = _branches(lab, monkeypatch)
    slot = lab.tag(lab.key).slot
    layers.clear()
    with lab.at_layer(2, lambda: (_say(lab, slot, 500), lab.advance(lab.key))):
        lab.step()
    assert len(set(layers)) == LAYERS
    assert told == [Branch.FINISH]
    assert lab.fence(lab.key)["requests"][0]["frontier_tokens"] == 256
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == 256


def test_a_step_beyond_the_shared_prefix_is_stopped(lab: Lab, layers: list[object]) -> None:
    """NEGATIVE CONTROL: the same word, but the chunk lies past the common prefix."""
    _prefill(lab)
    slot = lab.tag(lab.key).slot
    layers.clear()
    with lab.at_layer(2, lambda: (_say(lab, slot, 192), lab.advance(lab.key))):
        lab.step()
    assert len(set(layers)) < LAYERS
    lab.run()


def _say(lab: Lab, slot, tokens: int) -> None:
    Overlaps.attach(lab.mailbox.path, writable=True).put(slot, tokens)


@pytest.mark.parametrize("tagged", [True, False], ids=["another tenant", "no scope"])
def test_survivors_of_a_stopped_step_run_again_and_differ_in_nothing(
    lab: Lab, layers: list[object], tagged: bool
) -> None:
    """C3: a bystander that decodes beside the stopped prefill: same tokens, logprobs and pages."""
    prompt, other = prompt_tokens(200, 5), ScopeKey("globex", "job")
    tag = (lambda: lab.tag(other)) if tagged else (lambda: None)
    alone = lab.submit("alone", prompt, tag(), max_tokens=40)
    lab.run()
    lab.clean()
    beside = lab.submit("beside", prompt, tag(), max_tokens=40)
    lab.run(lambda: len(beside.tokens) >= 3)
    _prefill(lab)
    digests = lab.page_digests("beside", tokens=192)
    layers.clear()
    with lab.at_layer(1, lambda: lab.advance(lab.key)):
        lab.step()
    assert len(set(layers)) < LAYERS, "the step was not stopped"
    assert lab.page_digests("beside", tokens=192) == digests
    lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert beside.tokens == alone.tokens
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_survivor_in_prefill_is_rolled_back(lab: Lab) -> None:
    """Its chunk of the stopped step is computed again, and only then inherited by anybody."""
    mine, other = prompt_tokens(40, 6), ScopeKey("globex", "job")
    alone = lab.submit("alone", mine, lab.tag(other), max_tokens=5)
    lab.run()
    lab.clean()
    _prefill(lab)
    beside = lab.submit("beside", mine, lab.tag(other), max_tokens=5)
    with lab.at_layer(1, lambda: lab.advance(lab.key)):
        lab.step()
    lab.run()
    assert beside.tokens == alone.tokens
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


@pytest.mark.parametrize("reads", [True, False], ids=["prompt logprobs", "control"])
def test_a_bystander_that_reads_its_prompt_is_not_run_again(lab: Lab, reads: bool) -> None:
    """Its log probabilities are gathered step by step; without them the same step is stopped."""
    mine = prompt_tokens(40, 6)
    _prefill(lab)
    lab.submit("beside", mine, max_tokens=3, prompt_logprobs=1 if reads else None)
    with lab.at_layer(1, lambda: lab.advance(lab.key)):
        lab.step()
    assert lab.request("beside").num_computed_tokens == (40 if reads else 0)
    lab.run()

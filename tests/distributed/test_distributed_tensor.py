"""TP=2 on the CPU: both ranks stop at one layer that they agree on, and both sign the receipt."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from bench.lab import prompt_tokens
from retire.engine import participants
from retire.engine.fence_policy import StepTimes
from retire.mailbox.progress import P_LAYER_LAUNCHED, P_STEP, P_STEP_ENDED, P_STOPPED_AT
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.lab import Stream
    from bench.lab_ranks import RanksLab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
LAYERS, QUANTUM = 12, 64
TOLERANCE = 1e-4
OLD = prompt_tokens(600, 61)
NEW = OLD[:500] + prompt_tokens(40, 62)
OTHER = ScopeKey("globex", "job")
_NUMBERS = count()


class SlowSteps(StepTimes):
    """Steps as long as on a large model, so that the choice does not hang on this machine."""

    def predicted_ms(self, tokens: int) -> float | None:
        return 1000.0 * tokens


@pytest.fixture(scope="module")
def ranks() -> Iterator[RanksLab]:
    """Two tensor parallel ranks, each a process, twelve layers."""
    from bench.lab_ranks import RanksLab

    lab = RanksLab(tp=2, max_num_seqs=4)
    lab.scheduler.steps.times = SlowSteps()
    yield lab
    lab.close()


@pytest.fixture
def lab(ranks: RanksLab) -> Iterator[RanksLab]:
    """Empty before, and nothing left afterwards."""
    ranks.clean()
    ranks.key = ScopeKey("acme", f"ranks-{next(_NUMBERS)}")
    yield ranks
    ranks.run()
    ranks.scheduler.inheritance.expire(float("inf"))
    assert ranks.settled() == []


def distance(one: Stream, other: Stream) -> float:
    """Largest difference of a logprob; infinite when the tokens differ."""
    if one.tokens != other.tokens or not one.tokens:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def clean_run(lab: RanksLab, prompt: Sequence[int] = NEW) -> Stream:
    """Cold and alone; none of its bytes stay on either rank."""
    lab.clean()
    stream = lab.submit("clean", prompt)
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 100))
    return stream


def prefill(lab: RanksLab, steps: int = 3) -> Stream:
    stream = lab.submit("old", OLD, lab.tag(lab.key), max_tokens=60)
    for _ in range(steps):
        lab.step()
    return stream


def successor(lab: RanksLab) -> Stream:
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    return stream


def words(lab: RanksLab, word: int) -> list[int]:
    """What each rank wrote on its line of the mailbox."""
    return [lab.lines.line(rank)[word] for rank in (0, 1)]


def test_two_processes_compute_every_layer(lab: RanksLab) -> None:
    """What the rest stands on: two workers, each of which records the whole step."""
    prefill(lab, 1)
    assert len(set(lab.pids)) == 2
    assert [one["layers"] for one in lab.reports()] == [LAYERS, LAYERS]
    assert words(lab, P_LAYER_LAUNCHED) == [LAYERS, LAYERS]


@pytest.mark.parametrize(("rank", "layer"), [(0, 1), (1, 1), (0, 6), (1, 7)])
def test_both_ranks_stop_at_the_agreed_layer(lab: RanksLab, rank: int, layer: int) -> None:
    """Superseded in mid-prefill, whichever rank notices it; the successor is exact."""
    expected = clean_run(lab)
    prefill(lab)
    with lab.at_layer_of(rank, layer, lambda: lab.advance(lab.key)):
        lab.step()
    agreed = lab.lines.line(0)[P_STOPPED_AT]
    assert layer < agreed <= layer + 4
    stopped = {"layers": agreed, "branch": "layer_stop"}
    assert lab.reports() == [stopped, stopped]
    assert words(lab, P_LAYER_LAUNCHED) == [agreed, agreed]
    report = lab.fence(lab.key)
    assert report["requests"][0]["frontier_tokens"] == 3 * QUANTUM
    signed = [(p["pp_rank"], p["tp_rank"], p["closed"]) for p in report["participants"]]
    assert signed == [(0, 0, True), (0, 1, True)]
    stream = successor(lab)
    assert stream.cached_tokens == 3 * QUANTUM
    assert distance(stream, expected) < TOLERANCE


def test_superseded_in_mid_decode_the_successor_is_exact(lab: RanksLab) -> None:
    """The old output ends where it was, and its KV is inherited on both ranks."""
    expected = clean_run(lab)
    old = prefill(lab, 0)
    lab.run(lambda: len(old.tokens) >= 5)
    told = len(old.tokens)
    lab.advance(lab.key)
    stream = successor(lab)
    assert (len(old.tokens), old.stop_reason) == (told, "superseded")
    assert stream.cached_tokens == 480
    assert distance(stream, expected) < TOLERANCE


def test_pages_of_one_rank_alone_decide(lab: RanksLab) -> None:
    """NEGATIVE CONTROL: what is inherited is overwritten on the ranks: the successor differs."""
    expected = clean_run(lab)
    old = prefill(lab, 0)
    lab.run(lambda: len(old.tokens) >= 2)
    lab.advance(lab.key)
    lab.fence(lab.key)
    pins = lab.scheduler.inheritance.ledger.pins.values()
    lab.overwrite_blocks(sorted({block_id for pin in pins for block_id in pin.block_ids})[:8])
    stream = successor(lab)
    assert stream.cached_tokens == 480
    assert distance(stream, expected) > 100 * TOLERANCE


def _bystander(lab: RanksLab, beside: Callable[[], None] | None) -> Stream:
    lab.clean()
    stream = lab.submit("bystander", OLD[::-1][:200], lab.tag(OTHER), max_tokens=30)
    if beside is not None:
        lab.run(lambda: len(stream.tokens) >= 5)
        beside()
    lab.run()
    return stream


def test_a_bystander_of_a_stopped_step_is_untouched(lab: RanksLab) -> None:
    """C3: another tenant's tokens, logprobs, block ids and pages, on both ranks."""
    alone = _bystander(lab, None)

    def held() -> tuple[Any, list[str]]:
        chain = lab.scheduler.kv.chain(lab.internal_id("bystander"), 192)
        return chain.block_ids(), lab.page_digests("bystander", tokens=192)

    def beside() -> None:
        prefill(lab, 2)
        before = held()
        with lab.at_layer_of(0, 2, lambda: lab.advance(lab.key)):
            lab.step()
        assert [one["branch"] for one in lab.reports()] == ["layer_stop"] * 2
        lab.submit("new", NEW, lab.tag(lab.key))
        lab.step()
        assert held() == before

    assert distance(_bystander(lab, beside), alone) < TOLERANCE


def test_a_rank_that_stops_on_its_own_leaves_the_other_behind(
    ranks: RanksLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL, the last test: it ruins the engine. The receipt says which rank is open.

    Rank 0 stops where it is told; rank 1 has passed that place and waits in an all-reduce for ever.
    """
    monkeypatch.setattr(participants, "STRAGGLER_S", 2.0)
    ranks.clean()
    ranks.key = ScopeKey("acme", "alone")
    prefill(ranks)
    ranks.workers(_lab_workers().disagree)
    with ranks.at_layer_of(0, 5, lambda: (_until_ahead(ranks, 6), ranks.advance(ranks.key))):
        ranks.step()
    step = ranks.lines.line(0)[P_STEP_ENDED]
    assert words(ranks, P_STEP) == [step, step]
    assert ranks.lines.line(1)[P_STEP_ENDED] < step
    assert [p["closed"] for p in ranks.fence(ranks.key)["participants"]] == [True, False]


def _lab_workers() -> Any:
    from bench import lab_workers

    return lab_workers


def _until_ahead(lab: RanksLab, layer: int) -> None:
    """Rank 1 is past the place where rank 0 will stop."""
    import time

    deadline_s = time.monotonic() + 30
    while lab.lines.line(1)[P_LAYER_LAUNCHED] < layer:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    time.sleep(0.05)  # from its safe point into the all-reduce

"""PP=2 on the CPU: steps are not stopped, the quantum bounds the fence, every stage signs."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.lab import Stream
    from bench.lab_ranks import RanksLab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
QUANTUM, STAGES = 64, 2
TOLERANCE = 1e-4
OLD = prompt_tokens(600, 71)
NEW = OLD[:500] + prompt_tokens(40, 72)
OTHER = ScopeKey("globex", "job")
_NUMBERS = count()


@pytest.fixture(scope="module")
def stages() -> Iterator[RanksLab]:
    """Two stages, each a process."""
    from bench.lab_ranks import RanksLab

    lab = RanksLab("qwen3-tiny", pp=STAGES, max_num_seqs=4)
    yield lab
    lab.close()


@pytest.fixture
def lab(stages: RanksLab) -> Iterator[RanksLab]:
    """Empty before, and nothing left afterwards."""
    stages.clean()
    stages.key = ScopeKey("acme", f"stages-{next(_NUMBERS)}")
    yield stages
    stages.run()
    stages.scheduler.inheritance.expire(float("inf"))
    assert stages.settled() == []


def distance(one: Stream, other: Stream) -> float:
    """Largest difference of a logprob; infinite when the tokens differ."""
    if one.tokens != other.tokens or not one.tokens:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def clean_run(lab: RanksLab, prompt: Sequence[int] = NEW) -> Stream:
    """Cold and alone; none of its bytes stay in either stage."""
    lab.clean()
    stream = lab.submit("clean", prompt)
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 100))
    return stream


def computed(lab: RanksLab) -> tuple[int, int]:
    """Tokens of the old request that are scheduled, and of them those in flight."""
    request = lab.request("old")
    return request.num_computed_tokens, request.num_in_flight_tokens


@pytest.mark.parametrize("steps", [2, 4, 7])
def test_in_mid_prefill_only_what_is_in_flight_still_runs(lab: RanksLab, steps: int) -> None:
    """At most a quantum a stage after ADVANCE; its tokens are written, and inherited exactly."""
    expected = clean_run(lab)
    lab.submit("old", OLD, lab.tag(lab.key), max_tokens=60)
    for _ in range(steps):
        lab.step()
    scheduled, in_flight = computed(lab)
    assert 0 < in_flight <= STAGES * QUANTUM
    lab.advance(lab.key)
    reply = lab.fence(lab.key)
    assert not isinstance(reply, dict), "the fence did not wait for the steps in flight"
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    report = reply.result(timeout=0)
    frontier = report["requests"][0]["frontier_tokens"]
    assert scheduled - in_flight <= frontier <= scheduled  # nothing was scheduled after ADVANCE
    assert report["branch"] in (None, "quantum")
    assert stream.cached_tokens == frontier // 32 * 32
    assert distance(stream, expected) < TOLERANCE


def test_every_stage_signs_the_receipt(lab: RanksLab) -> None:
    """One participant a stage, closed by its own word."""
    old = lab.submit("old", OLD, lab.tag(lab.key), max_tokens=60)
    lab.run(lambda: len(old.tokens) >= 2)
    lab.advance(lab.key)
    lab.step()
    reply = lab.fence(lab.key)
    lab.run()
    report = reply if isinstance(reply, dict) else reply.result(timeout=0)
    signed = [(p["pp_rank"], p["tp_rank"], p["closed"]) for p in report["participants"]]
    assert signed == [(0, 0, True), (1, 0, True)]


def test_a_stage_that_has_not_ended_is_not_closed(
    lab: RanksLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: asked for a step that no stage has run, the receipt says so."""
    from retire.engine import participants

    monkeypatch.setattr(participants, "STRAGGLER_S", 0.05)
    lab.submit("old", OLD[:40], lab.tag(lab.key), max_tokens=2)
    lab.run()
    assert [rank.closed for rank in lab.scheduler.ranks()] == [True, True]
    lab.scheduler.steps.ended += 1
    assert [rank.closed for rank in lab.scheduler.ranks()] == [False, False]
    lab.scheduler.steps.ended -= 1


def test_superseded_in_mid_decode_the_successor_is_exact(lab: RanksLab) -> None:
    """The old output ends where it was; a bystander of the batch is what it is alone."""
    expected = clean_run(lab)
    alone = lab.submit("alone", OLD[::-1][:200], lab.tag(OTHER), max_tokens=30)
    lab.run()
    lab.clean()
    beside = lab.submit("beside", OLD[::-1][:200], lab.tag(OTHER), max_tokens=30)
    old = lab.submit("old", OLD, lab.tag(lab.key), max_tokens=60)
    lab.run(lambda: len(old.tokens) >= 5)
    chain = lab.scheduler.kv.chain(lab.internal_id("beside"), 192).block_ids()
    digests = lab.page_digests("beside", tokens=192)
    told = len(old.tokens)
    lab.advance(lab.key)
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    for _ in range(4):
        lab.step()
    assert lab.scheduler.kv.chain(lab.internal_id("beside"), 192).block_ids() == chain
    assert lab.page_digests("beside", tokens=192) == digests
    lab.run()
    assert (len(old.tokens), old.stop_reason) == (told, "superseded")
    assert stream.cached_tokens == 480
    assert distance(stream, expected) < TOLERANCE
    assert distance(beside, alone) < TOLERANCE

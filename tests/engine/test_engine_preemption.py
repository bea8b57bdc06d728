"""Preemption while prefixes are pinned: work goes on, pins hold or give way, nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Lab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
OLD, NEW = prompt_tokens(200, 1), prompt_tokens(200, 1)[:160] + prompt_tokens(40, 2)
PINNED = ScopeKey("acme", "pinned")
PRESSED = ScopeKey("rival", "pressed")


@pytest.fixture
def tight(lab: Lab) -> Iterator[Lab]:
    """A lab with few free blocks while a prefix is pinned; all of them back afterwards."""
    lab.clean()
    yield lab
    lab.limit_free_blocks(None)
    lab.run()
    lab.scheduler.inheritance.forget_all()
    assert lab.settled() == []


def pinned_prefix(lab: Lab) -> int:
    """Retire a decoding request of another tenant without a successor; blocks pinned."""
    old = lab.submit("old", OLD, lab.tag(PINNED), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 2)
    lab.advance(PINNED)
    return lab.fence(PINNED, {"ttl_s": 600.0})["pinned_blocks"]


def pressed(lab: Lab, *, tagged: bool) -> tuple[list[list[int]], int]:
    """Two requests that do not fit together: what they said, and how often one was preempted."""
    count = 0
    preempt = lab.scheduler._preempt_request

    def counting(*args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        return preempt(*args, **kwargs)

    lab.scheduler._preempt_request = counting
    tag = lab.tag(PRESSED) if tagged else None
    kind = "tagged" if tagged else "plain"
    streams = [
        lab.submit(f"{kind}{i}", prompt_tokens(60, 70 + i), tag, max_tokens=120) for i in range(2)
    ]
    lab.run()
    del lab.scheduler._preempt_request
    return [stream.tokens for stream in streams], count


@pytest.mark.parametrize("tagged", [True, False], ids=["scoped work", "plain work"])
def test_preempted_work_goes_on_beside_a_pinned_prefix(tight: Lab, tagged: bool) -> None:
    """Both requests end with a clean run's tokens; what is pinned stays and is inherited."""
    lab = tight
    clean, none = pressed(lab, tagged=False)
    assert none == 0
    lab.clean()
    kept = pinned_prefix(lab)
    assert kept >= 6
    lab.run()
    lab.limit_free_blocks(8)  # each needs 6 at its end: they do not fit together
    found, preempted = pressed(lab, tagged=tagged)
    assert preempted > 0, "CONTROL: there was pressure"
    assert found == clean
    assert lab.scheduler.inheritance.ledger.used("acme") == kept
    lab.limit_free_blocks(None)
    new = lab.submit("new", NEW, lab.tag(PINNED))
    lab.run()
    assert new.cached_tokens == 160


def test_a_preempted_request_that_is_superseded_leaves_a_true_record(tight: Lab) -> None:
    """Preempted, it holds nothing: the fence says so, and its successor is cold and correct."""
    lab = tight
    expected = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    old = lab.submit("old", OLD, lab.tag(lab.key), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 2)
    request = lab.request("old")
    lab.scheduler.running.remove(request)
    lab.scheduler._preempt_request(request, 0.0)
    lab.scheduler.reset_prefix_cache()  # else the cache still has it
    lab.advance(lab.key)
    report = lab.fence(lab.key)
    assert report["pinned_blocks"] == 0
    assert [r["frontier_tokens"] for r in report["requests"]] == [0]
    new = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert new.cached_tokens == 0
    assert new.logprobs == pytest.approx(expected.logprobs, abs=1e-4)

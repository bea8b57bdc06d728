"""FENCE: old work ends at a step boundary; what was not written is un-hashed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.engine.seams import runner, safe_point
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from bench.lab import Lab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
OLD = prompt_tokens(600, 11)
NEW = OLD[:500] + prompt_tokens(60, 12)


def test_a_long_prefill_of_a_scope_runs_in_quanta(lab: Lab) -> None:
    """A tagged prompt advances 64 tokens a step; an untagged one takes the whole batch budget."""
    lab.submit("tagged", OLD, lab.tag(lab.key))
    lab.step()
    assert lab.request("tagged").num_computed_tokens == 64
    lab.run()
    lab.submit("plain", OLD)
    lab.step()
    assert lab.request("plain").num_computed_tokens == 512
    lab.run()


def test_the_old_stream_ends_with_superseded_and_not_one_token_more(lab: Lab) -> None:
    """After ADVANCE the engine emits nothing of the old version but its end."""
    old = lab.submit("old", OLD[:64], lab.tag(lab.key), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 4)
    lab.advance(lab.key)
    lab.run()
    assert (len(old.tokens), old.finish_reason, old.stop_reason) == (4, "abort", "superseded")


def test_a_token_computed_before_advance_but_not_taken_yet_is_not_emitted(lab: Lab) -> None:
    """G1: ADVANCE during the step; the step's own token is dropped with its request."""
    old = lab.submit("old", OLD[:64], lab.tag(lab.key), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 4)
    with lab.during_step(lambda: lab.advance(lab.key)):
        lab.step()
    lab.run()
    assert len(old.tokens) == 4
    report = lab.fence(lab.key)
    assert report["requests"][0]["frontier_tokens"] == 64 + 4
    assert report["residual_ms"] >= 0


def test_gates_off_the_token_appears(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL of the two tests above: without the sweep late tokens come out."""
    monkeypatch.setattr(lab.scheduler, "retire_stale", lambda: None)
    monkeypatch.setattr(safe_point.SafePoints, "_decide", lambda self, plan: None)
    monkeypatch.setattr(runner.Done, "_closed", lambda self, output: output)
    old = lab.submit("old", OLD[:64], lab.tag(lab.key), max_tokens=10)
    lab.run(lambda: len(old.tokens) >= 4)
    lab.advance(lab.key)
    lab.run()
    assert len(old.tokens) > 4


def test_the_worker_itself_drops_what_was_superseded_during_the_forward(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G0: the scheduler's gate off, a token superseded in mid-forward does not come out."""
    monkeypatch.setattr(lab.scheduler, "retire_stale", lambda: None)
    old = lab.submit("old", OLD[:64], lab.tag(lab.key), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 4)
    with lab.during_forward(lambda: lab.advance(lab.key)):
        lab.step()
    assert len(old.tokens) == 4
    monkeypatch.undo()
    lab.run()
    assert (len(old.tokens), old.stop_reason) == (4, "superseded")


def test_a_step_that_acts_for_nobody_is_not_launched(lab: Lab) -> None:
    """ADVANCE between schedule and forward: no kernel runs, the frontier stays, hashes go."""
    lab.submit("old", OLD, lab.tag(lab.key))
    for _ in range(3):
        lab.step()
    launched = lab.launched_steps
    with lab.before_forward(lambda: lab.advance(lab.key)):
        lab.step()
    assert lab.launched_steps == launched
    report = lab.fence(lab.key)
    assert report["requests"][0]["frontier_tokens"] == 192
    lab.run()


def test_what_an_abandoned_step_did_not_write_is_never_inherited(lab: Lab) -> None:
    """The un-launched chunk's blocks were hashed at allocation; the successor must not see them."""
    expected = _clean(lab)
    stream = _successor_of_abandoned_step(lab)
    assert stream.cached_tokens == 192
    assert stream.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_without_unhashing_the_successor_reads_garbage(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: un-hashing off, the successor adopts unwritten blocks and differs."""
    expected = _clean(lab)
    monkeypatch.setattr(lab.scheduler.kv, "unhash", lambda block_ids: None)
    stream = _successor_of_abandoned_step(lab)
    assert stream.cached_tokens == 256
    assert stream.logprobs != pytest.approx(expected.logprobs, abs=1e-2)


def _clean(lab: Lab):
    stream = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    lab.overwrite_blocks(range(1, 400))  # no bytes of the clean run may help
    return stream


def _successor_of_abandoned_step(lab: Lab):
    lab.submit("old", OLD, lab.tag(lab.key))
    for _ in range(3):
        lab.step()
    with lab.before_forward(lambda: lab.advance(lab.key)):
        lab.step()
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    return stream


def test_a_bystander_in_the_batch_is_untouched(lab: Lab) -> None:
    """C3: another tenant's tokens, logprobs and pages are what they are without a supersede."""
    bystander_prompt = prompt_tokens(200, 5)
    other = ScopeKey("globex", "job")
    alone = lab.submit("alone", bystander_prompt, lab.tag(other), max_tokens=40)
    lab.run()
    lab.clean()
    beside = lab.submit("beside", bystander_prompt, lab.tag(other), max_tokens=40)
    lab.run(lambda: len(beside.tokens) >= 3)
    lab.submit("old", OLD, lab.tag(lab.key), max_tokens=50)
    for _ in range(4):
        lab.step()
    digests = lab.page_digests("beside", tokens=192)
    lab.advance(lab.key)
    lab.submit("new", NEW, lab.tag(lab.key))
    for _ in range(4):
        lab.step()
    assert lab.page_digests("beside", tokens=192) == digests
    lab.run()
    assert beside.tokens == alone.tokens
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_queued_request_is_retired_without_a_trace(lab: Lab) -> None:
    """Never scheduled: frontier 0, nothing pinned, and the stream ends."""
    fillers = [lab.submit(f"f{i}", OLD[:40], max_tokens=30) for i in range(4)]
    lab.step()
    old = lab.submit("old", OLD, lab.tag(lab.key))
    lab.step()
    lab.advance(lab.key)
    report = lab.fence(lab.key)
    assert report["requests"][0] | {"request_id": ""} == {
        "request_id": "",
        "state": "queued",
        "prompt_tokens": 600,
        "frontier_tokens": 0,
    }
    lab.run()
    assert (old.tokens, old.finish_reason) == ([], "abort")
    assert all(len(f.tokens) == 30 for f in fillers)


def test_supersede_of_a_finished_request_still_inherits(lab: Lab) -> None:
    """The plan ended by itself; its successor takes the cached prefix, certified."""
    lab.submit("old", OLD, lab.tag(lab.key), max_tokens=2)
    lab.run()
    lab.advance(lab.key)
    report = lab.fence(lab.key)
    assert [r["state"] for r in report["requests"]] == ["finished"]
    assert report["pinned_blocks"] > 0
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    assert lab.certificate(lab.key)["certified_tokens"] == 480
    lab.run()
    assert stream.cached_tokens == 480


def test_cancel_keeps_nothing(lab: Lab) -> None:
    """A terminal fence frees every block at once."""
    lab.submit("old", OLD, lab.tag(lab.key), max_tokens=50)
    for _ in range(4):
        lab.step()
    lab.advance(lab.key)
    assert lab.fence(lab.key, terminal=True)["pinned_blocks"] == 0
    lab.run()
    assert lab.settled() == []


@pytest.mark.parametrize("steps", [4, 14], ids=["mid-prefill", "mid-decode"])
def test_supersede_after_the_client_left_inherits_what_was_built(lab: Lab, steps: int) -> None:
    """I3: a watchdog closed the stream first; the KV already written is not lost."""
    lab.submit("old", OLD, lab.tag(lab.key), max_tokens=100)
    for _ in range(steps):
        lab.step()
    written = lab.request("old").num_computed_tokens
    lab.engine.abort_request(["old"])
    lab.run()
    lab.advance(lab.key)
    report = lab.fence(lab.key)
    assert [r["state"] for r in report["requests"]] == ["finished"]
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == min(written, 480) // 32 * 32 > 0

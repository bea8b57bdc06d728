"""Where vLLM releases differ, Retire does not: chunks, seats, queues, and what the probe takes."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.engine.seams import compat, versions
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from bench.lab import Lab
    from retire.engine.tag import Tag

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
LONG = prompt_tokens(200, 41)
QUANTUM, SEATS = 64, 4  # of the engine: see conftest.py


def _chunks(lab: Lab, tag: Tag | None) -> list[int]:
    """Tokens of each step of a prompt that is alone in the engine."""
    lab.submit("alone", LONG, tag, max_tokens=1)
    chunks: list[int] = []
    while lab.request("alone") is not None:
        lab.step()
        chunks.append(lab.in_flight.total_num_scheduled_tokens)
    return chunks


def test_the_quantum_holds_for_a_request_that_is_alone(lab: Lab) -> None:
    """0.32 lifts its own limit when nobody else waits; a successor may come at any time."""
    assert _chunks(lab, lab.tag(lab.key)) == [64, 64, 64, 8]


def test_the_quantum_holds_where_vllm_would_give_a_fair_share(lab: Lab) -> None:
    """0.32 can raise its limit to the budget over the requests: 512 of one. Put back afterwards."""
    lab.scheduler.adaptive_long_prefill_threshold = True
    try:
        assert _chunks(lab, lab.tag(lab.key)) == [64, 64, 64, 8]
        assert lab.scheduler.adaptive_long_prefill_threshold
    finally:
        lab.scheduler.adaptive_long_prefill_threshold = False
    assert lab.scheduler.scheduler_config.long_prefill_token_threshold == 0
    assert lab.scheduler.get_request_counts() == (0, 0)


def test_without_a_quantum_the_prompt_is_one_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: so it is for plain requests, and for a scope without the seam."""
    assert _chunks(lab, None) == [200]
    lab.clean()
    monkeypatch.setattr(versions, "short_chunks", lambda *_: nullcontext())
    assert _chunks(lab, lab.tag(lab.key)) == [200]


def _most_seats_taken(lab: Lab) -> int:
    """Two requests are paused while they run; five more come. How many were in `running`?"""
    lab.submit("plain-0", LONG, max_tokens=400)
    for name in ("paused-0", "paused-1"):
        lab.submit(name, LONG, lab.tag(lab.key), max_tokens=30)
    while len(lab.scheduler.running) < 3:
        lab.step()
    assert lab.core.retire_pause(lab.key.tenant, lab.key.scope, True) == 2
    for name in range(1, 6):
        lab.submit(f"plain-{name}", LONG, max_tokens=400)
    for _ in range(20):
        lab.step()
    taken = len(lab.scheduler.running)
    lab.engine.abort_request([f"plain-{name}" for name in range(6)])
    lab.core.retire_pause(lab.key.tenant, lab.key.scope, False)
    lab.run()
    return taken


def test_paused_requests_keep_their_seats(lab: Lab) -> None:
    """Nobody is admitted in their place: on their return there would be too many."""
    assert _most_seats_taken(lab) == SEATS


def test_seats_that_are_not_kept_are_given_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: left to itself, vLLM admits into the seats of the paused."""
    monkeypatch.setattr(versions, "SEATS", ())
    assert _most_seats_taken(lab) == SEATS + 2


def test_a_scheduler_with_another_side_queue_is_refused() -> None:
    """A release that renames it again is named at start, not at the first pause."""
    with pytest.raises(compat.SeamMismatch, match="has none of skipped_waiting, kv_holding"):
        versions.side_queue(SimpleNamespace(waiting=[]))


def test_the_probe_takes_what_a_tested_release_added_and_nothing_else() -> None:
    """A parameter more is a later release's; another one is unknown."""
    module, name = versions.__name__, "take_seats"
    compat.probe((compat.Symbol(module, name, ("scheduler", "count")),))
    compat.probe((compat.Symbol(module, name, ("scheduler",), added=("count",)),))
    for base, added in ((("scheduler",), ()), (("scheduler",), ("seats",)), ((), ("count",))):
        with pytest.raises(compat.SeamMismatch, match="take_seats takes"):
            compat.probe((compat.Symbol(module, name, base, added=added),))


def test_a_scope_that_was_paused_leaves_no_seat_behind(lab: Lab) -> None:
    """What was taken is given back, whatever the number of limits."""
    limits = {name: getattr(lab.scheduler, name, None) for name in versions.SEATS}
    lab.submit("paused", LONG, lab.tag(ScopeKey("acme", "seats")), max_tokens=4)
    lab.step()
    lab.core.retire_pause("acme", "seats", True)
    lab.step()
    lab.core.retire_pause("acme", "seats", False)
    lab.run()
    assert {name: getattr(lab.scheduler, name, None) for name in versions.SEATS} == limits

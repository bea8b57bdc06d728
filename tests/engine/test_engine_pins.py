"""Pins are owned, bounded by quota and lease, gone when idle (C6); a successor keeps its place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bench.lab import prompt_tokens
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
OLD = prompt_tokens(320, 21)
NEW = OLD[:300] + prompt_tokens(40, 22)


def retire_decoding(lab: Lab, key: ScopeKey, prompt: list[int] = OLD) -> None:
    """One old request of a scope, superseded while it decodes."""
    old = lab.submit(f"old-{key.tenant}-{key.scope}", prompt, lab.tag(key), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 2)
    lab.advance(key)


@pytest.fixture
def quota(lab: Lab) -> Iterator[Lab]:
    """A lab whose tenant quotas are lifted afterwards."""
    yield lab
    lab.scheduler.inheritance.ledger.quotas.clear()


def test_a_prefix_without_successor_stays_pinned_until_its_lease_ends(lab: Lab) -> None:
    """Other work cannot evict it; after the lease nothing is pinned."""
    retire_decoding(lab, lab.key)
    report = lab.fence(lab.key, {"ttl_s": 600.0})
    assert report["pinned_blocks"] == 10
    for index in range(12):  # churn well past the free part of the cache
        lab.submit(f"churn{index}", prompt_tokens(1900, 100 + index), max_tokens=1)
    lab.run()
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == 288


def test_the_lease_ends_by_itself_also_while_the_engine_is_idle(lab: Lab) -> None:
    """The tick releases an unclaimed prefix; the ledger and the pool agree."""
    retire_decoding(lab, lab.key)
    lab.fence(lab.key, {"ttl_s": 0.05})
    lab.run()
    assert lab.core.retire_tick() == 10
    time.sleep(0.06)
    assert lab.core.retire_tick() == 0
    assert lab.settled() == []


def test_quota_zero_means_a_cold_and_correct_successor(quota: Lab) -> None:
    """The refusal is explicit, nothing is inherited, the output is a clean run's."""
    lab = quota
    expected = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    lab.core.retire_quota("acme", 0)
    retire_decoding(lab, lab.key)
    report = lab.fence(lab.key)
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    outcome = lab.certificate(lab.key)
    lab.run()
    assert (report["pinned_blocks"], report["quota_left"]) == (0, 0)
    assert (outcome["certified_tokens"], outcome["stop_reason"]) == (0, "quota")
    assert outcome["inheritable_tokens"] == 300
    assert stream.cached_tokens == 0
    assert stream.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.parametrize("lost", [False, True], ids=["whole", "a block given away"])
def test_a_finished_predecessor_says_truly_what_is_left(lab: Lab, lost: bool) -> None:
    """Ended within a block, it has lost nothing; without its second block, all from there on."""
    old = lab.submit("old", NEW[:100], lab.tag(lab.key), max_tokens=3)
    lab.run()
    if lost:
        (record,) = lab.scheduler.inheritance.retained.records[lab.key]
        lab.scheduler.kv.unhash({record.chain.block_ids()[0][1]})
    lab.advance(lab.key)
    lab.submit("new", NEW[:100] + old.tokens[:2] + NEW[:50], lab.tag(lab.key))
    outcome = lab.certificate(lab.key)
    lab.run()
    told = (outcome["certified_tokens"], outcome["stop_reason"])
    assert told == ((32, "generation") if lost else (96, "first_difference"))


def test_one_tenants_pins_do_not_use_anothers_quota(quota: Lab) -> None:
    """Quotas are per tenant; a block with two owners counts once."""
    lab = quota
    lab.core.retire_quota("acme", 10)
    lab.core.retire_quota("globex", 10)
    other = ScopeKey("globex", lab.key.scope)
    retire_decoding(lab, lab.key)
    retire_decoding(lab, other)
    assert lab.fence(lab.key)["pinned_blocks"] == 10
    assert lab.fence(other)["pinned_blocks"] == 10
    third = ScopeKey("acme", "another-plan")
    retire_decoding(lab, third, prompt_tokens(320, 99))
    assert lab.fence(third)["pinned_blocks"] == 0
    assert lab.core.retire_inspect(None, None)["pinned_by_tenant"] == {"acme": 10, "globex": 10}
    lab.core.retire_release("globex", other.scope)
    lab.core.retire_release("acme", lab.key.scope)


def test_a_scope_shows_its_own_pins(quota: Lab) -> None:
    """Inspecting a scope counts what is kept for it, not what its tenant keeps elsewhere."""
    lab = quota
    neighbour = ScopeKey(lab.key.tenant, "another-plan")
    retire_decoding(lab, lab.key)
    retire_decoding(lab, neighbour, prompt_tokens(320, 99))
    kept = [lab.fence(key)["pinned_blocks"] for key in (lab.key, neighbour)]
    inspected = [lab.core.retire_inspect(k.tenant, k.scope) for k in (lab.key, neighbour)]
    assert [one["pinned_blocks"] for one in inspected] == kept
    assert lab.core.retire_inspect(lab.key.tenant, None)["pinned_blocks"] == sum(kept) > 0
    for key in (lab.key, neighbour):
        lab.core.retire_release(key.tenant, key.scope)


def test_inherit_never_starts_cold(lab: Lab) -> None:
    """A contract that forbids reuse pins nothing and reads no cache."""
    retire_decoding(lab, lab.key)
    assert lab.fence(lab.key, {"inherit": "never"})["pinned_blocks"] == 0
    stream = lab.submit("new", NEW, lab.tag(lab.key, inherit=False))
    assert lab.certificate(lab.key)["stop_reason"] == "contract"
    lab.run()
    assert stream.cached_tokens == 0


def test_batch_invariance_is_not_promised_where_the_engine_cannot_give_it(lab: Lab) -> None:
    """equivalence=batch-invariant on an ordinary engine falls back to a cold successor."""
    retire_decoding(lab, lab.key)
    assert lab.fence(lab.key, {"equivalence": "batch-invariant"})["pinned_blocks"] == 0
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == 0


def test_another_salt_or_tenant_inherits_nothing(lab: Lab) -> None:
    """I40: the same tokens under another tenant's scope are computed anew."""
    retire_decoding(lab, lab.key)
    lab.fence(lab.key)
    stranger = lab.submit("stranger", NEW, lab.tag(ScopeKey("globex", lab.key.scope)))
    lab.run()
    assert stranger.cached_tokens == 0
    heir = lab.submit("heir", NEW, lab.tag(lab.key))
    lab.run()
    assert heir.cached_tokens == 288


@pytest.mark.parametrize("tampered", ["signature", "generation", "blocks", "digest"])
def test_a_certificate_that_does_not_hold_means_a_cold_start(lab: Lab, tampered: str) -> None:
    """NEGATIVE CONTROL: digest, generation, blocks or signature wrong: recompute, still correct."""
    from dataclasses import replace

    expected = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    retire_decoding(lab, lab.key)
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    inheritance = lab.scheduler.inheritance
    internal = lab.internal_id("new")
    outcome = inheritance._outcomes[internal]
    certificate = outcome.certificate
    match tampered:
        case "signature":
            wrong = replace(certificate, signature=bytes(32))
        case "generation":
            wrong = replace(certificate, generation=certificate.generation + 1)
        case "digest":
            wrong = replace(certificate, token_digest=bytes(32))
        case _:
            wrong = replace(certificate, blocks=((1, *certificate.blocks[0][1:]),))
    inheritance._outcomes[internal] = replace(outcome, certificate=wrong)
    lab.overwrite_blocks(certificate.blocks[0])  # adopting them would show
    lab.scheduler.kv.unhash(set(certificate.blocks[0]))
    lab.run()
    assert stream.cached_tokens == 0
    assert stream.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_pins_give_way_when_nothing_else_can_run(lab: Lab) -> None:
    """I27: unclaimed prefixes never block live work for good; the oldest lease yields first."""
    held = 0
    for index in range(5):
        key = ScopeKey("acme", f"hoard-{index}")
        retire_decoding(lab, key, prompt_tokens(2000, 300 + index))
        lab.fence(key, {"ttl_s": 600.0})
        held += 62
    lab.limit_free_blocks(40)
    stream = lab.submit("live", prompt_tokens(1900, 999), max_tokens=2)
    lab.run()
    assert len(stream.tokens) == 2
    lab.limit_free_blocks(None)
    for index in range(5):
        lab.core.retire_release("acme", f"hoard-{index}")


def test_the_successor_takes_the_predecessors_place_in_the_queue(lab: Lab) -> None:
    """A revision does not send the agent to the back of the line."""
    old = lab.submit("old", OLD[:40], lab.tag(lab.key), max_tokens=200)
    fillers = [lab.submit(f"f{i}", OLD[:40], max_tokens=60) for i in range(3)]
    lab.run(lambda: len(old.tokens) >= 1)
    queued = [lab.submit(f"q{i}", prompt_tokens(40, 50 + i), max_tokens=60) for i in range(4)]
    lab.advance(lab.key)
    new = lab.submit("new", [*OLD[:40], 77, 78], lab.tag(lab.key), max_tokens=4)
    lab.run(lambda: bool(new.tokens))
    assert [s.request_id for s in queued if s.tokens] == []
    lab.run()
    assert all(len(s.tokens) == 60 for s in (*fillers, *queued))


def test_superseding_a_queued_request_does_not_jump_the_line(lab: Lab) -> None:
    """A successor takes the place its predecessor had, not a better one."""
    fillers = [lab.submit(f"f{i}", OLD[:40], max_tokens=30) for i in range(4)]
    lab.step()
    first = lab.submit("first", prompt_tokens(40, 61), max_tokens=30)
    lab.submit("old", prompt_tokens(40, 62), lab.tag(lab.key), max_tokens=30)
    last = lab.submit("last", prompt_tokens(40, 63), max_tokens=30)
    lab.advance(lab.key)
    new = lab.submit("new", prompt_tokens(40, 64), lab.tag(lab.key), max_tokens=30)
    order = [r.request_id.rsplit("-", 1)[0] for r in lab.scheduler.waiting]
    assert order == ["first", "new", "last"]
    lab.run()
    assert all(len(s.tokens) == 30 for s in (*fillers, first, last, new))


def test_pause_stops_the_work_and_resume_goes_on_exactly(lab: Lab) -> None:
    """A paused scope keeps blocks and authority; the engine sleeps; output goes on where it was."""
    whole = lab.submit("whole", OLD, lab.tag(lab.key), max_tokens=20)
    lab.run()
    lab.clean()
    stream = lab.submit("paused", OLD, lab.tag(lab.key), max_tokens=20)
    lab.run(lambda: len(stream.tokens) >= 5)
    assert lab.core.retire_pause(lab.key.tenant, lab.key.scope, True) == 1
    assert not lab.scheduler.has_unfinished_requests()
    beside = lab.submit("beside", OLD[:50], max_tokens=5)
    lab.run(lambda: len(beside.tokens) == 5)
    assert len(stream.tokens) == 5
    lab.core.retire_pause(lab.key.tenant, lab.key.scope, False)
    lab.run()
    assert stream.tokens == whole.tokens


def test_a_chain_of_revisions_before_any_of_them_speaks(lab: Lab) -> None:
    """Eight supersedes in a row: every intermediate dies, the last one inherits and is exact."""
    expected = lab.submit("clean", NEW)
    lab.run()
    lab.clean()
    retire_decoding(lab, lab.key)
    middles: list[Stream] = []
    for index in range(7):
        middles.append(lab.submit(f"m{index}", OLD[: 200 + index], lab.tag(lab.key)))
        lab.advance(lab.key)
    last = lab.submit("last", NEW, lab.tag(lab.key))
    lab.run()
    assert all(m.tokens == [] and m.finish_reason == "abort" for m in middles)
    assert last.cached_tokens == 288
    assert last.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_a_cache_reset_voids_what_was_kept(lab: Lab) -> None:
    """After reset_prefix_cache no certificate of before holds, and the reset is not refused."""
    retire_decoding(lab, lab.key)
    lab.fence(lab.key, {"ttl_s": 600.0})
    lab.run()
    assert lab.scheduler.reset_prefix_cache()
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    lab.run()
    assert stream.cached_tokens == 0


def test_the_certificate_is_there_before_the_step_that_runs_its_successor(lab: Lab) -> None:
    """Asked in advance, ALIGN answers at admission; also for a successor that never comes."""
    retire_decoding(lab, lab.key)
    version = lab.versions[lab.key]
    where = (lab.key.tenant, lab.key.scope, version.term, version.epoch)
    answer = lab.core.retire_expect(*where)
    assert not answer.done()
    stream = lab.submit("new", NEW, lab.tag(lab.key))
    assert answer.result(timeout=0)["certified_tokens"] == 288
    assert stream.tokens == []
    assert lab.core.retire_expect(*where)["request_id"].startswith("new")
    lab.run()
    lab.advance(lab.key)
    never = lab.core.retire_expect(*where[:3], where[3] + 1)
    lab.core.retire_release(lab.key.tenant, lab.key.scope)
    assert never.result(timeout=0)["stop_reason"] == "no_predecessor"

"""The DRAM tier on a real engine: capacity comes back, and what is restored is exact (C2, C6)."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

from dram_scene import (
    CERTIFIED,
    DRAM,
    NEW,
    OLD,
    TOLERANCE,
    at_rest,
    churn,
    clean_run,
    copier_of,
    distance,
    held,
    host_bytes,
    offload,
    record_of,
    retire_decoding,
    settle,
    succeed,
    tick_until,
    tier_of,
    wipe,
)

from bench.lab import prompt_tokens
from retire.engine.tier.devices import Way
from retire.engine.tier.host_tier import HostTier
from retire.engine.tier.restores import RestoreResult, Restores
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Lab, Stream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
OTHER = ScopeKey("globex", "plan-of-another")


@pytest.fixture(scope="module")
def expected(engine: Lab) -> Stream:
    """What the successor says without any predecessor."""
    return clean_run(engine, NEW)


@pytest.fixture
def dram(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A lab whose tier gives everything back afterwards."""
    tier = tier_of(lab)
    lab.core.retire_tick()  # reaches the workers
    settings, capacity = tier.settings, tier.budget.capacity
    yield lab
    monkeypatch.undo()
    tier.settings, tier.budget.capacity = settings, capacity
    tier.budget.quotas.clear()
    lab.scheduler.inheritance.ledger.quotas.clear()
    assert settle(lab) == []


def test_a_restored_successor_is_exact_after_its_blocks_were_overwritten(
    dram: Lab, expected: Stream
) -> None:
    """Offload, churn, noise in every free page; the successor's logprobs are a clean run's."""
    offload(dram, dram.key)
    churn(dram)
    wipe(dram)
    stream, told = succeed(dram, dram.key)
    assert (told["certified_tokens"], told["stop_reason"]) == (CERTIFIED, "first_difference")
    assert (told["pin"]["tier"], told["restore"]) == ("dram", "restored")
    assert stream.cached_tokens == CERTIFIED
    assert distance(stream, expected) < TOLERANCE


def test_free_blocks_come_back_when_the_copy_is_at_rest(dram: Lab) -> None:
    """Pinned while they are read, free afterwards; host bytes go the other way, and end with it."""
    with held(dram, Way.OUT):
        report = retire_decoding(dram, dram.key)
        dram.core.retire_tick()
        assert report["pinned_blocks"] == 10 == dram.baseline - dram.scheduler.kv.free_blocks
    size = copier_of(dram).row_bytes * 10
    tick_until(dram, lambda: at_rest(dram, dram.key))
    assert dram.scheduler.kv.free_blocks == dram.baseline
    assert dram.core.retire_inspect(None, None)["pinned_blocks"] == 0
    assert host_bytes(dram) == size == report["host"]["bytes"]
    succeed(dram, dram.key)
    assert host_bytes(dram) == 0


def test_what_hbm_still_holds_is_not_fetched(dram: Lab, expected: Stream) -> None:
    """Offloaded blocks nobody has taken yet are aliased at once."""
    retire_decoding(dram, dram.key)
    tick_until(dram, lambda: at_rest(dram, dram.key))
    stream, told = succeed(dram, dram.key)
    assert (stream.cached_tokens, told["restore"]) == (CERTIFIED, None)
    assert distance(stream, expected) < TOLERANCE


def test_a_successor_that_is_earlier_than_the_copy_takes_the_pinned_blocks(
    dram: Lab, expected: Stream
) -> None:
    """The offload is cancelled, HBM serves; the host memory comes back when its thread is done."""
    with held(dram, Way.OUT):
        retire_decoding(dram, dram.key)
        dram.core.retire_tick()
        stream, told = succeed(dram, dram.key)
        assert (stream.cached_tokens, told["pin"]["tier"]) == (CERTIFIED, "hbm")
        assert host_bytes(dram) > 0
    tick_until(dram, lambda: host_bytes(dram) == 0)
    assert distance(stream, expected) < TOLERANCE


def test_others_run_while_a_copy_comes_back(dram: Lab, expected: Stream) -> None:
    """The successor waits outside the queue; nobody waits for it, and its receipt waits too."""
    offload(dram, dram.key)
    with held(dram, Way.IN):
        stream = dram.submit("new", NEW, dram.tag(dram.key))
        told = dram.certificate(dram.key)
        beside = dram.submit("beside", prompt_tokens(200, 5), max_tokens=6)
        dram.run(lambda: len(beside.tokens) == 6)
        assert (stream.tokens, told.done()) == ([], False)
    dram.run()
    assert told.result(timeout=0)["certified_tokens"] == CERTIFIED
    assert distance(stream, expected) < TOLERANCE


def test_three_samples_share_one_restore(dram: Lab) -> None:
    """n=3: one transfer, and every sample aliases the same restored blocks."""
    offload(dram, dram.key)
    tokens = clean_of_sampled(dram)
    with held(dram, Way.IN):
        argmax = {"temperature": 1.0, "top_k": 1}
        stream = dram.submit("new", NEW, dram.tag(dram.key), n=3, **argmax)
        dram.step()
        assert len(tier_of(dram).restores.jobs) == 1
    dram.run()
    assert stream.cached_tokens == CERTIFIED
    assert [stream.choices[i] for i in range(3)] == [tokens] * 3


def clean_of_sampled(lab: Lab) -> list[int]:
    """Greedy tokens without touching what is at rest."""
    stream = lab.submit("plain", NEW)
    lab.run()
    wipe(lab)
    return stream.tokens


def test_restored_blocks_are_ordinary_cache_for_what_comes_later(dram: Lab) -> None:
    """Their hashes are back: another plan of the tenant finds them."""
    offload(dram, dram.key)
    succeed(dram, dram.key)
    later = dram.submit("later", NEW, dram.tag(ScopeKey(dram.key.tenant, "later-plan")))
    dram.run()
    assert later.cached_tokens is not None and later.cached_tokens >= CERTIFIED


def damage(lab: Lab, how: str) -> None:
    """Spoil the copy of the lab's scope."""
    record, copier = record_of(lab, lab.key), copier_of(lab)
    assert record.copy is not None
    extents = copier.copies[record.copy.stored.job]
    match how:
        case "one bit":
            with torch.inference_mode():
                copier.arena.segment(extents[0], len(copier.segments) - 1)[2, 100] ^= 1
        case "noise":
            with torch.inference_mode():
                for segment in range(len(copier.segments)):
                    copier.arena.segment(extents[0], segment).view(torch.float32).uniform_(-1, 1)
        case "truncated":
            copier.arena.give([extents.pop()])
        case "generation":
            record.copy.generation += 1
        case "seal":
            record.copy.seal = bytes(32)
        case _:
            raise ValueError(how)


REFUSED = {
    "one bit": ("restore", "damaged"),
    "truncated": ("restore", "damaged"),
    "generation": ("generation", "stale"),
    "seal": ("generation", "stale"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_copy_that_is_not_what_was_sealed_is_never_installed(
    dram: Lab, expected: Stream, how: str
) -> None:
    """Refused with its reason; the successor computes everything and is exact."""
    offload(dram, dram.key)
    damage(dram, how)
    stream, told = succeed(dram, dram.key)
    assert (told["stop_reason"], told["restore"]) == REFUSED[how]
    assert (told["certified_tokens"], told["pin"], stream.cached_tokens) == (0, None, 0)
    assert distance(stream, expected) < TOLERANCE


def test_without_the_check_a_damaged_copy_would_show(
    dram: Lab, expected: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: the same damage, verification switched off, another output."""
    monkeypatch.setattr(Restores, "_judge", lambda *args: RestoreResult.RESTORED)
    offload(dram, dram.key)
    damage(dram, "noise")
    stream, _ = succeed(dram, dram.key)
    assert stream.cached_tokens == CERTIFIED
    assert distance(stream, expected) > 100 * TOLERANCE


def swap_copies(lab: Lab) -> None:
    """The other tenant's record holds the copy of the lab's scope."""
    mine, theirs = record_of(lab, lab.key), record_of(lab, OTHER)
    mine.copy, theirs.copy = theirs.copy, mine.copy


def test_a_tenant_never_restores_anothers_copy(dram: Lab, expected: Stream) -> None:
    """Even if its record pointed there: the seal names its owner."""
    offload(dram, dram.key, prompt_tokens(320, 99))
    offload(dram, OTHER)
    swap_copies(dram)
    stream, told = succeed(dram, OTHER)
    assert (told["stop_reason"], told["restore"], stream.cached_tokens) == (
        "generation",
        "stale",
        0,
    )
    assert distance(stream, expected) < TOLERANCE


def test_without_the_seal_anothers_copy_would_show(
    dram: Lab, expected: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEGATIVE CONTROL: the same mistake with the seal unchecked gives another output."""
    offload(dram, dram.key, prompt_tokens(320, 99))
    offload(dram, OTHER)
    swap_copies(dram)
    monkeypatch.setattr(HostTier, "sealed", lambda self, record: record.copy is not None)
    stream, _ = succeed(dram, OTHER)
    assert stream.cached_tokens == CERTIFIED
    assert distance(stream, expected) > 100 * TOLERANCE


def test_a_copy_that_comes_late_is_not_waited_for(dram: Lab, expected: Stream) -> None:
    """Past the bound the successor computes; the blocks come back after the late transfer only."""
    tier = tier_of(dram)
    tier.settings = replace(tier.settings, restore_timeout_s=0.05)
    offload(dram, dram.key)
    with held(dram, Way.IN):
        stream, told = succeed(dram, dram.key)
        assert (told["stop_reason"], told["restore"]) == ("restore", "late")
        assert dram.scheduler.kv.free_blocks == dram.baseline - 9
        assert len(tier.restores.jobs) == 1
    tick_until(dram, lambda: not tier.busy)
    assert dram.scheduler.kv.free_blocks == dram.baseline
    assert stream.cached_tokens == 0
    assert distance(stream, expected) < TOLERANCE


@pytest.mark.parametrize("comes", [True, False], ids=["room comes", "no room comes"])
def test_a_restore_waits_for_room_within_its_bound(
    dram: Lab, expected: Stream, comes: bool
) -> None:
    """No free blocks: it begins when there are some, or is given up with its reason."""
    tier = tier_of(dram)
    tier.settings = replace(tier.settings, restore_timeout_s=30.0 if comes else 0.05)
    offload(dram, dram.key)
    dram.limit_free_blocks(4)
    stream = dram.submit("new", NEW, dram.tag(dram.key))
    told = dram.certificate(dram.key)
    dram.step()
    assert tier.restores.lacking_room
    if not comes:
        time.sleep(0.06)
        dram.step()
        assert (told.result(0)["stop_reason"], told.result(0)["restore"]) == ("restore", "no_room")
    dram.limit_free_blocks(None)
    dram.run()
    assert stream.cached_tokens == (CERTIFIED if comes else 0)
    assert distance(stream, expected) < TOLERANCE


def test_a_restore_counts_in_the_tenants_quota(dram: Lab, expected: Stream) -> None:
    """Its blocks are pins like others: over quota it is refused, and the successor starts cold."""
    offload(dram, dram.key)
    dram.core.retire_quota(dram.key.tenant, 5)
    stream, told = succeed(dram, dram.key)
    assert (told["stop_reason"], told["restore"], stream.cached_tokens) == ("quota", "quota", 0)
    assert distance(stream, expected) < TOLERANCE


@pytest.mark.parametrize("bound", ["host_bytes", "host_quota", "off"])
def test_over_the_host_budget_the_prefix_stays_in_hbm(
    dram: Lab, expected: Stream, bound: str
) -> None:
    """The refusal has a reason and says what is left; the lease holds in HBM."""
    tier, size = tier_of(dram), copier_of(dram).row_bytes
    off = tier.off
    if bound == "host_bytes":
        tier.budget.capacity = 9 * size
    elif bound == "host_quota":
        tier.budget.set_quota(dram.key.tenant, 9 * size)
    else:
        tier.off = "for this test"
    try:
        report = retire_decoding(dram, dram.key)
    finally:
        tier.off = off
    assert (report["host"]["refused"], report["host"]["bytes"]) == (bound, 0)
    assert bound == "off" or report["host"]["bytes_left"] == 9 * size
    assert report["pinned_blocks"] == 10
    wipe(dram)
    stream, told = succeed(dram, dram.key)
    assert (told["pin"]["tier"], stream.cached_tokens) == ("hbm", CERTIFIED)
    assert distance(stream, expected) < TOLERANCE


def test_a_copy_ends_with_its_lease_also_on_an_idle_engine(dram: Lab) -> None:
    """TTL: the tick gives the host bytes back; the successor then starts cold."""
    offload(dram, dram.key)
    dram.fence(dram.key, {**DRAM, "ttl_s": 0.05})
    time.sleep(0.06)
    tick_until(dram, lambda: host_bytes(dram) == 0)
    stream, told = succeed(dram, dram.key)
    assert (told["certified_tokens"], told["stop_reason"]) == (0, "generation")
    assert stream.cached_tokens == 0


def test_offload_begins_only_where_the_contract_says_so(dram: Lab) -> None:
    """Without ``tier: dram`` nothing is copied."""
    report = retire_decoding(dram, dram.key, contract={"ttl_s": 600.0})
    assert (report["host"]["bytes"], report["host"]["refused"], host_bytes(dram)) == (0, None, 0)
    assert not tier_of(dram).busy


def test_records_that_share_pages_are_copied_once(dram: Lab) -> None:
    """n=3 superseded: what the samples share physically takes host memory once."""
    argmax = {"temperature": 1.0, "top_k": 1}
    old = dram.submit("old", OLD, dram.tag(dram.key), n=3, max_tokens=100, **argmax)
    dram.run(lambda: len(old.choices.get(2, ())) >= 2)
    dram.advance(dram.key)
    report = dram.fence(dram.key, DRAM)
    assert len(report["requests"]) == 3
    records = dram.scheduler.inheritance.retained.records[dram.key]
    assert report["pinned_blocks"] < sum(len(r.chain.real_blocks()) for r in records)
    assert report["host"]["bytes"] == report["pinned_blocks"] * copier_of(dram).row_bytes
    tick_until(dram, lambda: at_rest(dram, dram.key))
    assert dram.scheduler.kv.free_blocks == dram.baseline


def test_a_bystander_is_untouched(dram: Lab) -> None:
    """Offload, churn and restore around it: another tenant's pages and output stay the same."""
    alone = dram.submit("alone", prompt_tokens(150, 7), max_tokens=40)
    dram.run()
    dram.clean()
    beside = dram.submit("beside", prompt_tokens(150, 7), dram.tag(OTHER), max_tokens=40)
    dram.run(lambda: len(beside.tokens) >= 3)
    before = dram.page_digests("beside", tokens=128)
    retire_decoding(dram, dram.key)
    dram.run(lambda: at_rest(dram, dram.key))
    wipe(dram)
    new = dram.submit("new", NEW, dram.tag(dram.key), max_tokens=3)
    dram.run(lambda: len(new.tokens) == 3)
    assert dram.page_digests("beside", tokens=128) == before
    dram.run()
    assert distance(beside, alone) < TOLERANCE


def test_a_kv_connector_and_the_tier_do_not_coexist(dram: Lab) -> None:
    """Said at start, by name; such a contract is then answered with HBM and the reason."""
    import copy

    from vllm.config import KVTransferConfig

    from retire.engine.seams import host_copies

    config = copy.copy(dram.scheduler.vllm_config)
    assert host_copies.unfit(config) is None
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both"
    )
    assert "do not coexist" in str(host_copies.unfit(config))

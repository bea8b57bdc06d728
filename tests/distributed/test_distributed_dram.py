"""The DRAM tier with two ranks: each keeps its own pages, and all of them must agree."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))  # importlib mode puts nothing there

from dram_scene import (
    CERTIFIED,
    NEW,
    TOLERANCE,
    clean_run,
    distance,
    host_bytes,
    offload,
    record_of,
    succeed,
    tick_until,
    tier_of,
)

from bench import lab_workers
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Stream
    from bench.lab_ranks import RanksLab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
_NUMBERS = count()


@pytest.fixture(scope="module")
def ranks() -> Iterator[RanksLab]:
    """Two tensor parallel ranks."""
    from bench.lab_ranks import RanksLab

    lab = RanksLab("qwen3-tiny", tp=2, max_num_seqs=4)
    lab.core.retire_tick()
    yield lab
    lab.close()


@pytest.fixture
def lab(ranks: RanksLab) -> Iterator[RanksLab]:
    """Empty before, and nothing left afterwards, on no rank's host memory either."""
    ranks.clean()
    ranks.key = ScopeKey("acme", f"dram-ranks-{next(_NUMBERS)}")
    yield ranks
    ranks.run()
    ranks.core.retire_release(ranks.key.tenant, ranks.key.scope)
    tick_until(ranks, lambda: not tier_of(ranks).busy)
    assert (host_bytes(ranks), ranks.settled()) == (0, [])


@pytest.fixture(scope="module")
def expected(ranks: RanksLab) -> Stream:
    """What the successor says without any predecessor."""
    return clean_run(ranks, NEW)


def test_every_rank_brings_its_pages_back(lab: RanksLab, expected: Stream) -> None:
    """Exact after every page of the record was overwritten on both ranks; bytes of both count."""
    offload(lab, lab.key)
    assert lab.scheduler.kv.free_blocks == lab.baseline
    copy = record_of(lab, lab.key).copy
    assert copy is not None and len(copy.stored.tags) == 2
    assert host_bytes(lab) == 10 * tier_of(lab)._workers.block_bytes
    stream, told = succeed(lab, lab.key)
    assert (told["certified_tokens"], told["restore"]) == (CERTIFIED, "restored")
    assert stream.cached_tokens == CERTIFIED
    assert distance(stream, expected) < TOLERANCE


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_does_not_agree_refuses_for_all(
    lab: RanksLab, expected: Stream, rank: int
) -> None:
    """A flipped bit in one rank's host memory: nothing is installed anywhere."""
    offload(lab, lab.key)
    copy = record_of(lab, lab.key).copy
    assert copy is not None
    lab.workers(lab_workers.spoil_copy, rank, copy.stored.job)
    stream, told = succeed(lab, lab.key)
    assert (told["stop_reason"], told["restore"], stream.cached_tokens) == ("restore", "damaged", 0)
    assert distance(stream, expected) < TOLERANCE

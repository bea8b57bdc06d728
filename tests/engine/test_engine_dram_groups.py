"""The DRAM tier with two KV groups: the sliding group brings back its window, no more, exactly."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib puts nothing there

from dram_scene import (
    TOLERANCE,
    at_rest,
    clean_run,
    distance,
    offload,
    retire_decoding,
    settle,
    succeed,
    tick_until,
    wipe,
)

from bench.lab import prompt_tokens
from retire.engine.tier.restores import Restores
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Lab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
BLOCK, WINDOW = 32, 256
LONG = prompt_tokens(900, 51)
TAIL = prompt_tokens(40, 52)
_NUMBERS = count()


@pytest.fixture(scope="module")
def two_groups() -> Iterator[Lab]:
    """A tiny Gemma3: layers 1 and 3 slide over 256 tokens, layers 2 and 4 do not."""
    from bench.lab import Lab

    lab = Lab("gemma3-swa-tiny", max_num_seqs=4)
    lab.core.retire_tick()
    yield lab
    lab.close()


@pytest.fixture
def lab(two_groups: Lab) -> Iterator[Lab]:
    """Empty before, and nothing left afterwards, on the host either."""
    two_groups.clean()
    two_groups.key = ScopeKey("acme", f"dram-groups-{next(_NUMBERS)}")
    yield two_groups
    assert settle(two_groups) == []


@pytest.mark.parametrize("common", [900, 880, 640, 288, 256, 224, 33])
def test_a_restored_window_is_exact(lab: Lab, common: int) -> None:
    """Wherever the new plan leaves the old one: as many tokens as HBM would have given."""
    prompt = LONG[:common] + TAIL
    expected = clean_run(lab, prompt)
    offload(lab, lab.key, LONG)
    stream, told = succeed(lab, lab.key, prompt)
    assert stream.cached_tokens == told["certified_tokens"] == common // BLOCK * BLOCK
    assert told["restore"] == "restored"
    assert distance(stream, expected) < TOLERANCE


def test_only_the_window_comes_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sliding group restores the blocks that the successor reads: 8 or 9 of 28."""
    seen: list[tuple[tuple[int | None, ...], ...]] = []
    places = Restores._places

    def watched(self, restoring):
        seen.append(places(self, restoring))
        return seen[-1]

    monkeypatch.setattr(Restores, "_places", watched)
    offload(lab, lab.key, LONG)
    succeed(lab, lab.key, LONG[:896] + TAIL)
    real = sorted(sum(p is not None for p in group) for group in seen[0])
    assert real[0] in (WINDOW // BLOCK, WINDOW // BLOCK + 1) and real[1] == 28
    assert {len(group) for group in seen[0]} == {28}


def test_without_the_window_the_output_differs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEGATIVE CONTROL: one block of the window not brought back shows in the logprobs."""
    prompt = LONG[:640] + TAIL
    expected = clean_run(lab, prompt)
    places = Restores._places

    def short(self, restoring):
        groups = [list(group) for group in places(self, restoring)]
        sliding = next(group for group in groups if group[0] is None)
        first = next(i for i, p in enumerate(sliding) if p is not None)
        sliding[first + 2] = sliding[first + 1]  # the page before stands in for it
        return tuple(tuple(group) for group in groups)

    monkeypatch.setattr(Restores, "_places", short)
    offload(lab, lab.key, LONG)
    stream, _ = succeed(lab, lab.key, prompt)
    assert stream.cached_tokens == 640
    assert distance(stream, expected) > 100 * TOLERANCE


def test_capacity_comes_back_in_both_groups(lab: Lab) -> None:
    """Every block of either group is free while the copy is at rest."""
    retire_decoding(lab, lab.key, LONG)
    tick_until(lab, lambda: at_rest(lab, lab.key))
    assert lab.scheduler.kv.free_blocks == lab.baseline
    wipe(lab)

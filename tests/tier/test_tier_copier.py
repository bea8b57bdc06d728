"""Pages go to host memory and come back, on real memory; digests see every change."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from retire.engine.tier import arena
from retire.engine.tier.arena import Arena, NoHostMemory
from retire.engine.tier.copier import Copier
from retire.engine.tier.devices import CpuPages, Way
from retire.engine.tier.orders import Done, Offload, Orders, Restore
from retire.engine.tier.page_tags import secret_keys, tags

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS = 64
PAGES = (4096, 4096, 1024, 2048)  # bytes of a page in each layer
ROW = sum(PAGES)
IDS = (3, 9, 10, 11, 40, 12, 5)


@pytest.fixture
def views() -> list[torch.Tensor]:
    """A KV cache of four layers."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(-128, 128, (BLOCKS, size), dtype=torch.int8, generator=generator)
        for size in PAGES
    ]


@pytest.fixture(params=["one slab", "slabs of two rows"])
def pages(
    request: pytest.FixtureRequest, views: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Copier]:
    """A copier with room for 16 rows."""
    if request.param != "one slab":
        monkeypatch.setattr(arena, "SLAB_BYTES", 2 * ROW)
        monkeypatch.setattr(CpuPages, "gather_bytes", 4096)
    made = Copier(views, CpuPages(), 16 * ROW)
    if request.param != "one slab":
        for extents in [made.arena.take(2) for _ in range(8)]:
            made.arena.give(extents)
    yield made
    made.close()


def done(pages: Copier, order: Offload | Restore) -> Done:
    """Run one job to its end."""
    (ended,) = pages.exchange(Orders(begin=[order])) + pages.wait()
    return ended


def test_pages_come_back_bit_for_bit(pages: Copier, views: list[torch.Tensor]) -> None:
    """Any part of a copy, into other blocks; the digests of what is in place are the same."""
    out = done(pages, Offload(1, IDS))
    before = [view.clone() for view in views]
    for view in views:
        view[list(IDS)] = 0
    into = (20, 21, 50, 7)
    back = done(pages, Restore(2, 1, (0, 2, 3, 6), into))
    assert back.error is None
    assert back.tags == tuple(out.tags[i] for i in (0, 2, 3, 6))
    for view, old in zip(views, before, strict=True):
        assert torch.equal(view[list(into)], old[[IDS[0], IDS[2], IDS[3], IDS[6]]])
        kept = [b for b in range(BLOCKS) if b not in {*into, *IDS}]
        assert torch.equal(view[kept], old[kept])


def test_memory_is_given_back(pages: Copier) -> None:
    """Many copies in turn never need more than the arena; a full one says so and takes nothing."""
    rng = random.Random(3)
    for job in range(1, 40):
        ids = tuple(rng.sample(range(BLOCKS), rng.randint(1, 16)))
        assert done(pages, Offload(job, ids)).error is None
        pages.exchange(Orders(drop=[job]))
    assert pages.arena.used_rows == 0
    assert done(pages, Offload(50, IDS)).error is None
    refused = done(pages, Offload(51, tuple(range(10))))
    assert refused.error is not None and "NoHostMemory" in refused.error
    assert pages.arena.used_rows == len(IDS)


def test_a_missing_or_short_copy_is_an_error(pages: Copier) -> None:
    """Neither is restored as far as it goes."""
    assert "no copy 9" in str(done(pages, Restore(1, 9, (0,), (1,))).error)
    done(pages, Offload(2, IDS))
    assert "ends at page 7" in str(done(pages, Restore(3, 2, (0, 7), (1, 2))).error)


def test_a_cancelled_job_gives_its_memory_back(pages: Copier) -> None:
    """It ends by itself, and is answered."""
    gate = threading.Event()
    pages._threads[Way.OUT].submit(gate.wait, 10)
    assert pages.exchange(Orders(begin=[Offload(1, IDS)], cancel=[1])) == []  # held up
    gate.set()
    (ended,) = pages.wait()
    assert (ended.error, ended.tags, pages.arena.used_rows) == ("cancelled", (), 0)


def test_nothing_waits_for_a_transfer(pages: Copier) -> None:
    """Orders are taken while one is held up; both ways go on by themselves."""
    done(pages, Offload(1, IDS))
    gate = threading.Event()
    pages._threads[Way.OUT].submit(gate.wait, 10)
    ended = pages.exchange(Orders(begin=[Offload(2, IDS[:2]), Restore(3, 1, (0,), (1,))]))
    pages._threads[Way.IN].submit(lambda: None).result(timeout=10)
    ended += pages.exchange(Orders())
    assert [one.job for one in ended] == [3]
    gate.set()
    assert [ended.job for ended in pages.wait()] == [2]


def test_any_change_of_a_word_changes_the_tag() -> None:
    """Every byte of a page matters, in every bit: exhaustively for one small page."""
    keys = secret_keys(16, torch.device("cpu"))
    page = torch.randint(-128, 128, (1, 64), dtype=torch.int8)
    changed = page.repeat(64 * 8, 1).numpy().view("uint8")
    for bit in range(64 * 8):
        changed[bit, bit // 8] ^= 1 << (bit % 8)
    found = tags(torch.from_numpy(changed.view("int8")), keys)
    assert int(tags(page, keys)) not in set(found.tolist())
    assert len(set(found.tolist())) == 64 * 8


@pytest.mark.parametrize("change", ["swap", "shift", "zero"])
def test_other_changes_show_too(change: str) -> None:
    """Words swapped, shifted by one, or lost: over a thousand keys, not one collision."""
    page = torch.randint(-128, 128, (1, 256), dtype=torch.int8)
    words = page.view(torch.int32)
    other = {
        "swap": lambda: words[:, torch.tensor([1, 0, *range(2, 64)])],
        "shift": lambda: words.roll(1, dims=1),
        "zero": lambda: torch.zeros_like(words),
    }[change]().contiguous()
    for _ in range(1000):
        keys = secret_keys(64, torch.device("cpu"))
        assert int(tags(words, keys)) != int(tags(other, keys))


def test_even_keys_would_miss_a_flipped_bit() -> None:
    """NEGATIVE CONTROL: the test above sees a key that loses the top bit of its word."""
    keys = secret_keys(16, torch.device("cpu")) & ~((1 << 33) - 1)
    page = torch.zeros((1, 64), dtype=torch.int8)
    flipped = page.clone()
    flipped[0, 3] = -128
    assert int(tags(page, keys)) == int(tags(flipped, keys))


def test_an_arena_grows_only_as_far_as_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs are made when needed, as large as that; where the host gives none, none is taken."""
    monkeypatch.setattr(arena, "SLAB_BYTES", 2 * 128)
    made: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        if size > 4 * 64:
            raise MemoryError("the host gives no more")
        made.append(size)
        return torch.empty(size, dtype=torch.int8)

    rows = Arena((64, 64), 6, allocate)
    assert made == []
    taken = rows.take(2)
    assert (sum(extent.rows for extent in taken), made) == (2, [256])
    with pytest.raises(NoHostMemory, match="may be made"):
        rows.take(7)
    with pytest.raises(NoHostMemory, match="gives no more"):
        rows.take(4)
    assert rows.used_rows == 2
    assert sum(extent.rows for extent in rows.take(2)) == 2


def test_what_is_taken_at_once_lies_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many times a slab's usual size is one extent, and one transfer a layer."""
    monkeypatch.setattr(arena, "SLAB_BYTES", 2 * 128)
    rows = Arena((64, 64), 16, lambda size: torch.empty(size, dtype=torch.int8))
    assert [extent.rows for extent in rows.take(9)] == [9]
    assert [extent.rows for extent in rows.take(1)] == [1]

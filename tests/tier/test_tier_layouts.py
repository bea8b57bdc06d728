"""Wherever vLLM puts a block's bytes, its row holds them all, and nothing of another block."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import pytest
import torch

from retire.engine.seams import host_copies

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 3, 7, 2, 4, 8
SIZES = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": CONTENT}
PAGE = HEADS * TOKENS * CONTENT * 4  # bytes of one block in one layer
# 0.32: one storage; the letters are its dimensions from the outermost.
ONE_STORAGE = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def in_one_storage(order: str) -> list[torch.Tensor]:
    """A view ``[blocks, heads, tokens, content]`` for each layer."""
    whole = torch.zeros([SIZES[letter] for letter in order])
    return list(whole.permute([order.index(letter) for letter in "LBHNC"]))


def in_halves(_: str) -> list[torch.Tensor]:
    """0.26 on a GPU: a storage for each layer, keys before values."""
    return [torch.zeros(2, BLOCKS, TOKENS, HEADS, CONTENT // 2) for _ in range(LAYERS)]


def in_blocks(_: str) -> list[torch.Tensor]:
    """0.26: a storage for each layer, block after block."""
    return [torch.zeros(BLOCKS, 2, TOKENS, HEADS, CONTENT // 2) for _ in range(LAYERS)]


def marked(caches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fill every block, in every layer, with its own number."""
    for cache in caches:
        for block in range(BLOCKS):
            cache.select(list(cache.shape).index(BLOCKS), block).fill_(block)
    return caches


def rows_are_blocks(views: list[torch.Tensor]) -> bool:
    """Whether all rows of a block hold its number alone, and all of its bytes."""
    complete = sum(view.shape[1] for view in views) == LAYERS * PAGE
    return complete and all(
        bool((view.view(torch.float32)[block] == block).all())
        for view in views
        for block in range(BLOCKS)
    )


LAYOUTS: list[tuple[Callable[[str], list[torch.Tensor]], str]] = [
    *((in_one_storage, order) for order in ONE_STORAGE), (in_halves, ""), (in_blocks, ""),
]  # fmt: skip


@pytest.mark.parametrize(("make", "order"), LAYOUTS)
def test_a_row_is_a_block(make: Callable[[str], list[torch.Tensor]], order: str) -> None:
    """In every layout; a layer that a second KV group shares is taken once."""
    caches = marked(make(order))
    views = host_copies.page_views([*caches, caches[1]], BLOCKS)
    if order == "BHLNC":  # heads before layers: a row is still a whole block
        assert views[0].shape == (BLOCKS, LAYERS * PAGE)
    assert rows_are_blocks(views)


def test_one_storage_is_not_one_layer() -> None:
    """NEGATIVE CONTROL: taken for a layer, as in 0.26, a storage mixes blocks of three layers."""
    cache = marked(in_one_storage("LBHNC"))[0]
    storage = cache.untyped_storage()
    raw = torch.empty(0, dtype=torch.int8).set_(storage)
    assert not rows_are_blocks([raw.view(BLOCKS, -1)])


def test_an_unknown_layout_is_refused() -> None:
    """Pages with a gap behind them: rather no tier than a tier that restores neighbours."""
    padded = torch.zeros(BLOCKS * prod((HEADS, TOKENS, CONTENT)) + 3 * BLOCKS)
    cache = padded[: BLOCKS * HEADS * TOKENS * CONTENT].view(BLOCKS, HEADS, TOKENS, CONTENT)
    with pytest.raises(AssertionError, match="is not known"):
        host_copies.page_views([cache], BLOCKS)

"""A dumb second opinion on ALIGN: token by token, every boundary tried from the top."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from retire.protocol import alignment
from retire.protocol.alignment import KvGroup


def prefix(old: Sequence[int], new: Sequence[int]) -> int:
    count = 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        count += 1
    return count


def holds(group: KvGroup, tokens: int) -> bool:
    """Each earlier token that the one at ``tokens`` attends to lies in a held block."""
    first = 0 if group.window is None else max(0, tokens - group.window + 1)
    held = {b for start, past in group.held for b in range(start, past)}
    return all(t // group.block_size in held for t in range(first, tokens))


def certified(
    old: Sequence[int], new: Sequence[int], frontier: int, groups: Sequence[KvGroup]
) -> int:
    if not old:
        return 0
    top = min(prefix(old, new), frontier, len(new) - 1)
    for tokens in range(top, 0, -1):
        on_boundary = all(tokens % g.block_size == 0 for g in groups)
        if on_boundary and all(holds(g, tokens) for g in groups):
            return tokens
    return 0


def cases() -> Iterator[tuple[list[int], list[int], int, list[KvGroup]]]:
    """A fixed grid of small cases: prefixes, frontiers, one and two groups, windows, holes."""
    layouts = [
        [KvGroup(2, ((0, 8),))],
        [KvGroup(4, ((0, 4),)), KvGroup(2, ((3, 8),), window=4)],
        [KvGroup(4, ((0, 4),)), KvGroup(6, ((0, 4),))],
        [KvGroup(2, ((0, 8),)), KvGroup(2, ((1, 2), (4, 5)), window=3)],
        [KvGroup(2, ((0, 3), (4, 8)))],
        [KvGroup(3, ((0, 9),)), KvGroup(2, ((0, 9),), window=1)],
    ]
    old = list(range(16))
    for common, frontier, groups in itertools.product(range(17), (0, 5, 8, 12, 16), layouts):
        yield old, [*old[:common], *([99] * (16 - common))], frontier, groups
        yield old, old[:common] or [0], frontier, groups


def disagreements() -> int:
    """How many cases of the grid the production function answers differently."""
    wrong = 0
    for old, new, frontier, groups in cases():
        result = alignment.align(old, new, frontier=frontier, groups=groups)
        expected = (prefix(old, new), certified(old, new, frontier, groups))
        wrong += (result.inheritable_tokens, result.certified_tokens) != expected
    return wrong

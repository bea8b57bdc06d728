"""ALIGN: how many tokens of a predecessor's KV a successor may inherit, and why not more.

Common prefix x writer frontiers x block boundaries x sliding windows (paper, section 6.1). Pure
arithmetic on token positions; must never import anything outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import lcm

from retire.protocol.contract import Participant, StopReason
from retire.protocol.errors import InvalidField

_CHUNK = 4096  # tokens compared at once; slices of ints compare in C


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One KV cache group: its block size and which of the predecessor's blocks it still holds.

    ``held``: ranges ``(first, past)`` of block indexes (block i covers tokens
    ``[i * block_size, (i + 1) * block_size)``), ascending and disjoint.
    """

    block_size: int  # tokens
    held: tuple[tuple[int, int], ...]
    window: int | None = None  # tokens that a sliding group attends to, itself included; None: all

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise InvalidField("kv_group.block_size", self.block_size, "at least 1 token")
        if self.window is not None and self.window < 1:
            raise InvalidField("kv_group.window", self.window, "at least 1 token, or absent")
        past_before = 0
        for first, past in self.held:
            if not past_before <= first < past:
                raise InvalidField("kv_group.held", self.held, "ascending, disjoint, not empty")
            past_before = past

    def needs(self, tokens: int) -> tuple[int, int]:
        """Block range ``(first, past)`` read by the token at position ``tokens``."""
        start = 0 if self.window is None else max(0, tokens - self.window + 1)
        return start // self.block_size, -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Alignment:
    """What ALIGN decided. Positions and counts are in tokens of the successor's prompt."""

    inheritable_tokens: int  # length of the common prefix
    certified_tokens: int  # a multiple of the boundary, at most the prompt's length - 1
    first_difference: int | None  # None: one context extends the other
    stop_reason: StopReason


ParticipantKey = tuple[str, int, int, int]  # node, pp rank, tp rank, KV group


def boundary_tokens(groups: Sequence[KvGroup]) -> int:
    """The block boundary shared by every KV group: the least common multiple, in tokens."""
    return lcm(*(g.block_size for g in groups))


def frontier_tokens(
    participants: Sequence[Participant], expected: Collection[ParticipantKey]
) -> int:
    """The minimum writer-complete frontier; one missing or unclosed participant makes it 0."""
    closed: dict[ParticipantKey, int] = {}
    for p in participants:
        key = (p.node, p.pp_rank, p.tp_rank, p.kv_group)
        reached = p.frontier_tokens if p.closed else 0
        closed[key] = min(reached, closed.get(key, reached))
    return min((closed.get(key, 0) for key in expected), default=0)


def common_prefix(old: Sequence[int], new: Sequence[int]) -> int:
    """Number of leading tokens that are equal. Works on slices: 100K tokens take about 1 ms."""
    limit = min(len(old), len(new))
    start = 0
    while start < limit and old[start : start + _CHUNK] == new[start : start + _CHUNK]:
        start += _CHUNK
    low, high = min(start, limit), min(start + _CHUNK, limit)
    while low < high:  # invariant: everything before low is equal
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def align(
    old: Sequence[int], new: Sequence[int], *, frontier: int, groups: Sequence[KvGroup]
) -> Alignment:
    """Match the predecessor's tokens ``old`` with the successor's prompt ``new``.

    ``frontier``: tokens whose KV every participant has written (:func:`frontier_tokens`). Both
    sequences must be of one sliceable type. The stop reason names what bounds the result:

    - NO_PREDECESSOR: there are no old tokens or no KV groups;
    - WHOLE_PROMPT: all but the last prompt token (whose logits must be computed);
    - FIRST_DIFFERENCE, FRONTIER: reuse stops in the block that holds this limit, the lower of both;
    - BLOCK_BOUNDARY: only rounding keeps it from the whole prompt;
    - WINDOW: a group no longer holds what a higher boundary needs.
    """
    common = common_prefix(old, new)
    differs = common if common < min(len(old), len(new)) else None
    if not old or not groups:
        return Alignment(common, 0, differs, StopReason.NO_PREDECESSOR)
    cap = max(len(new) - 1, 0)
    limit = min(common, frontier, cap)
    boundary = boundary_tokens(groups)
    rounded = limit - limit % boundary
    certified = _held_below(rounded, boundary, groups)
    if certified < rounded:
        reason = StopReason.WINDOW
    elif limit == cap:
        reason = StopReason.WHOLE_PROMPT if certified == cap else StopReason.BLOCK_BOUNDARY
    elif differs is not None and common <= frontier:
        reason = StopReason.FIRST_DIFFERENCE
    else:
        reason = StopReason.FRONTIER
    return Alignment(common, certified, differs, reason)


def cold(alignment: Alignment, reason: StopReason) -> Alignment:
    """The same match, nothing certified: quota, contract, fingerprint or generation forbid it."""
    return replace(alignment, certified_tokens=0, stop_reason=reason)


def _held_below(tokens: int, boundary: int, groups: Sequence[KvGroup]) -> int:
    """The highest boundary, at most ``tokens``, at which every group holds what it needs."""
    while True:
        lowered = min(_group_held_below(g, tokens, boundary) for g in groups)
        if lowered == tokens:
            return tokens
        tokens = lowered


def _group_held_below(group: KvGroup, tokens: int, boundary: int) -> int:
    if group.window == 1:
        return tokens  # a token that sees itself only needs no earlier block
    for first, past in reversed(group.held):
        top = min(tokens, past * group.block_size)
        top -= top % boundary
        # Within one run of blocks the highest boundary is the easiest: a lower one needs more on
        # its left. So a run that fails at its top fails everywhere.
        if top > first * group.block_size and group.needs(top)[0] >= first:
            return top
    return 0

"""Seam: KV blocks of one engine (pin, un-hash, look up, adopt).

Opens ``vllm.v1.core.kv_cache_manager.KVCacheManager.get_computed_blocks`` (wrapped on the instance,
so that a certified successor aliases exactly its pinned blocks) and uses ``BlockPool.touch``,
``BlockPool.free_blocks``, ``KVCacheManager.evict_blocks`` and each group's ``req_to_blocks``.
Upstream status: internal. Tested on 0.26.0.

Why un-hashing exists: vLLM registers a block's hash when it is *allocated*, before any kernel runs
(``allocate_slots`` -> ``cache_blocks``), which is safe only while every launched step completes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class Chain:
    """The full blocks behind a token prefix, one list per KV group, in token order.

    ``hashes`` remember what each block held: a block that was given away since no longer matches.
    A group's list holds vLLM's null block where a sliding window has moved on.
    """

    tokens: int
    blocks: tuple[tuple[KVCacheBlock, ...], ...]
    hashes: tuple[tuple[Any, ...], ...]

    def block_ids(self) -> tuple[tuple[int, ...], ...]:
        """Physical block ids per KV group."""
        return tuple(tuple(block.block_id for block in group) for group in self.blocks)

    def real_blocks(self) -> list[KVCacheBlock]:
        """Every block that holds KV, first tokens first, without duplicates."""
        seen = {
            block.block_id: block for group in self.blocks for block in group if not block.is_null
        }
        return list(seen.values())


class KvCache:
    """What the scheduler subclass may do with blocks."""

    def __init__(self, manager: KVCacheManager, *, boundary: int) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        self._groups = manager.coordinator.single_type_managers
        self.boundary = boundary  # tokens: common block boundary of every KV group
        self.block_sizes: tuple[int, ...] = tuple(group.block_size for group in self._groups)
        self.windows: tuple[int | None, ...] = tuple(
            getattr(group.kv_cache_spec, "sliding_window", None) for group in self._groups
        )

    @property
    def free_blocks(self) -> int:
        """Blocks in the free queue (cached ones included)."""
        return self._pool.get_num_free_blocks()

    @property
    def total_blocks(self) -> int:
        """Blocks of the pool, the null block not counted."""
        return self._pool.num_gpu_blocks - 1

    def chain(self, request_id: str, tokens: int) -> Chain:
        """The blocks of a request that are full within its first ``tokens`` tokens."""
        return _chain(
            tokens,
            [
                group.req_to_blocks.get(request_id, [])[: tokens // group.block_size]
                for group in self._groups
            ],
        )

    def with_windows(self, chain: Chain, request: Request) -> Chain:
        """A request's chain with what its windows have left behind and the cache still holds.

        A successor may leave the old context anywhere: then it needs the window before that place,
        which the old request gave up long ago. Kept with the rest, churn cannot take it away.
        """
        if all(window is None for window in self.windows):
            return chain
        groups = [
            [
                self._cached(request, group, index) or block if block.is_null else block
                for index, block in enumerate(blocks)
            ]
            for group, blocks in zip(self._groups, chain.blocks, strict=True)
        ]
        return _chain(chain.tokens, groups)

    def _cached(self, request: Request, group: Any, index: int) -> KVCacheBlock | None:
        """The block of a request's tokens that the prefix cache holds for one group."""
        if group.block_size != self._pool.hash_block_size or index >= len(request.block_hashes):
            return None
        found = self._pool.get_cached_block(request.block_hashes[index], [group.kv_cache_group_id])
        return found[0] if found else None

    def cut(self, chain: Chain, tokens: int) -> Chain:
        """The part of a chain within its first ``tokens`` tokens."""
        counts = [tokens // size for size in self.block_sizes]
        return Chain(
            tokens=min(tokens, chain.tokens),
            blocks=tuple(group[:n] for group, n in zip(chain.blocks, counts, strict=True)),
            hashes=tuple(group[:n] for group, n in zip(chain.hashes, counts, strict=True)),
        )

    def intact_tokens(self, chain: Chain) -> int:
        """How much of an unpinned chain still holds what it held (boundary-aligned tokens)."""
        tokens = chain.tokens
        for size, blocks, hashes in zip(self.block_sizes, chain.blocks, chain.hashes, strict=True):
            whole = 0
            for block, block_hash in zip(blocks, hashes, strict=True):
                if not block.is_null and (block_hash is None or block.block_hash != block_hash):
                    break
                whole += 1
            tokens = min(tokens, whole * size)
        return tokens // self.boundary * self.boundary

    def held(self, chain: Chain) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per KV group, the block index ranges [first, past) in which the chain has real blocks."""
        return tuple(_ranges(blocks) for blocks in chain.blocks)

    def cached_prefix(self, request: Request) -> Chain:
        """The longest prefix of a request that the prefix cache holds (written: see un-hashing)."""
        if not self._manager.enable_caching or request.skip_reading_prefix_cache:
            return Chain(0, tuple(() for _ in self._groups), tuple(() for _ in self._groups))
        blocks, tokens, _ = self._manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        return _chain(tokens, blocks)

    def written_by(self, request_id: str, from_token: int) -> set[int]:
        """Ids of the blocks that a step writes when it computes ``from_token`` and on."""
        return {
            block.block_id
            for group in self._groups
            for block in group.req_to_blocks.get(request_id, [])[from_token // group.block_size :]
            if not block.is_null
        }

    def first_of(self, request_id: str, block_ids: set[int]) -> int:
        """Tokens of a request before the first block that is in ``block_ids``."""
        firsts = [
            index * group.block_size
            for group in self._groups
            for index, block in enumerate(group.req_to_blocks.get(request_id, []))
            if block.block_id in block_ids
        ]
        return min(firsts, default=sys.maxsize)

    def unhash(self, block_ids: set[int]) -> None:
        """Take blocks out of the prefix cache; their references stay."""
        if block_ids:
            self._manager.evict_blocks(block_ids)

    def forget_cached_from(self, request_id: str, token: int) -> None:
        """Let a live request register its blocks from ``token`` on again, once really written."""
        for group in self._groups:
            cached = group.num_cached_block.get(request_id, 0)
            group.num_cached_block[request_id] = min(cached, token // group.block_size)

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """One more reference each: neither evicted nor given away."""
        self._pool.touch(blocks)

    def release(self, block_ids: Iterable[int]) -> None:
        """One reference less each; the last tokens are evicted first."""
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        self._pool.free_blocks(reversed(blocks))

    def new_blocks(self, names: Iterable[int]) -> dict[int, KVCacheBlock]:
        """One fresh block for each name, with one reference; there must be that many free."""
        wanted = list(names)
        return dict(zip(wanted, self._pool.get_new_blocks(len(wanted)), strict=True))

    def chain_of(
        self,
        tokens: int,
        names: Sequence[Sequence[int | None]],
        blocks: Mapping[int, KVCacheBlock],
    ) -> Chain:
        """A chain of named blocks per KV group; the null block where there is no name."""
        null = self._pool.null_block
        return _chain(
            tokens, [[null if n is None else blocks[n] for n in group] for group in names]
        )

    def register(self, request: Request, chain: Chain, tokens: int) -> Chain:
        """Let others find a chain's blocks, up to ``tokens``, as what ``request`` would compute.

        They must be written, and the request's prompt must begin with their tokens.
        """
        if self._manager.enable_caching:
            for group, blocks in zip(self._groups, self.cut(chain, tokens).blocks, strict=True):
                self._pool.cache_full_blocks(
                    request, list(blocks), 0, len(blocks), group.block_size, group.kv_cache_group_id
                )
        return _chain(chain.tokens, chain.blocks)

    def references(self, block_ids: Iterable[int]) -> dict[int, int]:
        """Reference counts in the pool."""
        return {block_id: self._pool.blocks[block_id].ref_cnt for block_id in block_ids}

    def holds(self, request_id: str, chain: Chain) -> bool:
        """Whether the request's table begins with exactly the chain's blocks (adoption verified).

        A null entry is a block that the request's own sliding window has already left behind.
        """
        return all(
            _begins_with(group.req_to_blocks.get(request_id, []), blocks)
            for group, blocks in zip(self._groups, chain.blocks, strict=True)
        )

    def adopt_through(self, certified: Callable[[Request], Chain | None]) -> None:
        """From now on, admission takes the blocks that ``certified`` names for a request."""
        stock = self._manager.get_computed_blocks

        def get_computed_blocks(request: Request) -> tuple[Any, int, int]:
            chain = certified(request)
            if chain is None:
                return stock(request)
            blocks = tuple(list(group) for group in chain.blocks)
            return self._manager.create_kv_cache_blocks(blocks), chain.tokens, 0

        self._manager.get_computed_blocks = get_computed_blocks  # type: ignore[method-assign]


def _begins_with(table: Sequence[KVCacheBlock], blocks: Sequence[KVCacheBlock]) -> bool:
    pairs = zip(table, blocks, strict=False)
    return len(table) >= len(blocks) and all(mine.is_null or mine is own for mine, own in pairs)


def _chain(tokens: int, groups: Iterable[Sequence[KVCacheBlock]]) -> Chain:
    blocks = tuple(tuple(group) for group in groups)
    return Chain(tokens, blocks, tuple(tuple(b.block_hash for b in group) for group in blocks))


def _ranges(blocks: Sequence[KVCacheBlock]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for index, block in enumerate(blocks):
        if block.is_null:
            continue
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)

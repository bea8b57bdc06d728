"""ALIGN inside the engine: what one record, or the prefix cache, lets a successor inherit.

Decides lengths and reasons; pins and signs nothing. Works on ``seams.kv_cache`` blocks; must never
import vLLM.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from retire.engine.records import Outcome, same_namespace
from retire.engine.tier.copies import At
from retire.protocol.alignment import Alignment, KvGroup, align, cold
from retire.protocol.contract import StopReason, Tier

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from retire.engine.records import Record
    from retire.engine.seams.kv_cache import KvCache
    from retire.engine.tag import Tag

Held = tuple[tuple[tuple[int, int], ...], ...]  # block ranges [first, past) per KV group
# Cold and fresh: not even ordinary cache, so that the refusal means what it says.
COLD: Final = frozenset({StopReason.QUOTA, StopReason.CONTRACT, StopReason.FINGERPRINT})


@dataclass(frozen=True, slots=True)
class Aligner:
    """Matches successors with what is in one engine's KV cache."""

    cache: KvCache

    def best(self, request: Request, tag: Tag, predecessors: list[Record]) -> Outcome:
        """The furthest that any predecessor, or else the prefix cache, reaches."""
        best, source = max(
            ((self._outcome(request, tag, record), record) for record in reversed(predecessors)),
            key=lambda pair: _reach(pair[0].alignment),
        )
        best = replace(best, arrival_s=min(record.arrival_s for record in predecessors))
        if best.alignment.stop_reason in COLD:
            return best
        cached = self.cache.cached_prefix(request)
        if cached.tokens <= best.alignment.certified_tokens:
            return best
        # Other work of this tenant wrote further along the same tokens: an equal hash chain.
        held = self.cache.held(cached)
        further = self._align(source.tokens, request, held, frontier=cached.tokens)
        further = replace(
            further,
            certified_tokens=cached.tokens,
            inheritable_tokens=max(further.inheritable_tokens, cached.tokens),
        )
        return replace(best, alignment=further, chain=cached, tier=Tier.HBM)

    def _outcome(self, request: Request, tag: Tag, record: Record) -> Outcome:
        refused = _refusal(request, tag, record)
        chain = record.chain
        if record.pinned is None:
            chain = self.cache.cut(chain, self.cache.intact_tokens(chain))
        # A frontier within a block is no loss: only whole blocks are ever kept. Nor is what was
        # left on the host: it is brought back as far as a successor needs it.
        whole = record.frontier - record.frontier % self.cache.boundary
        back = record.restored and record.pinned is not None
        lost = chain.tokens < whole and not back
        frontier = chain.tokens if lost else record.frontier
        held = self.cache.held(chain)
        alignment = self._align(record.tokens, request, held, frontier=frontier)
        if lost and alignment.stop_reason is StopReason.FRONTIER:
            alignment = replace(alignment, stop_reason=StopReason.GENERATION)  # no longer ours
        if refused is not None:
            alignment = cold(alignment, refused)
        certified = alignment.certified_tokens
        return Outcome(
            alignment,
            from_version=record.version,
            frontier_tokens=record.frontier,
            chain=self.cache.cut(chain, certified) if certified else None,
            tier=Tier.DRAM if record.restored else Tier.HBM,
        )

    def at_rest(self, request: Request, tag: Tag, record: Record) -> int:
        """Tokens that a record's copy in host memory would let a successor inherit."""
        copy = record.copy
        if copy is None or copy.stored.at is not At.REST or _refusal(request, tag, record):
            return 0
        frontier = min(record.frontier, copy.tokens)
        alignment = self._align(record.tokens, request, copy.held, frontier=frontier)
        return alignment.certified_tokens

    def _align(self, old: array[int], request: Request, held: Held, *, frontier: int) -> Alignment:
        groups = zip(self.cache.block_sizes, self.cache.windows, held, strict=True)
        return align(
            old,
            array("I", request.prompt_token_ids or ()),
            frontier=frontier,
            groups=tuple(KvGroup(block_size=s, window=w, held=h) for s, w, h in groups),
        )


def _refusal(request: Request, tag: Tag, record: Record) -> StopReason | None:
    if not tag.inherit:
        return StopReason.CONTRACT
    if record.refused is None and not same_namespace(request, record):
        return StopReason.FINGERPRINT
    return record.refused


def _reach(alignment: Alignment) -> tuple[int, int]:
    return alignment.certified_tokens, alignment.inheritable_tokens

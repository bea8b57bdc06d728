"""ALIGN inside the engine: what one record, or the prefix cache, lets a successor inherit.

Decides lengths and reasons; pins and signs nothing. Works on ``seams.kv_cache`` blocks; must never
import vLLM.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from retire.engine.records import Outcome, same_namespace
from retire.protocol.alignment import Alignment, KvGroup, align, cold
from retire.protocol.contract import StopReason

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from retire.engine.records import Record
    from retire.engine.seams.kv_cache import Chain, KvCache
    from retire.engine.tag import Tag

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
        further = self._align(source.tokens, request, cached, frontier=cached.tokens)
        further = replace(
            further,
            certified_tokens=cached.tokens,
            inheritable_tokens=max(further.inheritable_tokens, cached.tokens),
        )
        return replace(best, alignment=further, chain=cached)

    def _outcome(self, request: Request, tag: Tag, record: Record) -> Outcome:
        refused = StopReason.CONTRACT if not tag.inherit else record.refused
        if refused is None and not same_namespace(request, record):
            refused = StopReason.FINGERPRINT
        chain = record.chain
        if record.pinned is None:
            chain = self.cache.cut(chain, self.cache.intact_tokens(chain))
        # A frontier within a block is no loss: only whole blocks are ever kept.
        lost = chain.tokens < record.frontier - record.frontier % self.cache.boundary
        frontier = chain.tokens if lost else record.frontier
        alignment = self._align(record.tokens, request, chain, frontier=frontier)
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
        )

    def _align(
        self, old: array[int], request: Request, chain: Chain, *, frontier: int
    ) -> Alignment:
        groups = zip(
            self.cache.block_sizes, self.cache.windows, self.cache.held(chain), strict=True
        )
        return align(
            old,
            array("I", request.prompt_token_ids or ()),
            frontier=frontier,
            groups=tuple(KvGroup(block_size=s, window=w, held=h) for s, w, h in groups),
        )


def _reach(alignment: Alignment) -> tuple[int, int]:
    return alignment.certified_tokens, alignment.inheritable_tokens

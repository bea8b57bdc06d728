"""What an ended request leaves for a successor of its scope, and what ALIGN makes of it.

Value types and how they are read off a vLLM ``Request``. Must never import vLLM.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retire.protocol.alignment import Alignment
from retire.protocol.contract import StopReason, Tier

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from retire.engine.pins import PinOwner
    from retire.engine.seams.kv_cache import Chain
    from retire.engine.tag import Tag
    from retire.engine.tier.copies import HostCopy
    from retire.engine.tier.restores import RestoreResult
    from retire.protocol.certificates import Certificate
    from retire.protocol.contract import Fence
    from retire.protocol.versions import ScopeKey, Version


@dataclass(slots=True)
class Record:
    """What one scoped request left when it ended."""

    key: ScopeKey
    version: Version
    generation: int
    request_id: str
    state: str  # "queued" | "prefill" | "decode" | "finished"
    tokens: array[int]  # prompt and output, as far as they are known
    prompt_tokens: int
    frontier: int  # tokens whose KV is written
    chain: Chain  # the full blocks behind the frontier
    namespace: tuple[str | None, str | None]  # cache salt and adapter: KV of another is never equal
    arrival_s: float
    last_step: int  # scheduling step that may still write its blocks
    superseded: bool
    residual_ms: float | None = None  # old work after ADVANCE; None: none was running
    fence: Fence | None = None  # how the step ended that was running
    pinned: PinOwner | None = None
    refused: StopReason | None = None  # why its blocks are not kept
    copy: HostCopy | None = None  # its blocks in host memory, or on their way there
    restored: bool = False  # its chain came back from there


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, as its scheduler saw it."""

    state: str  # "queued" | "prefill" | "decode" | "finished"
    frontier: int  # tokens
    superseded: bool
    residual_ms: float | None = None  # old work on the device after ADVANCE; None: none was running
    fence: Fence | None = None  # how the step ended that was running


@dataclass(frozen=True, slots=True)
class Successor:
    """A request that ALIGN has seen and that does not run yet."""

    key: ScopeKey
    version: Version
    owner: PinOwner | None = None  # its lease; None: it inherits nothing, or the lease is over
    verified: bool = False  # its certificate was checked against this engine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What ALIGN decided for one successor."""

    alignment: Alignment
    from_version: Version | None = None
    frontier_tokens: int = 0
    chain: Chain | None = None  # blocks to alias; None: cold
    certificate: Certificate | None = None
    arrival_s: float | None = None  # of the predecessor whose place it takes
    pinned_blocks: int = 0
    expires_s: float = 0.0
    tier: Tier = Tier.HBM  # where the blocks were kept for it
    restore: RestoreResult | None = None  # None: nothing had to be restored


NOTHING: Final = Outcome(Alignment(0, 0, None, StopReason.NO_PREDECESSOR))


def same_namespace(request: Request, record: Record) -> bool:
    """KV depends on salt, adapter and on the tokens alone: nothing multimodal, no embeddings."""
    plain = not request.mm_features and request.prompt_embeds is None
    return plain and _namespace(request) == record.namespace


def _namespace(request: Request) -> tuple[str | None, str | None]:
    adapter = request.lora_request.lora_name if request.lora_request is not None else None
    return request.cache_salt, adapter


def record_of(request: Request, tag: Tag, chain: Chain, end: Ending) -> Record:
    """The record of a request that ends now, with its blocks still allocated."""
    return Record(
        key=tag.key,
        version=tag.version,
        generation=tag.authority.generation,
        request_id=request.request_id,
        state=end.state,
        tokens=array("I", request.all_token_ids),
        prompt_tokens=request.num_prompt_tokens,
        frontier=end.frontier,
        chain=chain,
        namespace=_namespace(request),
        arrival_s=request.arrival_time,
        last_step=request.last_sched_seq,
        superseded=end.superseded,
        residual_ms=end.residual_ms,
        fence=end.fence,
    )

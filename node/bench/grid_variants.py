"""The engines on which the whole grid must hold, and what each of them changes for a cell.

A variant is data: how its stack starts, and the few numbers by which a cell's expectations differ.
Another one is another entry of VARIANTS.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.stack import ENGINE_ARGS, StackSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

# No cell is about the lease: it must not run out because the machine has other work.
CALM: Final = {"RETIRE_LEASE_S": "20"}
DRAFTS: Final = 4
_NGRAM: Final = {
    "method": "ngram",
    "num_speculative_tokens": DRAFTS,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of engine."""

    name: str
    settings: StackSettings
    sampling: Mapping[str, Any] = field(default_factory=dict)  # of every completion
    groups: int = 1  # KV groups: each has a block for the same tokens
    drafts: int = 0  # tokens that a decode step may write beyond one
    ranks: int = 1  # of which every one signs the receipt
    contract: Mapping[str, Any] = field(default_factory=dict)  # of every SUPERSEDE


def _settings(*arguments: str, model: str = "qwen3-tiny", **env: str) -> StackSettings:
    return StackSettings(model=model, engine_args=(*ENGINE_ARGS, *arguments), env={**CALM, **env})


PLAIN: Final = Variant("plain", _settings())
# With three tokens to choose from, most steps find drafts in the past: some are right, some not.
SPECULATION: Final = Variant(
    "speculation",
    _settings("--speculative-config", json.dumps(_NGRAM), NUMBA_NUM_THREADS="1"),
    sampling={"allowed_token_ids": [11, 12, 13]},
    drafts=DRAFTS,
)
GROUPS: Final = Variant("groups", _settings(model="gemma3-swa-tiny"), groups=2)
TP2: Final = Variant(
    "tp2",
    _settings(
        *("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp"),
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    ),
    ranks=2,
)
DRAM: Final = Variant("dram", _settings(), contract={"tier": "dram"})
VARIANTS: Final = {one.name: one for one in (PLAIN, SPECULATION, GROUPS, TP2, DRAM)}

"""Seam: who this engine is. A certificate binds to it; no other engine, boot or layout matches.

Reads ``VllmConfig.compute_hash``, the KV cache groups and ``VLLM_BATCH_INVARIANT``. Tested on
0.26.0.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import Any, Final

BATCH_INVARIANT: Final = "bi"
ORDINARY: Final = "std"


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """One start of one engine."""

    boot_id: str  # new at every start: pins and certificates of an earlier boot are void
    fingerprint: str  # model, parallel layout, KV groups, block sizes, dtype
    numerical_mode: str
    key: bytes  # signs certificates; never leaves the process


def numerical_mode() -> str:
    """The mode whose clean run a successor is compared with (design, section 6.1)."""
    return BATCH_INVARIANT if os.environ.get("VLLM_BATCH_INVARIANT") == "1" else ORDINARY


def of(vllm_config: Any, kv_cache_config: Any) -> EngineIdentity:
    """Identify the engine that these two configurations describe."""
    groups = "|".join(repr(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups)
    text = f"{vllm_config.compute_hash()}|{vllm_config.model_config.model}|{groups}"
    return EngineIdentity(
        boot_id=secrets.token_hex(8),
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:32],
        numerical_mode=numerical_mode(),
        key=secrets.token_bytes(32),
    )


def block_bytes(kv_cache_config: Any) -> int:
    """Of one block of KV on each device: its pages in every layer of the group that may own it."""
    return max(_group_bytes(group) for group in kv_cache_config.kv_cache_groups)


def _group_bytes(group: Any) -> int:
    spec = group.kv_cache_spec
    if hasattr(spec, "kv_cache_specs"):  # layers of several sizes: it adds them up itself
        return spec.page_size_bytes
    return spec.page_size_bytes * len(group.layer_names)

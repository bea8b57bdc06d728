"""Certificates: what ALIGN signs, and the check before any predecessor KV is adopted (C2).

The signature is a keyed digest under a key of one engine boot, so that no other node, boot or
tenant can make one. Imports nothing outside the standard library and ``retire.protocol``.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from retire.protocol.contract import Participant, StopReason
from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey, Version

SCHEMA = 1
DIGEST_BYTES = 32
_LINK_TOKENS = 1024  # tokens in one link of the digest chain


@dataclass(frozen=True, slots=True)
class Certificate:
    """The only prefix that may cross from ``from_version`` to ``to_version``."""

    key: ScopeKey
    from_version: Version
    to_version: Version  # the execution that may adopt; a transfer for another one is refused
    generation: int  # ownership instance of the blocks
    fingerprint: str  # model, cache layout, adapter
    numerical_mode: str
    tokens: int  # certified prefix length
    token_digest: bytes  # chain over exactly these tokens
    blocks: tuple[tuple[int, ...], ...]  # physical block ids, per KV group, in prefix order
    participants: tuple[Participant, ...]
    expires_ns: int  # on the engine's monotonic clock
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class AdoptionFacts:
    """The adopter and the engine as they are now."""

    key: ScopeKey
    version: Version
    generation: int
    fingerprint: str
    numerical_mode: str
    prompt: Sequence[int]  # token ids of the successor
    boot_ids: frozenset[str]  # engine boots that are alive
    now_ns: int


def token_digest(tokens: Sequence[int], count: int) -> bytes:
    """Chained digest of the first ``count`` tokens; each link covers its parent and 1024 tokens."""
    link = b""
    for start in range(0, count, _LINK_TOKENS):
        part = tokens[start : min(start + _LINK_TOKENS, count)]
        packed = struct.pack(f"<{len(part)}q", *part)
        link = blake2b(link + packed, digest_size=DIGEST_BYTES).digest()
    return link


def canonical_bytes(certificate: Certificate) -> bytes:
    """Every field but the signature, in one fixed form."""
    c = certificate
    participants = [
        [p.node, p.boot_id, p.pp_rank, p.tp_rank, p.kv_group, p.frontier_tokens, p.closed]
        for p in c.participants
    ]
    fields = [
        SCHEMA,
        [c.key.tenant, c.key.scope, str(c.from_version), str(c.to_version), c.generation],
        [c.fingerprint, c.numerical_mode, c.tokens, c.token_digest.hex(), c.expires_ns],
        c.blocks,
        participants,
    ]
    return json.dumps(fields, separators=(",", ":")).encode()


def sign(certificate: Certificate, signing_key: bytes) -> bytes:
    """Keyed digest of the canonical bytes. ``signing_key``: 16 to 64 random bytes, one per boot."""
    if not 16 <= len(signing_key) <= 64:
        raise InvalidField("signing_key", f"{len(signing_key)} bytes", "16 to 64 bytes")
    body = canonical_bytes(certificate)
    return blake2b(body, key=signing_key, digest_size=DIGEST_BYTES).digest()


def certify(draft: Certificate, signing_key: bytes) -> Certificate:
    """Sign a draft. Raises InvalidField for one that must not exist, naming the field."""
    if draft.to_version <= draft.from_version:
        raise InvalidField("certificate.to_version", str(draft.to_version), "above from_version")
    if not all(p.closed for p in draft.participants):
        raise InvalidField("certificate.participants", draft.participants, "closed, all of them")
    reached = min((p.frontier_tokens for p in draft.participants), default=0)
    if not 0 < draft.tokens <= reached:
        raise InvalidField("certificate.tokens", draft.tokens, f"1 to the frontier, {reached}")
    return replace(draft, signature=sign(draft, signing_key))


def verify(
    certificate: Certificate, facts: AdoptionFacts, *, signing_key: bytes
) -> StopReason | None:
    """None when the prefix may be adopted now; otherwise why the successor must recompute."""
    c = certificate
    if not hmac.compare_digest(c.signature, sign(c, signing_key)):
        return StopReason.GENERATION  # signed by another boot, or by nobody
    if c.key != facts.key:
        return StopReason.NO_PREDECESSOR  # for this tenant and scope there is none
    if c.to_version != facts.version or c.generation != facts.generation:
        return StopReason.GENERATION
    if facts.now_ns >= c.expires_ns or not _alive(c, facts):
        return StopReason.GENERATION
    if (c.fingerprint, c.numerical_mode) != (facts.fingerprint, facts.numerical_mode):
        return StopReason.FINGERPRINT
    return _check_tokens(c, facts.prompt)


def _alive(c: Certificate, facts: AdoptionFacts) -> bool:
    return all(p.boot_id in facts.boot_ids for p in c.participants)


def _check_tokens(c: Certificate, prompt: Sequence[int]) -> StopReason | None:
    if not all(p.closed and p.frontier_tokens >= c.tokens for p in c.participants):
        return StopReason.FRONTIER
    if c.tokens > len(prompt) - 1 or token_digest(prompt, c.tokens) != c.token_digest:
        return StopReason.FIRST_DIFFERENCE
    return None

"""A record's prefix at rest: which page of it lies where, and the seal that it must still match.

A seal binds the pages' digests to tenant, scope, version, ownership generation, engine fingerprint
and tokens, keyed with the secret of one engine boot: nothing else can be taken for it. Must never
import vLLM.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING

from retire.protocol.certificates import DIGEST_BYTES, token_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retire.protocol.versions import ScopeKey, Version


class At(Enum):
    """Where the pages of a copy are."""

    MOVING = "moving"  # on their way to the host; the HBM pins still hold
    REST = "rest"  # in host memory, digests taken
    GONE = "gone"  # given up; a transfer may still be in flight


@dataclass(slots=True, eq=False)
class Stored:
    """One offload: pages of one scope, shared by the records that were offloaded together."""

    job: int
    key: ScopeKey
    version: Version  # the newest of the records
    pages: int
    size: int  # bytes, all ranks together
    first_row: int  # its pages have numbers of their own in the history
    at: At = At.MOVING
    tags: tuple[tuple[int, ...], ...] = ()  # rank -> position -> digest
    holders: int = 0  # records
    readers: int = 0  # restores that are not over

    def rows(self) -> range:
        """The numbers of its pages."""
        return range(self.first_row, self.first_row + self.pages)


@dataclass(slots=True, eq=False)
class HostCopy:
    """One record's part of a :class:`Stored`."""

    stored: Stored
    tokens: int
    index: tuple[tuple[int | None, ...], ...]  # KV group -> block -> position; None: no page
    generation: int  # of the cache, when it was written
    expires_s: float
    seal: bytes = b""
    held: tuple[tuple[tuple[int, int], ...], ...] = field(default=())  # block ranges per group

    def tags(self, positions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The digests of some pages, per rank."""
        return tuple(tuple(rank[p] for p in positions) for rank in self.stored.tags)

    def positions(self) -> list[int]:
        """Every page of this record, first tokens first."""
        return sorted({p for group in self.index for p in group if p is not None})


@dataclass(frozen=True, slots=True)
class Binding:
    """Whose KV a copy is."""

    key: ScopeKey
    version: Version
    generation: int
    fingerprint: str
    numerical_mode: str
    tokens: Sequence[int]  # token ids behind the copy, at least as many as it holds


def seal(copy: HostCopy, binding: Binding, secret: bytes) -> bytes:
    """Keyed digest over pages, places and binding. ``secret``: 16 to 64 bytes."""
    b = binding
    body = json.dumps(
        [
            [b.key.tenant, b.key.scope, str(b.version), b.generation],
            [b.fingerprint, b.numerical_mode],
            [copy.tokens, token_digest(b.tokens, copy.tokens).hex()],
            copy.index,
            copy.tags(copy.positions()),
        ],
        separators=(",", ":"),
    )
    return blake2b(body.encode(), key=secret, digest_size=DIGEST_BYTES, person=b"copy").digest()


def is_sealed(copy: HostCopy, binding: Binding, secret: bytes) -> bool:
    """Whether the copy is what was sealed, for exactly this binding."""
    if len(binding.tokens) < copy.tokens or not copy.seal:
        return False
    if any(len(rank) < copy.stored.pages for rank in copy.stored.tags):
        return False
    return hmac.compare_digest(copy.seal, seal(copy, binding, secret))

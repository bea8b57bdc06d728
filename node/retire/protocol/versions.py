"""Who may publish: Version, Authority and the names they are made of.

Value types only. Must never import anything outside the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from retire.protocol.errors import InvalidField

TERM_MAX: Final = 2**24 - 1  # a term and an epoch share one 64-bit mailbox word
EPOCH_MAX: Final = 2**40 - 1
TENANT_BYTES_MAX: Final = 63  # a DNS label, so a Kubernetes namespace fits
SCOPE_BYTES_MAX: Final = 255
_TENANT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """``(term, epoch)``, compared lexicographically (design, section 3).

    ``term`` counts rebuilds of the registry, ``epoch`` counts SUPERSEDEs of a scope.
    """

    term: int
    epoch: int

    def __post_init__(self) -> None:
        if not 0 <= self.term <= TERM_MAX:
            raise InvalidField("version.term", self.term, f"an integer in 0..{TERM_MAX}")
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise InvalidField("version.epoch", self.epoch, f"an integer in 0..{EPOCH_MAX}")

    def __str__(self) -> str:
        return f"{self.term}.{self.epoch}"

    @classmethod
    def parse(cls, text: str, *, field: str = "version") -> Version:
        """Read ``term.epoch``; raises InvalidField naming ``field``."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise InvalidField(field, text, 'written "term.epoch", for example "1.4"')
        return cls(int(match[1]), int(match[2]))

    def next_epoch(self) -> Version:
        """The version that a SUPERSEDE of this one commits."""
        return Version(self.term, self.epoch + 1)

    def packed(self) -> int:
        """One 64-bit word, ordered like the version: term in its high 24 bits, epoch below."""
        return self.term << 40 | self.epoch

    @classmethod
    def unpack(cls, word: int) -> Version:
        """The inverse of :meth:`packed`."""
        return cls(word >> 40, word & EPOCH_MAX)


@dataclass(frozen=True, slots=True, order=True)
class ScopeKey:
    """The name of a scope: it belongs to exactly one tenant."""

    tenant: str
    scope: str

    def __post_init__(self) -> None:
        if _TENANT.fullmatch(self.tenant) is None:
            raise InvalidField("tenant", self.tenant, "a DNS label: a-z, 0-9 and '-', at most 63")
        size = len(self.scope.encode("utf-8", "surrogatepass"))
        if not 0 < size <= SCOPE_BYTES_MAX:
            raise InvalidField("scope", self.scope, f"1 to {SCOPE_BYTES_MAX} bytes of UTF-8")
        if not self.scope.isprintable():
            raise InvalidField("scope", self.scope, "printable characters only")
        if self.scope in (".", ".."):
            raise InvalidField("scope", self.scope, "no dot segment: it would vanish from a URL")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.scope}"


@dataclass(frozen=True, slots=True)
class Authority:
    """Permission to publish output or install state: what every frame, block and transfer carries.

    ``generation`` identifies one ownership instance of KV allocations (paper, section 5).
    """

    key: ScopeKey
    version: Version
    generation: int

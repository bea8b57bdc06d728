"""Whose a bearer token is: what every way to find out has in common.

Fails closed: what cannot be verified now is nobody's. Must never log, keep or repeat a token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Protocol

from retire.protocol.errors import Unauthenticated

TOKEN_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a token stands for."""

    tenant: str
    subject: str
    cache_s: float  # how long the answer may be used again


class Authenticator(Protocol):
    """Raises Unauthenticated for a token nobody vouches for, Forbidden for one without a tenant,
    Unavailable when it cannot be told now."""

    async def authenticate(self, token: str) -> Caller:
        """Whom the token stands for."""
        ...


class NoAuthentication:
    """RETIRE_AUTH=none: whoever asks has been configured otherwise."""

    async def authenticate(self, token: str) -> Caller:
        """Never."""
        del token
        raise Unauthenticated("this sidecar knows no tokens; set RETIRE_AUTH here too")


def digest_of(token: str) -> bytes:
    """SHA-256; Unauthenticated for what cannot be a token."""
    encoded = token.encode("utf-8", "surrogatepass")
    if not encoded or len(encoded) > TOKEN_BYTES_MAX:
        raise Unauthenticated(
            f"send the header 'Authorization: Bearer <token>' (at most {TOKEN_BYTES_MAX} bytes)"
        )
    return hashlib.sha256(encoded).digest()

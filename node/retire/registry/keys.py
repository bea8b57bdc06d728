"""Key layout of the registry, and the names that may become part of a key or a member.

All keys of one tenant share the hash tag ``{tenant}``, so that Redis Cluster keeps them in one slot
and one script can change them together. What each key holds is written in ``scripts/prelude.lua``.
Only idempotency records have a TTL. Must never import a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey

NAME_BYTES_MAX: Final = 255
PREFIX_DEFAULT: Final = "retire:"


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """The keys of one tenant."""

    meta: str
    scopes: str
    children: str
    joins: str
    leases: str
    quota: str
    pins: str
    pin_ends: str
    events: str
    idempotency_prefix: str

    def idempotency(self, idempotency_key: str) -> str:
        """The record of one Idempotency-Key; the only kind of key with a TTL."""
        return self.idempotency_prefix + idempotency_key


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Every key of the registry begins with ``prefix``; two registries may share a server."""

    prefix: str = PREFIX_DEFAULT

    def __post_init__(self) -> None:
        if not self.prefix or any(c in "{}*?[]\\" or not c.isprintable() for c in self.prefix):
            raise InvalidField(
                "registry.prefix", self.prefix, 'text without {}*?[]\\, as "retire:"'
            )

    @property
    def registry(self) -> str:
        """The registry's own key: its term, and the incarnation of every tenant. It has no tag."""
        return self.prefix + "registry"

    def tenant(self, tenant: str) -> TenantKeys:
        """The keys of ``tenant``; InvalidField when it is not a DNS label."""
        ScopeKey(tenant, "-")  # a label cannot hold a brace, so the tag cannot be forged
        tag = f"{self.prefix}{{{tenant}}}:"
        return TenantKeys(
            meta=tag + "meta",
            scopes=tag + "scopes",
            children=tag + "children",
            joins=tag + "joins",
            leases=tag + "leases",
            quota=tag + "quota",
            pins=tag + "pins",
            pin_ends=tag + "pinends",
            events=tag + "events",
            idempotency_prefix=tag + "idem:",
        )


def checked_word(field: str, value: str) -> str:
    """A node or boot id: printable, no space, at most 255 bytes, and not a name we use
    ourselves."""
    if value in ("*", "?") or " " in value:
        raise InvalidField(field, value, "a name without spaces, other than '*' and '?'")
    return checked_name(field, value)


def checked_name(field: str, value: str) -> str:
    """An owner or an Idempotency-Key: printable, at most 255 bytes of UTF-8."""
    if not value or not value.isprintable() or len(value.encode()) > NAME_BYTES_MAX:
        raise InvalidField(field, value, f"1 to {NAME_BYTES_MAX} bytes of printable UTF-8")
    return value

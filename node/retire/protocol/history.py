"""What happened, as typed records: the model and the running system record it, invariants judge it.

One record a line of NDJSON (``record_to_dict``), ordered by ``at_ns``. Every process of a host uses
the same monotonic clock. Must never import anything outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, cast

from retire.protocol.errors import InvalidField
from retire.protocol.events import Change
from retire.protocol.fields import Fields
from retire.protocol.versions import ScopeKey, Version

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class CommitMade:
    """COMMIT: the registry made a change durable. Replays are not recorded."""

    at_ns: int
    key: ScopeKey
    change: Change
    from_version: Version
    to_version: Version
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """UNPUBLISHABLE was answered: nothing below ``version`` may be published from here on."""

    at_ns: int
    key: ScopeKey
    version: Version


@dataclass(frozen=True, slots=True)
class Published:
    """A frame passed the last check of ``gate`` and was handed to the transport."""

    at_ns: int
    key: ScopeKey
    version: Version
    request_id: str
    gate: str
    index: int  # of the output token


@dataclass(frozen=True, slots=True)
class Delivered:
    """A consumer took the frame."""

    at_ns: int
    key: ScopeKey
    version: Version
    request_id: str
    consumer: str
    index: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """Work was admitted under ``version``."""

    at_ns: int
    key: ScopeKey
    version: Version
    request_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Work ended by itself or by its client, not by a version change."""

    at_ns: int
    key: ScopeKey
    version: Version
    request_id: str


@dataclass(frozen=True, slots=True)
class WritersClosed:
    """No writer of the scope below ``version`` is left on ``node``."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version


@dataclass(frozen=True, slots=True)
class CertificateIssued:
    """ALIGN signed a prefix of physical blocks for ``to_version``."""

    at_ns: int
    node: str
    key: ScopeKey
    to_version: Version
    generation: int
    tokens: int
    blocks: tuple[int, ...]
    expires_ns: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """The successor's table aliases these blocks of its predecessor."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version
    request_id: str
    generation: int
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allocated:
    """Fresh blocks for work of ``version``."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wrote:
    """Work of ``version`` wrote KV into these blocks."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Freed:
    """RECLAIM took these blocks from ``version``."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PinTaken:
    """Blocks kept for a successor, owned by the retired ``version``."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version
    blocks: tuple[int, ...]
    quota_left: int | None = None  # of the tenant, after this pin


@dataclass(frozen=True, slots=True)
class PinReleased:
    """The owner gave these blocks up."""

    at_ns: int
    node: str
    key: ScopeKey
    version: Version
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """A gate, sidecar or client took ``version`` to be current."""

    at_ns: int
    observer: str
    key: ScopeKey
    version: Version


@dataclass(frozen=True, slots=True)
class RegistryRebuilt:
    """The tenant was written anew under ``term``."""

    at_ns: int
    tenant: str
    term: int


@dataclass(frozen=True, slots=True)
class NodeRestarted:
    """The node's engine lost all its memory."""

    at_ns: int
    node: str


@dataclass(frozen=True, slots=True)
class Idle:
    """The node runs nothing and no successor is expected."""

    at_ns: int
    node: str


Record = (
    CommitMade
    | Acknowledged
    | Published
    | Delivered
    | Submitted
    | Finished
    | WritersClosed
    | CertificateIssued
    | Adopted
    | Allocated
    | Wrote
    | Freed
    | PinTaken
    | PinReleased
    | VersionSeen
    | RegistryRebuilt
    | NodeRestarted
    | Idle
)
_TYPES: Final[tuple[type[Record], ...]] = (
    CommitMade,
    Acknowledged,
    Published,
    Delivered,
    Submitted,
    Finished,
    WritersClosed,
    CertificateIssued,
    Adopted,
    Allocated,
    Wrote,
    Freed,
    PinTaken,
    PinReleased,
    VersionSeen,
    RegistryRebuilt,
    NodeRestarted,
    Idle,
)
_KINDS: Final[Mapping[str, type[Record]]] = {t.__name__: t for t in _TYPES}


def record_to_dict(record: Record) -> dict[str, Any]:
    """One line of NDJSON; a ScopeKey becomes ``tenant`` and ``scope``, a Version its text."""
    plain: dict[str, Any] = {"schema": SCHEMA, "record": type(record).__name__}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, ScopeKey):
            plain |= {"tenant": value.tenant, "scope": value.scope}
        else:
            plain[field.name] = _plain(value)
    return plain


def record_from_dict(value: object) -> Record:
    """The inverse of :func:`record_to_dict`; raises InvalidField naming what is wrong."""
    f = Fields(value, "record")
    if f.integer("schema") != SCHEMA:
        raise f.bad("schema", f"{SCHEMA}, the only form this version reads")
    kind = _KINDS.get(f.text("record"))
    if kind is None:
        raise f.bad("record", "one of " + ", ".join(_KINDS))
    values = {field.name: _read(f, field.name, str(field.type)) for field in fields(kind)}
    return kind(**values)


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records of several processes of one host, merged by their clock; ties keep their order."""
    return sorted(records, key=_at)


def _at(record: Record) -> int:
    return record.at_ns


def _plain(value: object) -> object:
    if isinstance(value, Version):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(cast("tuple[int, ...]", value))
    return value


def _read(f: Fields, name: str, kind: str) -> Any:
    match kind:
        case "int":
            return f.integer(name)
        case "int | None":
            return f.optional(name, f.whole)  # a broken quota is worth recording
        case "str":
            return f.text(name)
        case "Version":
            return f.version(name)
        case "ScopeKey":
            return ScopeKey(f.text("tenant"), f.text("scope"))
        case "Change":
            return f.choice(name, Change)
        case "tuple[int, ...]":
            items = f.items(name)
            if not all(type(i) is int for i in items):
                raise f.bad(name, "a list of integers")
            return tuple(items)
        case _:
            raise InvalidField(f"record.{name}", kind, "a field type that the codec knows")

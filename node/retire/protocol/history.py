"""What happened, as typed records: the model and the running system record it, invariants judge it.

One record a line of NDJSON (``record_to_dict``), ordered by ``at_ns``. Every process of a host uses
the same monotonic clock; ``HistoryOpened`` says which host, and what its wall clock showed. The
authority of a record is its ``tenant, scope, version`` and, where work acts, ``generation``. Must
never import anything outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, cast, get_args

from retire.protocol.codec import receipt_from_dict, receipt_to_dict
from retire.protocol.contract import Receipt
from retire.protocol.errors import InvalidField
from retire.protocol.events import Change
from retire.protocol.fields import Fields
from retire.protocol.versions import ScopeKey, Version

SCHEMA: Final = 1


class Stage(Enum):
    """The five stages of a SUPERSEDE; records of ordinary work are of none."""

    ADVANCE = "advance"
    FENCE = "fence"
    ALIGN = "align"
    RESUME = "resume"
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True)
class HistoryOpened:
    """A process began to record. Records of hosts are merged by what their wall clocks showed."""

    at_ns: int
    wall_ns: int
    host: str  # whose clock ``at_ns`` is: one boot of one machine
    writer: str


@dataclass(frozen=True, slots=True)
class CommitMade:
    """COMMIT: the registry made a change durable. Replays are not recorded."""

    at_ns: int
    key: ScopeKey
    change: Change
    from_version: Version
    to_version: Version
    idempotency_key: str
    generation: int | None = None  # of the scope from here on


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
    generation: int | None = None


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
    generation: int | None = None


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
    digests: tuple[str, ...] | None = None  # of each block's pages, where they are recorded


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
    digests: tuple[str, ...] | None = None


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
class ReceiptGiven:
    """A SUPERSEDE or cancel was answered with this receipt, or it was completed later."""

    at_ns: int
    node: str
    receipt: Receipt

    @property
    def key(self) -> ScopeKey:
        """The scope."""
        return self.receipt.key

    @property
    def version(self) -> Version:
        """Where the change led."""
        return self.receipt.to_version


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
    HistoryOpened | CommitMade | Acknowledged | Published | Delivered | Submitted | Finished
    | WritersClosed | CertificateIssued | Adopted | Allocated | Wrote | Freed
    | PinTaken | PinReleased | ReceiptGiven | VersionSeen | RegistryRebuilt | NodeRestarted | Idle
)  # fmt: skip
_KINDS: Final[Mapping[str, type[Record]]] = {t.__name__: t for t in get_args(Record)}
_FIELDS: Final = {
    kind: tuple((f.name, str(f.type)) for f in fields(kind)) for kind in _KINDS.values()
}
STAGES: Final[Mapping[type[Record], Stage]] = {
    CommitMade: Stage.ADVANCE,
    VersionSeen: Stage.ADVANCE,
    Acknowledged: Stage.ADVANCE,
    WritersClosed: Stage.FENCE,
    PinTaken: Stage.FENCE,
    CertificateIssued: Stage.ALIGN,
    Adopted: Stage.RESUME,
    ReceiptGiven: Stage.RESUME,
    PinReleased: Stage.RECLAIM,
    Freed: Stage.RECLAIM,
}


def record_to_dict(record: Record) -> dict[str, Any]:
    """One line of NDJSON; a ScopeKey becomes ``tenant`` and ``scope``, a Version its text.

    ``stage`` is for who reads the file; what is not known is left out.
    """
    kind = type(record)
    plain: dict[str, Any] = {"schema": SCHEMA, "record": kind.__name__}
    if kind in STAGES:
        plain["stage"] = STAGES[kind].value
    for name, type_name in _FIELDS[kind]:
        value = getattr(record, name)
        if isinstance(value, ScopeKey):
            plain |= {"tenant": value.tenant, "scope": value.scope}
        elif value is not None or "None" not in type_name:
            plain[name] = _plain(value)
    return plain


def record_from_dict(value: object) -> Record:
    """The inverse of :func:`record_to_dict`; raises InvalidField naming what is wrong."""
    f = Fields(value, "record")
    if f.integer("schema") != SCHEMA:
        raise f.bad("schema", f"{SCHEMA}, the only form this version reads")
    kind = _KINDS.get(f.text("record"))
    if kind is None:
        raise f.bad("record", "one of " + ", ".join(_KINDS))
    return kind(**{name: _read(f, name, type_name) for name, type_name in _FIELDS[kind]})


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
        return list(cast("tuple[object, ...]", value))
    if isinstance(value, Receipt):
        return receipt_to_dict(value)
    return value


def _read(f: Fields, name: str, kind: str) -> Any:
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidField(f"record.{name}", kind, "a field type that the codec knows")
    return reader(f, name)


def _all(f: Fields, name: str, kind: type, what: str) -> tuple[Any, ...]:
    items = f.items(name)
    if not all(type(item) is kind for item in items):
        raise f.bad(name, f"a list of {what}")
    return tuple(items)


_READERS: Final[Mapping[str, Callable[[Fields, str], Any]]] = {
    "int": Fields.integer,
    "int | None": lambda f, name: f.optional(name, f.whole),  # a broken quota is worth recording
    "str": Fields.text,
    "Version": Fields.version,
    "ScopeKey": lambda f, _: ScopeKey(f.text("tenant"), f.text("scope")),
    "Change": lambda f, name: f.choice(name, Change),
    "Receipt": lambda f, name: receipt_from_dict(f.plain(name)),
    "tuple[int, ...]": lambda f, name: _all(f, name, int, "integers"),
    "tuple[str, ...] | None": lambda f, name: (
        _all(f, name, str, "strings") if f.has(name) else None
    ),
}

"""Everything a decision about one ServingScope rests on. Frozen values; no IO, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from retire.protocol.errors import InvalidField
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from retire.protocol.contract import Policy
    from retire_operator.receipts import Line
    from retire_operator.resource import Desired


class Unknown(Enum):
    """Why there is no record of a scope."""

    ABSENT = "absent"  # the registry answered: it holds no such scope
    UNREADABLE = "unreadable"  # the registry did not answer


@dataclass(frozen=True, slots=True)
class Record:
    """The scope as the registry holds it."""

    version: Version
    paused: bool = False
    cancelled: bool = False
    policy: Policy | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class RegistryView:
    """What the guard says of the registry."""

    term: int
    synced: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A ready node of the scope's pool."""

    name: str
    boot_id: str = ""
    holds: bool = False  # it joined the scope, by the registry's record
    version: Version | None = None  # of the scope there; None: not asked, or it did not say
    requests: int = 0
    pinned_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """A resolved ``spec.context``: what Warm computes."""

    request_json: str
    digest: str  # sha256 of request_json


@dataclass(frozen=True, slots=True)
class Missing:
    """Something the spec names that is not as it must be; recovers when it is mended."""

    reason: str  # a condition's reason
    message: str


@dataclass(frozen=True, slots=True)
class Parent:
    """The object that ``spec.parentRef`` names."""

    tenant: str
    registered: bool
    cancelled: bool


@dataclass(frozen=True, slots=True)
class Quota:
    """What became of ``spec.quota``."""

    granted: bool
    message: str = ""
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The last attempt of an action failed; it is tried again."""

    action: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The object's status as it was written last."""

    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> Version | None:
        """The version that the status claims; unreadable is none."""
        try:
            return Version.parse(str(self.raw["version"]))
        except (KeyError, InvalidField):
            return None

    @property
    def warmed(self) -> tuple[str, str]:
        """Version and digest of the context that was computed last."""
        prewarm = self.raw.get("prewarm") or {}
        return str(prewarm.get("version") or ""), str(prewarm.get("digest") or "")


@dataclass(frozen=True, slots=True)
class Facts:
    """One gathering."""

    desired: Desired
    seen: Seen
    registry: RegistryView
    record: Record | Unknown
    nodes: tuple[NodeView, ...] = ()  # ready ones of the pool
    pool_exists: bool = True  # some pod carries the pool's label
    context: Context | Missing | None = None
    tenant_allowed: bool = True
    taken_by: str = ""  # an older ServingScope of the same tenant and name
    parent: Parent | None = None  # None: there is no parentRef, or nothing of that name
    quota: Quota | None = None
    lines: tuple[Line, ...] = ()  # transitions known, newest first
    failure: Failure | None = None
    unreadable_why: str = ""  # with Unknown.UNREADABLE
    # How long a deleted object may wait for its cancel.
    finalizer_timeout_s: float = 30.0

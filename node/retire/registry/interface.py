"""What the registry promises, as a typing.Protocol: one method per operation, one Lua file each.

Every mutating call carries the caller's ``term`` (checked inside the script) and answers only after
the write is durable. Times are seconds on the registry's own clock unless named otherwise.
Errors are the tree of ``retire.protocol.errors``; nothing of redis-py leaves this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from retire.protocol.contract import Policy
    from retire.protocol.versions import ScopeKey, Version
    from retire.registry.settings import Durability


class CommitKind(Enum):
    """What a commit does to a scope. Only SUPERSEDE and CANCEL move the epoch."""

    SUPERSEDE = "supersede"  # epoch + 1
    CANCEL = "cancel"  # epoch + 1, terminal: no request is admitted any more
    PAUSE = "pause"  # same version
    RESUME = "resume"  # same version


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """A scope as the registry holds it."""

    key: ScopeKey
    version: Version
    generation: int
    paused: bool
    cancelled: bool
    policy: Policy | None
    parent: str | None  # a scope name of the same tenant
    nodes: tuple[str, ...]  # nodes that joined, whatever their lease
    created: bool = False  # only in the answer of register/join: this call created it


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A node's publish lease as the registry sees it."""

    node: str
    boot_id: str
    expires_in_s: float  # negative: ended


@dataclass(frozen=True, slots=True)
class Commit:
    """A durable COMMIT; ``replayed`` when the idempotency key had already made it."""

    kind: CommitKind
    key: ScopeKey
    from_version: Version
    to_version: Version
    generation: int
    sequence: int  # commit sequence of the tenant, strictly increasing
    event_id: str  # position in the tenant's stream
    # Every boot of a node that joined a moved scope, and what was left of its lease at the commit;
    # no lease: -0.001. Node "*" stands for leases of an older term that a rebuild could not name.
    # Nobody acks for it.
    gates: tuple[LeaseView, ...]
    replayed: bool
    children: tuple[
        tuple[ScopeKey, Version], ...
    ] = ()  # descendants this commit moved, and where to
    receipt_json: str | None = None  # when replayed: what report() kept beside the idempotency key


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewed lease entitles to, and what must be applied before using it."""

    expires_in_s: float
    tails: dict[str, str]  # tenant -> id of the last event when the lease was renewed
    sequences: dict[str, int]  # tenant -> commit sequence then


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a tenant's stream: a commit, a gate ack, a setting, a rebuild or a receipt.

    Fields. commit: kind, scope, from, to, generation, sequence, by, children (JSON ``[[scope,
    version], ...]``). ack and receipt: scope, node, version, payload. register and configure:
    scope, version, policy ("-": none), parent ("": none). quota: blocks ("": unlimited). rebuild:
    term, incarnation. Versions are written ``term.epoch``.
    """

    id: str
    tenant: str
    kind: str  # "commit" | "ack" | "register" | "configure" | "quota" | "rebuild" | "receipt"
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks of a tenant's pin quota held by one owner until the lease ends."""

    owner: str
    blocks: int
    left: int | None  # blocks left in the tenant's quota; None: unlimited
    expires_in_s: float
    over: int = 0  # blocks that all owners together hold above the quota, after it was lowered


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything of one tenant that a rebuild needs."""

    tenant: str
    term: int
    incarnation: str
    sequence: int
    scopes: tuple[ScopeRecord, ...]
    quota_blocks: int | None
    reservations: tuple[Reservation, ...]
    tail: str  # id of the last event contained


class Registry(Protocol):
    """The asyncio registry. ``SyncRegistry`` in client.py has the same methods without await."""

    async def hello(self, tenant: str, *, term: int) -> str:
        """Open a tenant under ``term``; returns the incarnation (random id written once, at
        creation or rebuild).

        Creates the tenant when the whole registry is new *and* holds no tenant of that name. Raises
        TermMismatch when the registry's term is not ``term``, or when it held this tenant and lost
        it. NeedRegister when the registry is empty and this client was told that one had been
        opened before (RegistrySettings.create_when_empty).
        """
        ...

    async def list_tenants(self) -> tuple[str, ...]:
        """Every tenant the registry ever opened, sorted."""
        ...

    async def register(
        self,
        key: ScopeKey,
        *,
        term: int,
        epoch: int = 0,
        policy: Policy | None = None,
        parent: str | None = None,
    ) -> ScopeRecord:
        """Create the scope at ``term.epoch`` unless it exists; returns it as it is (``created``
        says which)."""
        ...

    async def configure(
        self, key: ScopeKey, *, term: int, policy: Policy | None, parent: str | None = None
    ) -> ScopeRecord:
        """Set the policy of an existing scope (None clears it), and its parent where it has none.

        A parent never changes: InvalidField for another one, or for one below the scope. Asking
        twice is asking once. NeedRegister for an unknown scope or parent, ScopeClosed for a
        cancelled parent.
        """
        ...

    async def join(self, key: ScopeKey, *, term: int, node: str, boot_id: str) -> ScopeRecord:
        """Make ``node`` a gate of the scope, from its current version on. NeedRegister when
        unknown, ScopeClosed when cancelled."""
        ...

    async def leave(self, key: ScopeKey, *, term: int, node: str) -> None:
        """The node holds no gate of the scope any more (all its streams closed)."""
        ...

    async def commit(
        self,
        kind: CommitKind,
        key: ScopeKey,
        *,
        term: int,
        expected: Version,
        idempotency_key: str,
        body_digest: str,
        by: str,
    ) -> Commit:
        """Compare-and-set from ``expected``. VersionConflict with the current version, no effect,
        when it is another.

        SUPERSEDE and CANCEL move every live descendant of the scope too. ScopeClosed after a
        cancel. The same idempotency key answers the same Commit for 24 hours; IdempotencyConflict
        with another digest, kind or scope.
        """
        ...

    async def ack(
        self, key: ScopeKey, *, term: int, node: str, version: Version, payload: str = ""
    ) -> None:
        """The gates of ``node`` can no longer publish below ``version``; wakes the committer
        through the stream.

        ``key`` is the scope that was committed, whichever of the moved scopes the node holds: one
        ack a commit.
        """
        ...

    async def report(
        self,
        key: ScopeKey,
        *,
        term: int,
        node: str,
        version: Version,
        receipt_json: str,
        idempotency_key: str = "",
    ) -> None:
        """Publish a receipt as an event, and keep it for replays of the commit made under
        ``idempotency_key``."""
        ...

    async def renew(
        self, node: str, *, term: int, boot_id: str, lease_s: float, tenants: dict[str, int]
    ) -> Renewal:
        """Renew the node's publish lease in each tenant.

        ``tenants`` maps each tenant to the highest commit sequence this node has seen. TermMismatch
        when the registry is behind it (rolled back), has another term, lost the tenant, or no
        longer holds an event that this client saw. NeedRegister when this boot was replaced by a
        later one or its lease ended a day ago.
        """
        ...

    async def expire(self, node: str, *, term: int, tenants: Sequence[str]) -> None:
        """End the node's leases now (clean shutdown), so that no committer waits for them."""
        ...

    async def reserve(
        self, tenant: str, *, term: int, owner: str, blocks: int, lease_s: float
    ) -> Reservation:
        """Set the owner's reservation to ``blocks`` (grow, shrink or renew). QuotaExceeded leaves
        it as it was.

        Reservations whose lease ended return their blocks first. Not growing is never refused.
        """
        ...

    async def release(self, tenant: str, *, term: int, owner: str) -> None:
        """Drop the owner's reservation."""
        ...

    async def set_quota(self, tenant: str, *, term: int, blocks: int | None) -> None:
        """Set the tenant's pin quota in blocks; None: unlimited. A change is an event for nodes."""
        ...

    async def get(self, key: ScopeKey) -> ScopeRecord:
        """Read one scope. UnknownScope when absent."""
        ...

    async def list_scopes(self, tenant: str) -> tuple[ScopeRecord, ...]:
        """Every scope of a tenant, by name. NeedRegister when the tenant is absent: lost is not
        empty."""
        ...

    def events(self, tenant: str, *, after: str) -> AsyncIterator[Event]:
        """Follow the tenant's stream from ``after`` ("$": from now, "0-0": from its start). Nothing
        is lost on reconnect, which goes on for as long as it takes; only the first contact raises
        RegistryUnavailable. Raises TermMismatch when the stream was trimmed or lost past ``after``,
        or after a rebuild event (resync with snapshot)."""
        ...

    async def snapshot(self, tenant: str) -> Snapshot:
        """Read the whole tenant."""
        ...

    async def rebuild(
        self,
        tenant: str,
        *,
        term: int,
        scopes: Sequence[ScopeRecord],
        quota_blocks: int | None,
        sequence: int = 0,
        settle_s: float = 2.0,
    ) -> str:
        """Write the tenant anew under ``term`` (higher than any before), epochs upward only;
        returns the incarnation. A scope given without policy or parent keeps what is held.

        ``sequence``: the highest commit sequence any node has seen. ``settle_s``: the longest
        publish lease a node of an older term may still hold; until it has passed, each Commit
        counts it as gate "*".
        """
        ...

    async def check_durability(self) -> Durability:
        """How writes become durable at this server; RegistryUnavailable when they do not."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...

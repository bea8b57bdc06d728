"""Tenants' pin quotas: what the namespaces give, who gets a share of it, and the registry told so.

Owns the annotation. Requests are settled oldest first, like a ResourceQuota; the registry enforces
the tenant's total, whatever was granted here. Must never be asked on the path of a transition.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from retire.protocol.errors import InvalidField, NeedRegister
from retire.protocol.versions import ScopeKey
from retire.registry.operations import BLOCKS_MAX
from retire_operator.resource import TENANTS

if TYPE_CHECKING:
    from retire_operator.registry_guard import RegistryState

PIN_QUOTA: Final = "serving.retire.dev/pin-quota-blocks"  # on the Namespace

TOLD_AGAIN_S: Final = 60.0  # another operator may have told the registry something older since


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """``spec.quota.pinnedBlocks`` of one scope; None: it asks for nothing."""

    name: str
    namespace: str
    created_at: str  # RFC 3339 in UTC, so that text order is time order
    blocks: int | None


@dataclass(frozen=True, slots=True)
class QuotaAnswer:
    """What became of a request."""

    granted: bool
    message: str
    left: int | None  # blocks of the tenant's quota that nobody was granted; None: unlimited


@dataclass(frozen=True, slots=True)
class Share:
    """The tenant's quota, and the answer for each scope that asked."""

    blocks: int | None  # None: unlimited
    answers: Mapping[str, QuotaAnswer]


def share_quota(tenant: str, limit: int | None, requests: Sequence[QuotaRequest]) -> Share:
    """Settle the requests of a tenant within ``limit`` (None: no annotation says one).

    Oldest first. One that does not fit takes nothing, so that a smaller, younger one still may.
    """
    asking = sorted(
        (r for r in requests if r.blocks is not None),
        key=lambda r: (r.created_at, r.namespace, r.name),
    )
    # A second object of the same scope: the older one speaks for it.
    scopes = {request.name: request for request in reversed(asking)}
    asking = [request for request in asking if scopes[request.name] is request]
    if limit is None:
        total = sum(request.blocks or 0 for request in asking) if asking else None
        text = "granted: no quota is set for the tenant"
        return Share(total, {request.name: QuotaAnswer(True, text, 0) for request in asking})
    left, granted = limit, set()
    for request in asking:
        blocks = request.blocks or 0
        if blocks <= left:
            left -= blocks
            granted.add(request.name)
    return Share(
        limit,
        {
            request.name: _answer(
                tenant, request, granted=request.name in granted, limit=limit, left=left
            )
            for request in asking
        },
    )


def _answer(
    tenant: str, request: QuotaRequest, *, granted: bool, limit: int, left: int
) -> QuotaAnswer:
    if granted:
        return QuotaAnswer(True, f"{request.blocks} of {limit} blocks are the scope's", left)
    return QuotaAnswer(
        False,
        f"spec.quota.pinnedBlocks {request.blocks} does not fit: {left} of {limit} blocks are left"
        f" in the quota of tenant {tenant!r}; lower it, or raise the namespace's annotation"
        f" {PIN_QUOTA}",
        left,
    )


def quota_limit(tenant: str, namespaces: Mapping[str, Mapping[str, str]]) -> int | None:
    """The tenant's quota by the namespaces' annotations; None: none says one.

    The namespace of the tenant's name decides; else the lowest among those that may speak for the
    tenant. InvalidField names a malformed annotation.
    """
    own = namespaces.get(tenant, {})
    if PIN_QUOTA in own:
        return _blocks(tenant, own[PIN_QUOTA])
    limits = [
        _blocks(name, annotations[PIN_QUOTA])
        for name, annotations in namespaces.items()
        if PIN_QUOTA in annotations and tenant in speaks_for(annotations)
    ]
    return min(limits, default=None)


def speaks_for(annotations: Mapping[str, str]) -> set[str]:
    """Further tenants that the scopes of a namespace may name."""
    return {word.strip() for word in annotations.get(TENANTS, "").split(",")} - {""}


def _blocks(namespace: str, text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > BLOCKS_MAX:
        field = f"annotation {PIN_QUOTA} of namespace {namespace}"
        raise InvalidField(field, text, 'a number of blocks in quotes, for example "1000"')
    return int(text)


def requests_of(tenant: str, bodies: Sequence[Mapping[str, Any]]) -> list[QuotaRequest]:
    """What the ServingScopes of a tenant ask for. Those that are over or going ask for nothing."""
    found = []
    for body in bodies:
        meta, spec = body["metadata"], body.get("spec") or {}
        if (spec.get("tenant") or meta["namespace"]) != tenant:
            continue
        if meta.get("deletionTimestamp") or spec.get("cancelled"):
            continue
        blocks = (spec.get("quota") or {}).get("pinnedBlocks")
        created = str(meta.get("creationTimestamp") or "")
        found.append(QuotaRequest(meta["name"], meta["namespace"], created, blocks))
    return found


def allowed(
    tenant: str, bodies: Sequence[Mapping[str, Any]], namespaces: Mapping[str, Mapping[str, str]]
) -> list[Mapping[str, Any]]:
    """Without the objects of namespaces that may not speak for the tenant: they would use up its
    quota."""
    named = [body["metadata"]["namespace"] for body in bodies]
    speakers = {name for name in named if tenant in speaks_for(namespaces.get(name, {}))}
    return [b for b in bodies if b["metadata"]["namespace"] in speakers | {tenant}]


class Registry(Protocol):
    """The part of ``retire.registry`` that quotas need."""

    async def set_quota(self, tenant: str, *, term: int, blocks: int | None) -> None:
        """See retire.registry.interface."""
        ...


class Guard(Protocol):
    """The part of the registry's guard that quotas need."""

    async def ensure(self) -> RegistryState:
        """See registry_guard.py."""
        ...

    async def open_tenant(self, tenant: str) -> None:
        """See registry_guard.py."""
        ...


class QuotaBook:
    """What the objects of the cluster say about quotas. Both arguments read caches or the API."""

    def __init__(
        self,
        bodies: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
        namespaces: Callable[[], Awaitable[Mapping[str, Mapping[str, str]]]],
    ) -> None:
        self._bodies = bodies
        self._namespaces = namespaces

    async def share(self, tenant: str) -> Share | None:
        """The tenant's share-out; None when no object says anything about its quota."""
        namespaces = await self._namespaces()
        limit = quota_limit(tenant, namespaces)
        bodies = allowed(tenant, await self._bodies(), namespaces)
        requests = requests_of(tenant, bodies)
        if limit is None and not requests:
            return None
        return share_quota(tenant, limit, requests)

    async def asking(self, tenant: str) -> list[str]:
        """The scopes that ask for something, whether or not anybody can say what they get."""
        bodies = allowed(tenant, await self._bodies(), await self._namespaces())
        return [r.name for r in requests_of(tenant, bodies) if r.blocks is not None]

    async def decided(self, tenant: str, held: int | None) -> int | None:
        """The quota to write; ``held``, what the registry held, where no object has a say or one
        cannot be read."""
        try:
            share = await self.share(tenant)
        except InvalidField:
            return held
        return held if share is None else share.blocks


class TenantQuotas:
    """Keeps the registry's quotas as the objects say."""

    def __init__(
        self,
        book: QuotaBook,
        registry: Registry,
        guard: Guard,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._book = book
        self._registry = registry
        self._guard = guard
        self._clock = clock  # monotonic
        self._told: dict[str, tuple[int, int | None, float]] = {}  # term, quota, when

    async def settle(self, tenant: str) -> dict[str, QuotaAnswer]:
        """Answers by scope name; the registry is told only of a change. A malformed annotation
        refuses every request of the tenant and changes nothing."""
        ScopeKey(tenant, "-")
        try:
            share = await self._book.share(tenant)
        except InvalidField as error:
            names = await self._book.asking(tenant)
            return {name: QuotaAnswer(False, str(error), None) for name in names}
        if share is None:
            return {}
        state = await self._guard.ensure()
        term, blocks, told_s = self._told.get(tenant, (0, None, -math.inf))
        current = (term, blocks) == (state.term, share.blocks)
        if state.synced and not (current and self._clock() - told_s < TOLD_AGAIN_S):
            await self._tell(tenant, state.term, share.blocks)
        return dict(share.answers)

    async def _tell(self, tenant: str, term: int, blocks: int | None) -> None:
        try:
            await self._registry.set_quota(tenant, term=term, blocks=blocks)
        except NeedRegister:
            await self._guard.open_tenant(tenant)
            await self._registry.set_quota(tenant, term=term, blocks=blocks)
        self._told[tenant] = (term, blocks, self._clock())

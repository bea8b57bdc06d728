"""What the parts of the operator ask of each other, as typing.Protocols.

Types only: no IO, no decisions. The real ones are in registry_guard.py, tenants.py and nodes.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from retire.protocol.contract import Contract, Policy
    from retire.protocol.versions import ScopeKey, Version
    from retire.registry.interface import ScopeRecord
    from retire.sidecar.client import Mutation
    from retire.sidecar.pb import node_pb2 as pb


class RegistryState(Protocol):
    """The guard's answer: under which term the registry stands, and whether it may be used."""

    @property
    def term(self) -> int:
        """Of the term Lease."""
        ...

    @property
    def synced(self) -> bool:
        """False: nothing may be committed yet."""
        ...

    @property
    def reason(self) -> str:
        """A condition's reason."""
        ...

    @property
    def message(self) -> str:
        """See registry_guard.py."""
        ...


class Guard(Protocol):
    """Keeps the term and detects a registry that lost its data (registry_guard.py)."""

    async def ensure(self) -> RegistryState:
        """A cheap, cached answer."""
        ...

    def suspect(self, why: str) -> None:
        """The registry contradicts what we know; look again before the next answer."""
        ...

    async def open_tenant(self, tenant: str) -> None:
        """Open a tenant for its first scope; Unavailable unless the registry is synced."""
        ...


class QuotaAnswer(Protocol):
    """What a scope got of its tenant's pin quota."""

    @property
    def granted(self) -> bool:
        """See tenants.py."""
        ...

    @property
    def message(self) -> str:
        """See tenants.py."""
        ...

    @property
    def left(self) -> int | None:
        """Blocks; None: unlimited."""
        ...


class Tenants(Protocol):
    """Settles the scopes' quota requests with the namespace's annotation (tenants.py)."""

    async def settle(self, tenant: str) -> Mapping[str, QuotaAnswer]:
        """Answers by scope name; a scope that is not in it asked for nothing."""
        ...


class Node(Protocol):
    """One sidecar: the calls the operator makes (retire.sidecar.client.NodeClient)."""

    @property
    def outdated(self) -> bool:
        """Its certificate files were replaced: open another client."""
        ...

    def supersede(
        self,
        key: ScopeKey,
        mutation: Mutation,
        *,
        contract: Contract | None = None,
        driver: bool = False,
    ) -> AsyncIterator[pb.TransitionEvent]:
        """See retire.sidecar.client."""
        ...

    async def cancel(self, key: ScopeKey, mutation: Mutation) -> pb.TransitionReply:
        """See retire.sidecar.client."""
        ...

    async def pause(self, key: ScopeKey, mutation: Mutation) -> pb.TransitionReply:
        """See retire.sidecar.client."""
        ...

    async def resume(self, key: ScopeKey, mutation: Mutation) -> pb.TransitionReply:
        """See retire.sidecar.client."""
        ...

    async def inspect(self, key: ScopeKey) -> pb.ScopeView:
        """See retire.sidecar.client."""
        ...

    async def list(self, tenant: str = "") -> list[pb.ScopeView]:
        """See retire.sidecar.client."""
        ...

    async def status(self) -> pb.StatusReply:
        """See retire.sidecar.client."""
        ...

    async def warm(
        self, key: ScopeKey, version: Version, *, request_json: bytes, traceparent: str = ""
    ) -> pb.WarmReply:
        """See retire.sidecar.client."""
        ...

    def watch(self, tenant: str = "", *, after: int = 0) -> AsyncIterator[pb.TransitionRecord]:
        """See retire.sidecar.client."""
        ...

    async def close(self) -> None:
        """See retire.sidecar.client."""
        ...


class Registry(Protocol):
    """What the operator itself asks of the registry (a part of retire.registry's Registry)."""

    async def register(
        self,
        key: ScopeKey,
        *,
        term: int,
        epoch: int = 0,
        policy: Policy | None = None,
        parent: str | None = None,
    ) -> ScopeRecord:
        """See retire.registry.interface."""
        ...

    async def configure(
        self, key: ScopeKey, *, term: int, policy: Policy | None, parent: str | None = None
    ) -> ScopeRecord:
        """See retire.registry.interface."""
        ...

    async def get(self, key: ScopeKey) -> ScopeRecord:
        """See retire.registry.interface."""
        ...

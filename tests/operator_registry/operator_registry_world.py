"""What a guard talks to: the Lease, the nodes, the CRs, a real registry; and how to cut it off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from retire.protocol.contract import Policy
from retire.protocol.errors import Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.interface import CommitKind, ScopeRecord
from retire.registry.settings import RegistrySettings
from retire.sidecar.client import NodeClient
from retire.sidecar.pb import node_pb2 as pb
from retire_operator.errors import WriteConflict
from retire_operator.gathering import Gatherer
from retire_operator.registry_guard import GuardSettings, RegistryGuard, RegistryState
from retire_operator.registry_writer import NODE_TENANT
from retire_operator.term import StoredLease, TermLease

PLAN, SIDE, OVER = (ScopeKey("acme", name) for name in ("plan", "side", "over"))
OTHER = ScopeKey("globex", "plan")
SETTINGS = GuardSettings(watch_s=0.5, full_s=0.0, takeover_s=5.0, patience_s=0.0, settle_s=0.05)


class Clock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class MemoryLease:
    """LeaseApi with the resourceVersion semantics of an API server."""

    def __init__(self) -> None:
        self.stored: StoredLease | None = None
        self.terms: list[int] = []  # every term that was ever written, in order
        self._version = 0

    async def read(self) -> StoredLease | None:
        return self.stored

    async def create(self, lease: StoredLease) -> StoredLease:
        await asyncio.sleep(0)
        if self.stored is not None:
            raise WriteConflict("create lease: it exists")
        return self._store(lease)

    async def replace(self, lease: StoredLease) -> StoredLease:
        await asyncio.sleep(0)
        if self.stored is None or self.stored.resource_version != lease.resource_version:
            raise WriteConflict("update lease: the object has been modified")
        return self._store(lease)

    def _store(self, lease: StoredLease) -> StoredLease:
        self._version += 1
        self.terms.append(lease.term)
        self.stored = replace(lease, resource_version=str(self._version), raw=object())
        return self.stored


@dataclass
class FakeNode:
    """A sidecar as the guard sees it. ``reachable``: it answers."""

    name: str
    term: int = 1
    lease: str = "held"
    lost: str = ""
    publish_lease_s: float = 0.05
    reachable: bool = True
    sequences: dict[str, int] = field(default_factory=dict)
    scopes: dict[ScopeKey, ScopeRecord] = field(default_factory=dict)

    @property
    def client(self) -> FakeNode:
        return self

    async def status(self) -> pb.StatusReply:
        self._answer()
        return pb.StatusReply(
            node=self.name,
            term=self.term,
            lease=self.lease,
            registry_lost=self.lost,
            publish_lease_s=self.publish_lease_s,
            sequences=self.sequences,
        )

    async def list(self, tenant: str = "") -> list[pb.ScopeView]:
        self._answer()
        return [
            pb.ScopeView(
                key=pb.ScopeKey(tenant=key.tenant, scope=key.scope),
                version=pb.Version(term=r.version.term, epoch=r.version.epoch),
                paused=r.paused,
                cancelled=r.cancelled,
                policy=r.policy.value if r.policy else "",
                parent=r.parent or "",
                generation=r.generation,
            )
            for key, r in self.scopes.items()
            if tenant in ("", key.tenant)
        ]

    def _answer(self) -> None:
        if not self.reachable:
            raise Unavailable("sidecar: no route to host")


@dataclass(frozen=True)
class PoolNode:
    """A real node as a pool holds it."""

    name: str
    client: NodeClient


class KeptQuotas:
    """No object says anything about quotas."""

    async def decided(self, tenant: str, held: int | None) -> int | None:
        del tenant
        return held


def cr(key: ScopeKey, version: str | None, **status: Any) -> dict[str, Any]:
    """A ServingScope as the API server holds it; ``spec_*`` go to the spec."""
    spec = {name[5:]: status.pop(name) for name in [*status] if name.startswith("spec_")}
    return {
        "metadata": {"namespace": key.tenant, "name": key.scope, "uid": f"uid-{key}"},
        "spec": {"epoch": 0, "paused": False, "cancelled": False, **spec},
        "status": {"version": version, **status} if version else {},
    }


class Cut:
    """Ends a process at its n-th step: nothing of it happens afterwards.

    ``after``: the step itself has its effect, but its caller never hears of it.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at, self.after = at, after
        self.steps = 0
        self.dead = False

    async def through(self, step: Awaitable[Any]) -> Any:
        self.steps += 1
        dies = self.steps == self.at
        self.dead |= dies and not self.after
        if self.dead:
            if asyncio.iscoroutine(step):
                step.close()
            raise asyncio.CancelledError
        try:
            return await step
        finally:
            self.dead |= dies
            if self.dead:  # also when the step failed: nobody hears of that either
                raise asyncio.CancelledError


class CutLease:
    """A LeaseApi behind a cut."""

    def __init__(self, lease: MemoryLease, cut: Cut) -> None:
        self._lease, self._cut = lease, cut

    async def read(self) -> StoredLease | None:
        return await self._cut.through(self._lease.read())

    async def create(self, lease: StoredLease) -> StoredLease:
        return await self._cut.through(self._lease.create(lease))

    async def replace(self, lease: StoredLease) -> StoredLease:
        return await self._cut.through(self._lease.replace(lease))


class CutRegistry(AsyncRegistry):
    """A registry client behind a cut: each script is a step. Notes every rebuild that took
    effect."""

    def __init__(
        self, url: str, settings: RegistrySettings, cut: Cut, written: list[tuple[str, int]]
    ) -> None:
        super().__init__(url, settings)
        self._cut, self._written = cut, written

    async def _run(self, call: Any) -> Any:
        return await self._cut.through(self._noted(call))

    async def _noted(self, call: Any) -> Any:
        reply = await super()._run(call)
        if call.script.name == "rebuild":
            self._written.append((call.subject.tenant, call.subject.term))
        return reply


class World:
    """A Lease, nodes, CRs and a registry; guards on all of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self.lease = MemoryLease()
        self.nodes: list[FakeNode] = []
        self.crs: list[dict[str, Any]] = []
        self.written: list[tuple[str, int]] = []  # (tenant, term) of every rebuild
        self.registry = self.client()
        self._opened: list[Any] = [self.registry]

    def client(self, *, create_when_empty: bool = False) -> AsyncRegistry:
        """A client of nobody's guard."""
        settings = RegistrySettings(create_when_empty=create_when_empty, retries=1, timeout_s=10.0)
        return AsyncRegistry(self.url, settings)

    def guard(
        self, identity: str = "a", *, cut: Cut | None = None, settings: GuardSettings = SETTINGS
    ) -> RegistryGuard:
        """One operator's guard."""
        cut = cut or Cut()

        async def bodies() -> list[dict[str, Any]]:
            async def read() -> list[dict[str, Any]]:
                return self.crs

            return await cut.through(read())

        def connect(create_when_empty: bool) -> CutRegistry:
            asked = RegistrySettings(create_when_empty=create_when_empty, retries=1, timeout_s=10.0)
            return CutRegistry(self.url, asked, cut, self.written)

        guard = RegistryGuard(
            TermLease(CutLease(self.lease, cut), identity=identity),
            Gatherer(bodies, lambda: self.nodes, answer_s=10.0),
            KeptQuotas(),
            connect=connect,
            clock=self.clock,
            settings=settings,
        )
        self._opened.append(guard)
        return guard

    async def synced(self, guard: RegistryGuard, *, rounds: int = 30) -> RegistryState:
        """Check again and again, a second apart, until the guard says so."""
        for _ in range(rounds):
            state = await guard.check()
            if state.synced:
                return state
            self.clock.now_s += 1.0
        raise AssertionError(f"not synced after {rounds} rounds: {state}")

    async def flush(self) -> None:
        """The registry loses everything."""
        await self.registry._client.flushall()

    async def register(self, key: ScopeKey, *, term: int = 1, **settings: Any) -> ScopeRecord:
        """A scope of an opened registry; its tenant is opened too."""
        await self.registry.hello(key.tenant, term=term)
        return await self.registry.register(key, term=term, **settings)

    async def commit(self, key: ScopeKey, kind: CommitKind = CommitKind.SUPERSEDE) -> Version:
        """One commit from wherever the scope is."""
        now = (await self.registry.get(key)).version
        made = await self.registry.commit(
            kind,
            key,
            term=now.term,
            expected=now,
            idempotency_key=f"{key.scope}-{now}-{kind.value}",
            body_digest="",
            by="test",
        )
        return made.to_version

    async def inform(self, *nodes: FakeNode) -> None:
        """The nodes have seen everything that the registry holds now."""
        for tenant in await self.registry.list_tenants():
            snapshot = await self.registry.snapshot(tenant)
            for node in nodes:
                node.term, node.lost, node.lease = snapshot.term, "", "held"
                node.sequences[tenant] = snapshot.sequence
                node.scopes |= {record.key: record for record in snapshot.scopes}

    async def inhabit(self) -> FakeNode:
        """An open registry with a history, a node that saw all of it, and CRs of some of it."""
        await self.synced(self.guard("first"))
        await self.register(PLAN, policy=Policy.INTERRUPT)
        await self.register(SIDE, parent=PLAN.scope)
        await self.register(OVER)
        await self.register(OTHER, epoch=7)
        for _ in range(3):
            await self.commit(PLAN)
        await self.commit(OVER, CommitKind.CANCEL)
        await self.commit(OTHER, CommitKind.PAUSE)
        node = FakeNode("node-0")
        self.nodes.append(node)
        await self.inform(node)
        return node

    async def scopes(self) -> dict[ScopeKey, ScopeRecord]:
        """Every scope that the registry holds."""
        found: dict[ScopeKey, ScopeRecord] = {}
        for tenant in await self.registry.list_tenants():
            found |= {record.key: record for record in await self.registry.list_scopes(tenant)}
        return found

    async def terms(self) -> set[int]:
        """The terms of all tenants."""
        tenants = await self.registry.list_tenants()
        assert NODE_TENANT in tenants
        return {(await self.registry.snapshot(tenant)).term for tenant in tenants}

    async def close(self) -> None:
        """Close every client."""
        for opened in self._opened:
            await opened.close()


async def until(condition: Callable[[], Awaitable[bool]], *, limit_s: float = 30.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(limit_s):
        while not await condition():
            await asyncio.sleep(0.02)

"""The guard, real sidecars that follow its Lease on a real API server, and a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from operator_registry_world import KeptQuotas, PoolNode, World

from e2e.sidecar_nodes import Gate, Sidecar
from retire.protocol.errors import Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.registry.embedded import EmbeddedServer
from retire.sidecar import convert
from retire.sidecar.client import Mutation
from retire_operator.gathering import Gatherer
from retire_operator.registry_guard import GuardSettings, RegistryGuard
from retire_operator.term import KubernetesLease, TermLease

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
LEASE_S = 1.0
KEY = ScopeKey("acme", "plan")


class Cluster:
    """Two nodes and one operator's guard in a namespace."""

    def __init__(self, cluster: Any, namespace: str, folder: Path, url: str, leases: Any) -> None:
        self._cluster, self._namespace, self._folder, self._url = cluster, namespace, folder, url
        self._leases = leases
        self.world = World(url)  # its registry client; the guard below is on the real Lease
        self.nodes: list[Sidecar] = []
        self.gates: list[Gate] = []
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        for name in ("a", "b"):
            node = Sidecar(self._folder, self._url, node=name, **self._env()).start()
            self._stack.callback(node.kill)
            self.nodes.append(node)
        self.guard = self._guard()
        watching = asyncio.create_task(self.guard.run())
        self._stack.push_async_callback(_cancelled, watching)
        for node in self.nodes:
            await node.until_held()
            self.gates.append(await self._stack.enter_async_context(Gate(node, node.node)))

    async def stop(self) -> None:
        for node in self.nodes:
            print(f"--- {node.node}\n{node.log.read_text()}")
        await self._stack.aclose()
        await self.guard.close()
        await self.world.close()

    def _env(self) -> dict[str, str]:
        account = self._folder / "account"
        if not account.exists():
            self._account(account)
        return {
            "RETIRE_TERM_LEASE": f"{self._namespace}/retire-term",
            "RETIRE_KUBE_API": self._cluster.api.server,
            "RETIRE_KUBE_ACCOUNT": str(account),
            "RETIRE_TERM_FILE": "",
            "RETIRE_LEASE_S": str(LEASE_S),
            "RETIRE_FENCE_WAIT_S": "0.2",
        }

    def _account(self, folder: Path) -> None:
        """A service account that may read the Lease, as the chart gives it to a node."""
        api, space = self._cluster.api, self._namespace
        folder.mkdir()
        accounts = f"/api/v1/namespaces/{space}/serviceaccounts"
        api.create(accounts, {"metadata": {"name": "node"}})
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
        rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
        api.create(f"{rbac}/roles", {"metadata": {"name": "node"}, "rules": [rule]})
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": "node"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "node"},
            "subjects": [{"kind": "ServiceAccount", "name": "node", "namespace": space}],
        }
        api.create(f"{rbac}/rolebindings", binding)
        token = api.create(f"{accounts}/node/token", {"spec": {}})["status"]["token"]
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(self._cluster.ca_file.read_bytes())

    def _guard(self) -> RegistryGuard:
        leases = self._leases(self._cluster.kubeconfig)
        lease = KubernetesLease.named(leases, f"{self._namespace}/retire-term")
        clients = [PoolNode(node.node, node.client()) for node in self.nodes]
        for one in clients:
            self._stack.push_async_callback(one.client.close)

        async def bodies() -> list[Any]:
            return []

        return RegistryGuard(
            TermLease(lease, identity="operator"),
            Gatherer(bodies, lambda: clients),
            KeptQuotas(),
            connect=lambda create: self.world.client(create_when_empty=create),
            clock=time.monotonic,
            settings=GuardSettings(watch_s=0.1, full_s=0.5, patience_s=1.0, settle_s=LEASE_S),
        )

    async def supersede(self, node: Sidecar, expected: Version, name: str) -> Version:
        """One SUPERSEDE through a node, to UNPUBLISHABLE; asked again while it is refused."""

        async def once() -> Version:
            async with node.client() as client:
                mutation = Mutation(expected, idempotency_key=name)
                async for event in client.supersede(KEY, mutation):
                    if event.WhichOneof("event") == "committed":
                        made = convert.version_from(event.committed.to)
            return made

        return await again(once)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def again(call: Callable[[], Awaitable[Any]], *, limit_s: float = 60.0) -> Any:
    """Until it is not Unavailable."""
    async with asyncio.timeout(limit_s):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.fixture
async def nodes(
    cluster: Any, namespace: str, folder: Path, server: EmbeddedServer, leases: Any
) -> AsyncIterator[Cluster]:
    made = Cluster(cluster, namespace, folder, server.url, leases)
    await made.start()
    yield made
    await made.stop()


async def test_nodes_enter_what_the_guard_opens_and_rebuilds(nodes: Cluster):
    """Opened at term 1; wiped: rebuilt at term 2 from what the nodes hold, on both; wiped again:
    term 3. Nothing goes back, and the nodes never make a registry themselves."""
    first, second = nodes.nodes
    for node in (first, second):
        async with node.client() as client:
            joined = await again(lambda client=client: client.join(KEY))
            assert joined.version == Version(1, 0)
    at = Version(1, 0)
    for count in range(3):
        at = await nodes.supersede(first, at, f"k{count}")
    assert at == Version(1, 3)
    for term in (2, 3):
        await nodes.world.flush()
        for node in (first, second):
            status = await node.until(lambda s, term=term: s.term == term and s.lease == "held")
            assert status.registry_lost == ""
        assert (await again(lambda: nodes.world.registry.get(KEY))).version == Version(
            term, at.epoch
        )
        at = await nodes.supersede(second, Version(term, at.epoch), f"after-{term}")
        assert at.term == term
    assert (await nodes.guard.ensure()).term == 3
    assert nodes.guard.rebuilds == 2
    assert not [node for node in nodes.nodes if "registry rebuilt" in node.log.read_text()]


async def test_a_rollback_that_only_nodes_have_seen(
    nodes: Cluster, folder: Path, server: EmbeddedServer
):
    """The data folder of before the last commit: term 2, and the commit is not lost."""
    (first, _) = nodes.nodes
    async with first.client() as client:
        await again(lambda: client.join(KEY))
    at = await nodes.supersede(first, Version(1, 0), "kept")
    server.stop()
    ignore = shutil.ignore_patterns("*.sock")
    shutil.copytree(folder / "registry", folder / "backup", ignore=ignore)
    server.start()
    await first.until_held()
    at = await nodes.supersede(first, at, "lost")
    assert at == Version(1, 2)
    server.stop()
    shutil.rmtree(folder / "registry")
    shutil.copytree(folder / "backup", folder / "registry")
    server.start()
    await first.until(lambda s: s.term == 2 and s.lease == "held")
    assert (await nodes.world.registry.get(KEY)).version == Version(2, 2)
    assert await nodes.supersede(first, Version(2, 2), "next") == Version(2, 3)

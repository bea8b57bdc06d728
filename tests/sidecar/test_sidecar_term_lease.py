"""Sidecars that take their term from the operator's Lease: they wait, never open, never rebuild.

The nodes talk to the registry as its ACL user ``sidecar``; the tests play the operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from sidecar_kube import KubeServer
from sidecar_world import Gate, Sidecar, Story, eventually

from retire.protocol.contract import Policy
from retire.protocol.errors import TermMismatch, Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.registry.acl import Role, acl_rule
from retire.registry.client import AsyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.registry.interface import CommitKind, ScopeRecord
from retire.registry.settings import RegistrySettings
from retire.sidecar import convert

NODES = "retire-node"
FIRST = Version(1, 0)


@pytest.fixture
def kube(folder: Path) -> Iterator[KubeServer]:
    server = KubeServer(folder).start()
    yield server
    server.stop()


class Operator:
    """What the operator does to the registry, by hand."""

    def __init__(self, url: str, kube: KubeServer) -> None:
        self.url, self.kube = url, kube
        self.registry = AsyncRegistry(url, RegistrySettings(create_when_empty=False))

    async def open(self) -> None:
        self.kube.term = 1
        opener = AsyncRegistry(self.url)
        await opener.hello(NODES, term=1)
        await opener.close()

    async def rebuild(self, term: int, *, settle_s: float = 2.1, **tenants: list[ScopeRecord]):
        """Every tenant given, the nodes' own one last."""
        for tenant, scopes in (*tenants.items(), (NODES, [])):
            await self.registry.rebuild(
                tenant, term=term, scopes=scopes, quota_blocks=None, sequence=9, settle_s=settle_s
            )


@pytest.fixture
async def operator(registry: EmbeddedServer, kube: KubeServer):
    made = Operator(registry.url, kube)
    yield made
    await made.registry.close()


@pytest.fixture
def launch(
    registry: EmbeddedServer, kube: KubeServer, start_at: Callable[..., Sidecar]
) -> Callable[..., Sidecar]:
    """Start a node that follows the Lease, as the registry's user ``sidecar``."""
    with redis.Redis.from_url(registry.url) as admin:
        admin.execute_command("ACL SETUSER", "sidecar", *acl_rule(Role.SIDECAR, password="pw"))
    url = registry.url.replace("unix://", "unix://sidecar:pw@")
    lease = {"RETIRE_TERM_FILE": "", "RETIRE_TERM_LEASE": "retire/retire-term"}
    return lambda node="a", **env: start_at(url, node, **lease, **kube.env, **env)


def keys_of(registry: EmbeddedServer) -> list[bytes]:
    with redis.Redis.from_url(registry.url) as client:
        return client.keys("*")


def flush(registry: EmbeddedServer) -> None:
    with redis.Redis.from_url(registry.url) as client:
        client.flushall()


def record(key: ScopeKey, version: Version, **fields: object) -> ScopeRecord:
    bare = ScopeRecord(key, version, 1, False, False, None, None, ())
    return replace(bare, **fields)  # type: ignore[arg-type]


async def test_nothing_is_opened_before_the_operator_does(
    launch: Callable[..., Sidecar], operator: Operator, registry: EmbeddedServer
):
    """No Lease, then a Lease and an empty registry: not ready, with the reason, and the registry
    stays empty. Once it is opened the node comes up by itself."""
    sidecar = launch()
    waiting = "waiting for the operator to open"
    found = await sidecar.until(lambda s: waiting in s.not_ready_reason)
    assert "Lease retire/retire-term" in found.not_ready_reason
    assert (found.term, found.lease, found.registry_lost) == (0, "unreachable", "")
    async with Gate(sidecar) as gate:
        for attempt in (gate.client.join(ScopeKey("acme", "s")), gate.client.list("acme")):
            answer = (await asyncio.gather(attempt, return_exceptions=True))[0]
            assert isinstance(answer, Unavailable) or answer == []
        operator.kube.term = 1
        found = await sidecar.until(lambda s: s.term == 1)
        found = await sidecar.until(lambda s: "operator to open it" in s.not_ready_reason)
        assert not found.ready and found.registry_lost == ""
        with pytest.raises(Unavailable):
            await gate.client.join(ScopeKey("acme", "s"))
        assert keys_of(registry) == []
        await operator.open()
        found = await sidecar.until(lambda s: s.ready)
        assert (found.term, found.registry_lost) == (1, "")
        assert found.publish_lease_s == 2.0 and dict(found.sequences) == {NODES: 0}
        await gate.client.join(
            ScopeKey("acme", "s")
        )  # a new tenant opens at once: nothing is older
        assert operator.kube.authorizations[-1] == "Bearer first"


async def test_the_account_s_token_is_read_anew(launch: Callable[..., Sidecar], operator: Operator):
    """The kubelet rotates the token while the node waits."""
    sidecar = launch()
    await sidecar.until(lambda s: "open the registry" in s.not_ready_reason)
    operator.kube.account_token("second")

    async def asked() -> list[str]:
        return operator.kube.authorizations

    await eventually(asked, lambda a: a[-1] == "Bearer second", 20)


async def test_an_api_server_that_is_away_is_waited_for(
    launch: Callable[..., Sidecar], operator: Operator
):
    """Down at start, then refusing, then there: the reason says which, and the node comes up."""
    operator.kube.stop()
    sidecar = launch()
    await sidecar.until(lambda s: "Kubernetes API http://127.0.0.1" in s.not_ready_reason)
    operator.kube.fail_with = 403
    operator.kube.start()
    await sidecar.until(lambda s: "check the service account's role" in s.not_ready_reason)
    operator.kube.fail_with = 0
    await operator.open()
    async with Gate(sidecar):
        await sidecar.until(lambda s: s.ready)
    operator.kube.stop()  # a healthy node needs it for nothing
    await sidecar.until_held()


async def test_the_operator_rebuilds_and_the_nodes_follow(
    launch: Callable[..., Sidecar], operator: Operator, registry: EmbeddedServer
):
    """A wiped registry: both nodes say so under their term and write nothing. They enter what the
    operator wrote under the next one, from CRs that are ahead of a node, behind it, or silent."""
    await operator.open()
    a, b = launch("a"), launch("b")
    async with Gate(a) as gate_a, Gate(b) as gate_b:
        await asyncio.gather(a.until(lambda s: s.ready), b.until(lambda s: s.ready))
        ahead, behind, silent, child, gone = await _scopes(gate_a, gate_b, operator)
        old = await gate_a.client.join(behind)
        flush(registry)
        for sidecar in (a, b):
            found = await sidecar.until(lambda s: bool(s.registry_lost))
            assert found.term == 1 and not found.ready
            assert found.sequences["acme"] >= 3, "known to whoever rebuilds"
            await sidecar.until(lambda s: "rebuild the registry under a term" in s.not_ready_reason)
        assert not gate_a.may_publish(old.slot)
        assert keys_of(registry) == []
        operator.kube.term = 2
        for sidecar in (a, b):
            await sidecar.until(lambda s: s.term == 2 and s.registry_lost == "")
            await sidecar.until(lambda s: "rebuild it under term 2" in s.not_ready_reason)
        assert keys_of(registry) == []
        crs = [
            record(ahead, Version(2, 7), policy=Policy.REJECT),
            record(behind, Version(2, 1), policy=Policy.ENQUEUE, parent=ahead.scope),
        ]
        await operator.rebuild(2, acme=crs)
        for sidecar in (a, b):
            await sidecar.until(lambda s: s.term == 2 and s.ready)
        await _check_rebuilt(gate_a, gate_b, operator, (ahead, behind, silent, child, gone))
        assert not gate_a.may_publish(old.slot)
        answers = await Story(gate_a.client, behind).supersede(Version(2, 1))
        assert answers.to == Version(2, 2)
        with pytest.raises(TermMismatch):
            await operator.registry.join(behind, term=1, node="late", boot_id="x")


async def _scopes(gate_a: Gate, gate_b: Gate, operator: Operator) -> tuple[ScopeKey, ...]:
    """ahead 1.0 on a, behind 1.3 on both, silent 1.1 with a child on b, gone: cancelled on a."""
    names = ("ahead", "behind", "silent", "child", "gone")
    ahead, behind, silent, child, gone = keys = tuple(ScopeKey("acme", name) for name in names)
    for key in (ahead, behind, gone):
        await gate_a.client.join(key)
    for key in (behind, silent):
        await gate_b.client.join(key)
    await operator.registry.register(child, term=1, epoch=4, parent="silent")
    await gate_b.client.join(child)
    await operator.registry.configure(child, term=1, policy=Policy.ROLLBACK)
    for epoch in range(3):
        await Story(gate_a.client, behind).supersede(Version(1, epoch))
    await Story(gate_b.client, silent).supersede(FIRST)
    story = Story(gate_a.client, gone)
    await gate_a.client.cancel(gone, story.mutation(FIRST))
    return keys


async def _check_rebuilt(
    gate_a: Gate, gate_b: Gate, operator: Operator, keys: tuple[ScopeKey, ...]
) -> None:
    child, gone = keys[-2:]
    held = {r.key: r for r in await operator.registry.list_scopes("acme")}
    assert {key.scope: str(held[key].version) for key in keys} == {
        "ahead": "2.7",
        "behind": "2.1",  # lower epoch, higher term: nothing of term 1 can pass for it
        "silent": "2.1",
        "child": "2.5",
        "gone": "2.2",
    }
    assert held[gone].cancelled, "cancel is terminal, also where the operator did not know"
    assert (held[child].policy, held[child].parent) == (Policy.ROLLBACK, "silent")
    views = {
        view.key.scope: view for gate in (gate_a, gate_b) for view in await gate.client.list("acme")
    }
    for key in keys:
        view, found = views[key.scope], held[key]
        assert convert.version_from(view.version) == found.version
        assert (view.policy, view.parent) == (
            convert.policy_to(found.policy),
            found.parent or "",
        )


async def test_a_rolled_back_registry_needs_a_higher_term(
    launch: Callable[..., Sidecar], operator: Operator, registry: EmbeddedServer
):
    """The lost commits were of a scope this node does not hold: only the sequence tells. It does
    not go back in under the same term, however often it may try."""
    await operator.open()
    sidecar = launch()
    async with Gate(sidecar) as gate:
        await sidecar.until(lambda s: s.ready)
        await gate.client.join(ScopeKey("acme", "mine"))
        elsewhere = ScopeKey("acme", "elsewhere")
        await operator.registry.register(elsewhere, term=1)
        with redis.Redis.from_url(registry.url) as client:
            saved = {key: client.dump(key) for key in client.scan_iter("*")}
            for epoch in range(2):
                await _commit(operator, elsewhere, epoch)
            await sidecar.until(lambda s: s.sequences["acme"] == 2)
            for key, blob in saved.items():
                client.restore(key, 0, blob, replace=True)
        found = await sidecar.until(lambda s: bool(s.registry_lost))
        assert "rolled back" in found.registry_lost
        with pytest.raises(Unavailable):
            await Story(gate.client, ScopeKey("acme", "mine")).supersede(FIRST)
        for _ in range(3):
            await asyncio.sleep(0.5)  # longer than a poll
            assert not (await sidecar.until(lambda s: s.term == 1)).ready
        assert (await operator.registry.snapshot("acme")).sequence == 0
        operator.kube.term = 2
        await operator.rebuild(2, acme=[record(elsewhere, Version(2, 2))])
        found = await sidecar.until(lambda s: s.ready)
        assert (found.term, found.registry_lost, found.sequences["acme"]) == (2, "", 9)


async def _commit(operator: Operator, key: ScopeKey, epoch: int) -> None:
    await operator.registry.commit(
        CommitKind.SUPERSEDE,
        key,
        term=1,
        expected=Version(1, epoch),
        idempotency_key=f"k{epoch}",
        body_digest="d",
        by="operator",
    )


async def test_a_tenant_the_operator_did_not_know_is_registered_again(
    launch: Callable[..., Sidecar], operator: Operator, registry: EmbeddedServer
):
    """Only this node knows the tenant: it opens it once every lease of before has ended, and its
    first commit under the new term follows."""
    await operator.open()
    sidecar = launch()
    key = ScopeKey("island", "s")
    async with Gate(sidecar) as gate:
        await sidecar.until(lambda s: s.ready)
        await gate.client.join(key)
        await Story(gate.client, key).supersede(FIRST)
        flush(registry)
        await sidecar.until(lambda s: bool(s.registry_lost))
        operator.kube.term = 2
        await operator.rebuild(2)
        await sidecar.until(lambda s: "not in the rebuilt registry" in s.not_ready_reason)
        await sidecar.until(lambda s: s.ready)
        assert (await operator.registry.get(key)).version == Version(2, 1)
        assert (await Story(gate.client, key).supersede(Version(2, 1))).to == Version(2, 2)


async def test_a_node_that_was_down_during_the_rebuild(
    launch: Callable[..., Sidecar], operator: Operator, registry: EmbeddedServer
):
    """It comes back with a mailbox of term 1 and finds term 2 written: it takes that, and brings
    back what only its mailbox remembers. A Lease that fell behind lets nobody in."""
    await operator.open()
    sidecar = launch()
    key, mine = ScopeKey("acme", "s"), ScopeKey("acme", "mine")
    async with Gate(sidecar) as gate:
        await sidecar.until(lambda s: s.ready)
        for each in (key, mine):
            await gate.client.join(each)
        old = (await Story(gate.client, key).supersede(FIRST)).committed.slot
        sidecar.kill()
        flush(registry)
        operator.kube.term = 2
        await operator.rebuild(2, acme=[record(key, Version(2, 5))])
        sidecar.start()
        found = await sidecar.until(lambda s: s.ready)
        assert found.term == 2 and not gate.may_publish(old)
        assert (await gate.client.join(key)).version == Version(2, 5)
        assert (await operator.registry.get(mine)).version == Version(2, 0)
        sidecar.kill()
        operator.kube.term = 1
        sidecar.start()
        found = await sidecar.until(lambda s: "higher than 1" in s.not_ready_reason)
        assert not found.ready and found.term == 0
        operator.kube.term = 2
        await sidecar.until(lambda s: s.ready)


async def test_control_a_standalone_node_rebuilds_by_itself(
    start: Callable[..., Sidecar], registry: EmbeddedServer
):
    """CONTROL: with a term file the same loss is mended by the node, so the waiting above is not
    an accident."""
    sidecar = start()
    async with Gate(sidecar) as gate:
        await sidecar.until(lambda s: s.ready)
        await gate.client.join(ScopeKey("acme", "s"))
        flush(registry)
        found = await sidecar.until(lambda s: s.term == 2 and s.ready)
        assert found.registry_lost == ""
        assert keys_of(registry)

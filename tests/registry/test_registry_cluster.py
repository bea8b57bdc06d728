"""A real cluster of three primaries: tenants land on different nodes, each tenant on one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
import redis

from retire.protocol.contract import Policy
from retire.protocol.errors import InvalidField, RegistryUnavailable, VersionConflict
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.interface import CommitKind
from retire.registry.settings import Durability, RegistrySettings

SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))
TENANTS = tuple(f"team-{index}" for index in range(12))


@pytest.fixture(scope="module")
def nodes(make_module_server):
    """Three primaries that know each other and own all slots."""
    options = ("cluster-enabled", "yes", "appendonly", "yes", "appendfsync", "always")
    nodes = [make_module_server("valkey9", *options, "cluster-node-timeout", "2000") for _ in SLOTS]
    for node, (first, last) in zip(nodes, SLOTS, strict=True):
        with node.admin() as admin:
            admin.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            admin.execute_command("CLUSTER SET-CONFIG-EPOCH", nodes.index(node) + 1)
            admin.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)
    deadline = time.monotonic() + 20
    while not all(cluster_state(node) == ("ok", "3") for node in nodes):
        assert time.monotonic() < deadline, [cluster_state(node) for node in nodes]
        time.sleep(0.05)
    return nodes


def cluster_state(node):
    with node.admin() as admin:
        info = admin.execute_command("CLUSTER INFO")
    if isinstance(info, str):
        info = dict(line.split(":", 1) for line in info.split())
    return info["cluster_state"], info["cluster_known_nodes"]


def own_keys(node):
    with node.admin() as admin:
        return set(admin.keys("*"))


async def test_tenants_shard_and_each_stays_whole(nodes, connect, settings):
    """Every operation works through the cluster; a tenant's keys are together, tenants are
    spread."""
    registry = connect(nodes[0].url, replace(settings, cluster=True))
    assert await registry.check_durability() is Durability.FSYNC_ALWAYS
    for tenant in TENANTS:
        await registry.hello(tenant, term=1)
        parent, child = ScopeKey(tenant, "plan"), ScopeKey(tenant, "подплан")
        await registry.register(parent, term=1)
        await registry.register(child, term=1, parent="plan")
        assert (await registry.configure(child, term=1, policy=Policy.ENQUEUE)).parent == "plan"
        await registry.join(child, term=1, node="n1", boot_id="b1")
        await registry.set_quota(tenant, term=1, blocks=4)
        await registry.reserve(tenant, term=1, owner="o", blocks=3, lease_s=30)
        commit = await supersede(registry, parent, Version(1, 0), "a")
        assert commit.children == ((child, Version(1, 1)),)
        assert (await supersede(registry, parent, Version(1, 0), "a")).replayed
        with pytest.raises(VersionConflict):
            await supersede(registry, parent, Version(1, 0), "b")
    renewal = await registry.renew(
        "n1", term=1, boot_id="b1", lease_s=30, tenants=dict.fromkeys(TENANTS, 1)
    )
    assert renewal.sequences == dict.fromkeys(TENANTS, 1)
    assert await registry.list_tenants() == tuple(sorted(TENANTS))

    holders = {tenant: holders_of(nodes, f"{settings.prefix}{{{tenant}}}:") for tenant in TENANTS}
    assert all(len(found) == 1 for found in holders.values()), holders
    assert len(set.union(*holders.values())) == 3, "every node holds some tenant"


def holders_of(nodes, prefix):
    return {i for i, node in enumerate(nodes) if any(k.startswith(prefix) for k in own_keys(node))}


async def supersede(registry, key, expected, name):
    return await registry.commit(
        CommitKind.SUPERSEDE,
        key,
        term=1,
        expected=expected,
        idempotency_key=name,
        body_digest="d",
        by="t",
    )


async def test_events_and_rebuild_through_the_cluster(nodes, connect, settings):
    """The stream is followed on the node that holds it, and a rebuild reaches both keys' nodes."""
    registry = connect(nodes[2].url, replace(settings, cluster=True))
    for tenant in TENANTS[:3]:
        await registry.hello(tenant, term=1)
        await registry.register(ScopeKey(tenant, "plan"), term=1)
        await supersede(registry, ScopeKey(tenant, "plan"), Version(1, 0), "a")
        following = registry.events(tenant, after="0-0")
        kinds = [(await asyncio.wait_for(anext(following), 10)).kind for _ in range(2)]
        await following.aclose()
        assert kinds == ["register", "commit"]
    for tenant in TENANTS[:3]:
        await registry.rebuild(tenant, term=2, scopes=(), quota_blocks=None)
    await registry.hello("fresh", term=2)
    assert {r.version for r in await registry.list_scopes(TENANTS[0])} == {Version(2, 1)}


async def test_two_tenants_in_one_script_would_be_refused(nodes):
    """Control: the server enforces the slot rule that the hash tag satisfies."""
    with redis.RedisCluster.from_url(nodes[0].url) as cluster:
        keys = [f"retire:{{{tenant}}}:meta" for tenant in TENANTS[:2]]
        assert cluster.keyslot(keys[0]) != cluster.keyslot(keys[1])
        node = cluster.get_node_from_key(keys[0])
        assert node is not None
        with (
            redis.Redis(port=int(node.port)) as direct,
            pytest.raises(redis.ResponseError, match="CROSSSLOT|don't hash to the same slot"),
        ):
            direct.eval("return 1", 2, *keys)


async def test_a_cluster_without_the_setting_says_so(nodes, settings):
    """A standalone client that is sent elsewhere names the setting."""
    registry = AsyncRegistry(nodes[0].url, replace(settings, retries=0))
    with pytest.raises(RegistryUnavailable, match="is part of a cluster; set cluster=True"):
        for tenant in TENANTS:
            await registry.hello(tenant, term=1)
    await registry.close()
    with pytest.raises(InvalidField, match=r"^registry.url must be redis:// or rediss://"):
        AsyncRegistry("unix:///tmp/x.sock", RegistrySettings(cluster=True))


async def test_a_cluster_that_cannot_be_durable_is_refused(make_server):
    """WAITAOF is not sent through a cluster, so fsync must be always there."""
    node = make_server("valkey9", "cluster-enabled", "yes", "appendonly", "yes")
    with node.admin() as admin:
        admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    deadline = time.monotonic() + 10
    while cluster_state(node)[0] != "ok":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    registry = AsyncRegistry(node.url, RegistrySettings(cluster=True))
    with pytest.raises(RegistryUnavailable, match="a cluster needs appendfsync always"):
        await registry.hello("acme", term=1)
    await registry.close()

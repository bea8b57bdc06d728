"""Publish leases, quotas and reservations: owned, bounded, and ended by the server's clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from retire.protocol.errors import NeedRegister, QuotaExceeded, TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.registry.interface import CommitKind

KEY = ScopeKey("acme", "plan")


async def gates(registry, epoch):
    commit = await registry.commit(
        CommitKind.SUPERSEDE,
        KEY,
        term=1,
        expected=Version(1, epoch),
        idempotency_key=f"k{epoch}",
        body_digest="d",
        by="test",
    )
    return {(gate.node, gate.boot_id): gate.expires_in_s for gate in commit.gates}


async def renew(registry, node="n1", boot="b1", lease_s=30.0, sequence=0):
    return await registry.renew(
        node, term=1, boot_id=boot, lease_s=lease_s, tenants={"acme": sequence}
    )


async def test_a_renewal_says_what_must_be_applied(registry):
    """The renewal carries the last event and the commit sequence of each tenant at that moment."""
    await registry.register(KEY, term=1)
    await registry.hello("other", term=1)
    await gates(registry, 0)
    renewal = await registry.renew(
        "n1", term=1, boot_id="b1", lease_s=2, tenants={"acme": 1, "other": 0}
    )
    assert renewal.expires_in_s == 2
    assert renewal.sequences == {"acme": 1, "other": 0}
    assert renewal.tails == {"acme": (await registry.snapshot("acme")).tail, "other": "0-0"}


async def test_leases_run_and_end_by_the_servers_clock(registry):
    """A running lease shows what is left; an ended one stays visible, and negative."""
    await registry.register(KEY, term=1)
    for node in ("n1", "n2", "n3"):
        await registry.join(KEY, term=1, node=node, boot_id="b1")
    await renew(registry, "n1", lease_s=30)
    await renew(registry, "n2", lease_s=0.05)
    await asyncio.sleep(0.1)
    left_s = await gates(registry, 0)
    assert 25 < left_s["n1", "b1"] <= 30
    assert -5 < left_s["n2", "b1"] < 0
    assert left_s["n3", "b1"] < 0  # joined, never had a lease
    await registry.expire("n1", term=1, tenants=["acme"])
    await registry.expire("n9", term=1, tenants=["acme"])
    assert (await gates(registry, 1))["n1", "b1"] <= 0


async def test_a_sequence_ahead_of_the_registry_is_a_rollback(registry):
    """A node that has seen more commits than the registry holds is told so, and gets no lease."""
    await registry.register(KEY, term=1)
    await registry.join(KEY, term=1, node="n1", boot_id="b1")
    await gates(registry, 0)
    await renew(registry, sequence=1, lease_s=0.001)
    await asyncio.sleep(0.01)
    with pytest.raises(TermMismatch, match="rolled back: its commit sequence is 1"):
        await renew(registry, sequence=2)
    assert (await gates(registry, 1))["n1", "b1"] < 0


async def test_a_lost_tenant_renews_nothing(registry):
    """A tenant the registry does not hold is a loss, not a new tenant."""
    with pytest.raises(TermMismatch, match="lost this tenant's data"):
        await registry.renew("n1", term=1, boot_id="b1", lease_s=1, tenants={"gone": 3})


async def test_one_lost_tenant_among_many_refuses_the_renewal(registry):
    """Tenants are renewed side by side; every one answers, or the renewal says which is lost."""
    tenants = [f"many-{number}" for number in range(40)]
    for tenant in tenants:
        await registry.hello(tenant, term=1)
    asked = dict.fromkeys(tenants, 0)
    renewal = await registry.renew("n1", term=1, boot_id="b1", lease_s=9, tenants=asked)
    assert renewal.sequences == asked and set(renewal.tails) == set(tenants)
    with pytest.raises(TermMismatch, match="lost this tenant's data"):
        await registry.renew(
            "n1", term=1, boot_id="b1", lease_s=9, tenants={**asked, "gone": 3, "never": 0}
        )


async def test_a_replaced_boot_counts_until_its_lease_ends(registry):
    """After a restart the old boot's gates are waited for; once ended, it may not come back."""
    await registry.register(KEY, term=1)
    await registry.join(KEY, term=1, node="n1", boot_id="old")
    await renew(registry, boot="old", lease_s=0.4)
    await renew(registry, boot="new")
    await registry.join(KEY, term=1, node="n1", boot_id="new")
    left_s = await gates(registry, 0)
    assert left_s["n1", "old"] > 0
    assert left_s["n1", "new"] > 25
    await asyncio.sleep(0.45)
    await renew(registry, boot="new", sequence=1)
    with pytest.raises(NeedRegister, match="this boot of the node was replaced"):
        await renew(registry, boot="old", sequence=1)
    await registry.join(KEY, term=1, node="n1", boot_id="new")
    assert set(await gates(registry, 1)) == {("n1", "new")}


async def test_quota_bounds_the_sum_of_reservations(registry):
    """Over quota: refused with what is left; growing, shrinking and releasing keep the sum
    right."""

    async def reserve(owner, blocks):
        return await registry.reserve("acme", term=1, owner=owner, blocks=blocks, lease_s=30)

    await registry.set_quota("acme", term=1, blocks=10)
    assert (await reserve("a", 6)).left == 4
    with pytest.raises(QuotaExceeded, match="5 pinned blocks asked, 4 left") as over:
        await reserve("b", 5)
    assert over.value.left == 4
    assert (await reserve("b", 4)).left == 0
    with pytest.raises(QuotaExceeded):
        await reserve("a", 7)
    assert (await reserve("a", 2)).left == 4
    await registry.release("acme", term=1, owner="b")
    await registry.release("acme", term=1, owner="b")
    assert (await reserve("c", 8)).left == 0
    held = {r.owner: r.blocks for r in (await registry.snapshot("acme")).reservations}
    assert held == {"a": 2, "c": 8}


async def test_a_lowered_quota_refuses_growth_only(registry):
    """What is held above a lowered quota may be renewed and shrunk, never grown."""
    first = await registry.reserve("acme", term=1, owner="a", blocks=6, lease_s=30)
    assert (first.left, first.over) == (None, 0)
    await registry.set_quota("acme", term=1, blocks=3)
    held = await registry.reserve("acme", term=1, owner="a", blocks=6, lease_s=30)
    assert (held.left, held.over) == (0, 3)
    with pytest.raises(QuotaExceeded, match="7 pinned blocks asked, 0 left"):
        await registry.reserve("acme", term=1, owner="a", blocks=7, lease_s=30)
    assert (await registry.reserve("acme", term=1, owner="a", blocks=1, lease_s=30)).left == 2


async def test_a_changed_quota_is_an_event(registry):
    """Nodes learn of it from the stream; setting what is set already says nothing."""
    for blocks in (7, 7, None, None, 0):
        await registry.set_quota("acme", term=1, blocks=blocks)
    events = registry.events("acme", after="0-0")
    seen = [await anext(events) for _ in range(3)]
    await events.aclose()
    assert [(e.kind, e.fields["blocks"]) for e in seen] == [
        ("quota", "7"),
        ("quota", ""),
        ("quota", "0"),
    ]
    assert (await registry.snapshot("acme")).tail == seen[-1].id


async def test_ended_reservations_return_their_blocks(registry):
    """The blocks of an owner whose lease ended are free again, without anyone releasing them."""
    await registry.set_quota("acme", term=1, blocks=10)
    await registry.reserve("acme", term=1, owner="dead", blocks=9, lease_s=0.15)
    with pytest.raises(QuotaExceeded):
        await registry.reserve("acme", term=1, owner="b", blocks=2, lease_s=30)
    deadline = time.monotonic() + 5
    while (await registry.snapshot("acme")).reservations:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert (await registry.reserve("acme", term=1, owner="b", blocks=10, lease_s=30)).left == 0


async def test_renewing_a_reservation_keeps_it(registry):
    """A renewed reservation outlives its first lease."""
    await registry.reserve("acme", term=1, owner="a", blocks=1, lease_s=0.1)
    await registry.reserve("acme", term=1, owner="a", blocks=1, lease_s=30)
    await asyncio.sleep(0.15)
    (held,) = (await registry.snapshot("acme")).reservations
    assert 25 < held.expires_in_s <= 30


async def test_zero_quota_and_no_quota(registry):
    """Zero admits only zero blocks; None is unlimited and says so."""
    await registry.set_quota("acme", term=1, blocks=0)
    with pytest.raises(QuotaExceeded, match="1 pinned blocks asked, 0 left"):
        await registry.reserve("acme", term=1, owner="a", blocks=1, lease_s=1)
    assert (await registry.reserve("acme", term=1, owner="a", blocks=0, lease_s=1)).left == 0
    await registry.set_quota("acme", term=1, blocks=None)
    assert (await registry.reserve("acme", term=1, owner="a", blocks=10**9, lease_s=1)).left is None
    assert (await registry.snapshot("acme")).quota_blocks is None


async def test_tenants_do_not_share_a_quota(registry):
    """One tenant's reservations leave another's quota alone."""
    await registry.hello("other", term=1)
    for tenant in ("acme", "other"):
        await registry.set_quota(tenant, term=1, blocks=5)
    await registry.reserve("acme", term=1, owner="a", blocks=5, lease_s=30)
    assert (await registry.reserve("other", term=1, owner="a", blocks=5, lease_s=30)).left == 0

"""A registry that lost or rolled back its data, and its rebuild under the next term."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from retire.protocol.contract import Policy
from retire.protocol.errors import NeedRegister, TermMismatch, UnknownScope
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.interface import CommitKind
from retire.registry.settings import RegistrySettings
from retire.registry.term import TermFile, claim_term

KEY = ScopeKey("acme", "plan")
OTHER = ScopeKey("acme", "other")


async def commit(registry, expected, *, key=KEY, name="", kind=CommitKind.SUPERSEDE):
    return await registry.commit(
        kind,
        key,
        term=expected.term,
        expected=expected,
        idempotency_key=name or f"{key.scope}-{expected}",
        body_digest="d",
        by="test",
    )


async def opened(registry, scopes=(KEY,)):
    await registry.hello("acme", term=1)
    for key in scopes:
        await registry.register(key, term=1)
    return registry


async def renew(registry, *, sequence, term=1, lease_s=30.0):
    return await registry.renew(
        "n1", term=term, boot_id="b1", lease_s=lease_s, tenants={"acme": sequence}
    )


async def test_after_flushall_nothing_starts_at_zero(valkey, connect, settings):
    """A live client gets TermMismatch or NeedRegister for every operation, and no key appears."""
    registry = await opened(connect(valkey.url, settings))
    await commit(registry, Version(1, 0))
    with valkey.admin() as admin:
        admin.flushall()
        with pytest.raises(TermMismatch, match="lost"):
            await renew(registry, sequence=1)
        with pytest.raises(NeedRegister):
            await commit(registry, Version(1, 1))
        with pytest.raises(NeedRegister):
            await registry.register(KEY, term=1)
        with pytest.raises(UnknownScope):
            await registry.get(KEY)
        with pytest.raises(NeedRegister):
            await registry.list_scopes("acme")
        with pytest.raises(NeedRegister):
            await registry.list_tenants()
        for tenant in ("acme", "new"):
            with pytest.raises(NeedRegister, match="the registry is empty"):
                await registry.hello(tenant, term=1)
        assert admin.keys("*") == []


async def test_after_flushall_a_new_client_opens_nothing(valkey, connect, tmp_path):
    """A node that restarts after the loss learns from the term that a registry had been opened."""
    authority = TermFile(tmp_path / "term")
    term, first = claim_term(authority)
    prefix = "retire:"
    await opened(connect(valkey.url, RegistrySettings(prefix, create_when_empty=first)))
    with valkey.admin() as admin:
        admin.flushall()
    term, first = claim_term(authority)
    restarted = connect(valkey.url, RegistrySettings(prefix, create_when_empty=first))
    with pytest.raises(NeedRegister, match="the registry is empty: it is new .* or lost its data"):
        await restarted.hello("acme", term=term)
    term = authority.advance(term)
    await restarted.rebuild("acme", term=term, scopes=(), quota_blocks=None)
    await restarted.hello("acme", term=term)
    assert term == 2


async def test_one_lost_tenant_is_not_created_again(valkey, connect, settings):
    """A tenant that the registry recorded and no longer holds is a loss, also for a new client."""
    registry = await opened(connect(valkey.url, settings))
    await registry.hello("other", term=1)
    with valkey.admin() as admin:
        admin.delete(*admin.keys(f"{settings.prefix}{{acme}}:*"))
    newcomer = connect(valkey.url, settings)
    with pytest.raises(TermMismatch, match="lost this tenant's data"):
        await newcomer.hello("acme", term=1)
    await newcomer.hello("other", term=1)
    await newcomer.hello("third", term=1)


async def test_an_old_copy_of_the_data_is_noticed(valkey, connect, settings):
    """Restore yesterday's data folder: the next renewal and the reader see the rollback."""
    registry = await opened(connect(valkey.url, settings))
    await commit(registry, Version(1, 0))
    valkey.kill()
    shutil.copytree(valkey.folder, backup := valkey.folder.with_name("backup"))
    valkey.start()
    for epoch in (1, 2, 3):
        last = await commit(registry, Version(1, epoch))
    renewal = await renew(registry, sequence=4)
    valkey.kill()
    shutil.rmtree(valkey.folder)
    shutil.copytree(backup, valkey.folder)
    valkey.start()
    assert (await registry.get(KEY)).version == Version(1, 1)  # the rollback is real
    with pytest.raises(TermMismatch, match="rolled back: its commit sequence is 1"):
        await renew(registry, sequence=last.sequence)
    with pytest.raises(TermMismatch, match="rolled back"):
        await anext(registry.events("acme", after=renewal.tails["acme"]))


async def test_a_rollback_hidden_by_new_commits_is_noticed(valkey, connect, settings):
    """When others commit after a rollback the sequence may have caught up; the missing event
    tells."""
    registry = await opened(connect(valkey.url, settings))
    valkey.kill()
    shutil.copytree(valkey.folder, backup := valkey.folder.with_name("backup"))
    valkey.start()
    seen = await commit(registry, Version(1, 0), name="lost")
    valkey.kill()
    shutil.rmtree(valkey.folder)
    shutil.copytree(backup, valkey.folder)
    valkey.start()
    stranger = connect(valkey.url, settings)
    await stranger.hello("acme", term=1)
    assert (await commit(stranger, Version(1, 0), name="another")).sequence == seen.sequence
    with pytest.raises(TermMismatch, match="an event seen before is not in it"):
        await renew(registry, sequence=seen.sequence)


async def test_rebuild_moves_epochs_only_upward(registry):
    """Merged by scope: the higher epoch wins, cancelled stays cancelled, the term is the new
    one."""
    await registry.register(KEY, term=1, epoch=7)
    await registry.register(OTHER, term=1, epoch=3)
    await registry.register(ScopeKey("acme", "kept"), term=1, epoch=1, parent="plan")
    records = {record.key: record for record in await registry.list_scopes("acme")}
    await commit(registry, Version(1, 3), key=OTHER, kind=CommitKind.CANCEL)
    await commit(registry, Version(1, 7))
    await registry.rebuild(
        "acme", term=2, scopes=(records[KEY], records[OTHER]), quota_blocks=5, sequence=40
    )
    await registry.hello("acme", term=2)
    rebuilt = {record.key.scope: record for record in await registry.list_scopes("acme")}
    assert {name: str(record.version) for name, record in rebuilt.items()} == {
        "plan": "2.8",
        "other": "2.4",
        "kept": "2.2",
    }
    assert rebuilt["other"].cancelled
    snapshot = await registry.snapshot("acme")
    assert (snapshot.term, snapshot.quota_blocks, snapshot.sequence) == (2, 5, 40)
    moved = await commit(registry, Version(2, 8))
    assert (moved.to_version, moved.sequence) == (Version(2, 9), 41)
    assert moved.children[0][1] == Version(2, 3)


async def test_a_rebuild_keeps_what_it_is_not_told(registry):
    """Policy and parent of a held scope outlive a rebuild by somebody who does not know them; a
    given policy wins, a given parent does not replace one."""
    await registry.register(OTHER, term=1)
    await registry.register(KEY, term=1, policy=Policy.REJECT, parent="other")
    bare = replace(await registry.get(KEY), policy=None, parent=None)
    await registry.rebuild("acme", term=2, scopes=(bare,), quota_blocks=None)
    kept = await registry.get(KEY)
    assert (kept.policy, kept.parent) == (Policy.REJECT, "other")
    given = replace(bare, policy=Policy.ENQUEUE, parent="third")
    await registry.rebuild("acme", term=3, scopes=(given,), quota_blocks=None)
    kept = await registry.get(KEY)
    assert (kept.policy, kept.parent) == (Policy.ENQUEUE, "other")


async def test_parents_in_a_circle_do_not_stop_the_registry(registry):
    """A rebuild takes parents as given; a commit in a circle moves each scope once and ends."""
    await registry.register(KEY, term=1)
    record = await registry.get(KEY)
    other = replace(record, key=OTHER, parent=KEY.scope)
    circle = (replace(record, parent=OTHER.scope), other)
    await registry.rebuild("acme", term=2, scopes=circle, quota_blocks=None)
    moved = await commit(registry, Version(2, 0))
    assert (moved.to_version, moved.children) == (Version(2, 1), ((OTHER, Version(2, 1)),))


async def test_rebuild_of_nothing_restores_what_is_given(valkey, connect, settings):
    """After a total loss the given scopes come back with parent, policy and flags; others do
    not."""
    registry = await opened(connect(valkey.url, settings), (KEY, OTHER))
    child = ScopeKey("acme", "child")
    await registry.register(child, term=1, parent="plan", epoch=2)
    await commit(registry, Version(1, 0), key=OTHER, kind=CommitKind.PAUSE)
    given = await registry.list_scopes("acme")
    with valkey.admin() as admin:
        admin.flushall()
    await registry.rebuild("acme", term=2, scopes=given, quota_blocks=None)
    after = await registry.list_scopes("acme")
    fields = ("key", "generation", "paused", "cancelled", "policy", "parent", "nodes")
    assert [[getattr(r, f) for f in fields] for r in after] == [
        [getattr(r, f) for f in fields] for r in given
    ]
    assert (await commit(registry, Version(2, 0))).children == ((child, Version(2, 3)),)


async def test_callers_of_the_old_term_are_refused(registry, connect, store, settings):
    """After a rebuild nothing of the old term commits, renews or opens; a second rebuild must go
    higher."""
    await registry.register(KEY, term=1)
    old = connect(store.url, settings)
    await old.hello("acme", term=1)
    await registry.rebuild("acme", term=2, scopes=(), quota_blocks=None)
    with pytest.raises(TermMismatch, match="registry's term is 2; the caller's term is 1"):
        await commit(old, Version(1, 0))
    with pytest.raises(TermMismatch):
        await renew(old, sequence=0)
    with pytest.raises(TermMismatch):
        await old.hello("new-tenant", term=1)
    for term in (1, 2):
        with pytest.raises(TermMismatch):
            await old.rebuild("acme", term=term, scopes=(), quota_blocks=None)
    await old.hello("acme", term=2)
    assert (await commit(old, Version(2, 0))).to_version == Version(2, 1)


async def test_a_commit_after_a_rebuild_waits_for_old_leases(registry):
    """Gates that nobody could name are counted as '*' until the longest old lease has passed."""
    await registry.register(KEY, term=1)
    await registry.join(KEY, term=1, node="n1", boot_id="b1")
    given = await registry.list_scopes("acme")
    await registry.rebuild("acme", term=2, scopes=given, quota_blocks=None, settle_s=0.3)
    (gate,) = [g for g in (await commit(registry, Version(2, 0))).gates if g.node == "*"]
    assert 0 < gate.expires_in_s <= 0.3
    await asyncio.sleep(0.35)
    gates = {g.node: g.expires_in_s for g in (await commit(registry, Version(2, 1))).gates}
    assert set(gates) == {"n1"}
    await registry.rebuild("acme", term=3, scopes=given, quota_blocks=None, settle_s=0)
    await renew(registry, sequence=2, term=3)
    # n1 came back from the inventory without its boot id: whatever lease it holds counts
    assert max(g.expires_in_s for g in (await commit(registry, Version(3, 2))).gates) > 25


async def test_a_rebuild_sent_twice_is_one_rebuild(valkey, settings):
    """A retry after a lost reply is answered like the first: the incarnation decides."""
    registry = AsyncRegistry(valkey.url, settings)
    await opened(registry)
    program = registry.operations.rebuild("acme", term=2, scopes=(), quota_blocks=None)
    next(program)
    call = program.send("OK")
    first = await registry._run(call)
    assert await registry._run(call) == first
    assert (await registry.snapshot("acme")).term == 2
    await registry.close()

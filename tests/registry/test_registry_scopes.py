"""Scopes, commits and the subtree: the same promises on every store and with both clients."""

from __future__ import annotations

import json

import pytest

from retire.protocol.contract import Policy
from retire.protocol.errors import (
    IdempotencyConflict,
    InvalidField,
    NeedRegister,
    ScopeClosed,
    TermMismatch,
    UnknownScope,
    VersionConflict,
)
from retire.protocol.versions import EPOCH_MAX, ScopeKey, Version
from retire.registry.interface import CommitKind

KEY = ScopeKey("acme", "plan")


async def supersede(registry, expected, name="k", key=KEY, kind=CommitKind.SUPERSEDE, **changes):
    request = {"term": expected.term, "body_digest": "d", "by": "test"} | changes
    return await registry.commit(kind, key, expected=expected, idempotency_key=name, **request)


async def test_hello_answers_the_same_incarnation(registry, connect, store, settings):
    """A tenant's incarnation is written once, whoever asks."""
    first = await registry.hello("acme", term=1)
    assert first == await connect(store.url, settings).hello("acme", term=1)
    assert first != await registry.hello("other", term=1)
    assert await registry.list_tenants() == ("acme", "other")


async def test_hello_of_another_term_is_refused(registry):
    """A registry of term 1 opens nothing under term 2 or 0."""
    for term in (0, 2):
        with pytest.raises(
            TermMismatch, match=rf"registry's term is 1; the caller's term is {term}"
        ):
            await registry.hello("acme", term=term)
        with pytest.raises(TermMismatch):
            await registry.hello("new", term=term)


async def test_register_creates_once(registry):
    """A scope starts where it is told and later calls return it as it is."""
    made = await registry.register(KEY, term=1, epoch=4, policy=Policy.ENQUEUE)
    assert (made.created, made.version, made.policy) == (True, Version(1, 4), Policy.ENQUEUE)
    again = await registry.register(KEY, term=1, epoch=9)
    assert (again.created, again.version, again.policy) == (False, Version(1, 4), Policy.ENQUEUE)
    assert await registry.get(KEY) == again


async def test_missing_keys_never_start_at_zero(registry):
    """Every operation on what is not there names it, and creates nothing."""
    nowhere = ScopeKey("nobody", "plan")
    with pytest.raises(NeedRegister, match="no scope 'plan'"):
        await registry.join(KEY, term=1, node="n1", boot_id="b1")
    with pytest.raises(NeedRegister, match="no scope 'plan'"):
        await supersede(registry, Version(1, 0))
    with pytest.raises(NeedRegister, match="no scope 'plan'"):
        await registry.ack(KEY, term=1, node="n1", version=Version(1, 0))
    with pytest.raises(NeedRegister, match="no tenant 'nobody'"):
        await registry.register(nowhere, term=1)
    with pytest.raises(NeedRegister, match="no tenant 'nobody'"):
        await registry.list_scopes("nobody")
    with pytest.raises(NeedRegister, match="no tenant 'nobody'"):
        await registry.snapshot("nobody")
    with pytest.raises(NeedRegister, match="no parent scope 'gone'"):
        await registry.register(KEY, term=1, parent="gone")
    for key in (KEY, nowhere):
        with pytest.raises(UnknownScope):
            await registry.get(key)
    assert await registry.list_scopes("acme") == ()
    assert await registry.list_tenants() == ("acme",)


async def test_commit_moves_once_from_the_expected_version(registry):
    """Compare-and-set: stale and future versions are refused with the current one, without
    effect."""
    await registry.register(KEY, term=1)
    commit = await supersede(registry, Version(1, 0), "a")
    assert (commit.from_version, commit.to_version) == (Version(1, 0), Version(1, 1))
    assert (commit.sequence, commit.replayed, commit.kind) == (1, False, CommitKind.SUPERSEDE)
    for wrong, kind in ((Version(1, 0), "stale"), (Version(1, 7), "not committed yet")):
        with pytest.raises(VersionConflict, match=kind) as conflict:
            await supersede(registry, wrong, f"w{wrong}")
        assert conflict.value.current == Version(1, 1)
    assert (await registry.get(KEY)).version == Version(1, 1)
    assert (await supersede(registry, Version(1, 1), "b")).sequence == 2


async def test_refused_commit_keeps_the_idempotency_key_free(registry):
    """A conflict records nothing, so the same key may be used with the right version."""
    await registry.register(KEY, term=1)
    with pytest.raises(VersionConflict):
        await supersede(registry, Version(1, 3), "a")
    assert not (await supersede(registry, Version(1, 0), "a")).replayed


async def test_idempotent_replay_after_the_version_moved_on(registry):
    """Same key and digest: the same Commit, marked, even two versions later; another digest:
    refused."""
    await registry.register(KEY, term=1)
    await registry.join(KEY, term=1, node="n1", boot_id="b1")
    first = await supersede(registry, Version(1, 0), "a")
    await supersede(registry, Version(1, 1), "b")
    again = await supersede(registry, Version(1, 0), "a")
    assert again.replayed
    assert again.event_id == first.event_id
    assert (again.to_version, again.sequence, again.gates) == (Version(1, 1), 1, first.gates)
    for other in (
        {"body_digest": "e"},
        {"kind": CommitKind.CANCEL},
        {"key": ScopeKey("acme", "x")},
    ):
        with pytest.raises(IdempotencyConflict, match="Idempotency-Key 'a'"):
            await supersede(registry, Version(1, 2), "a", **other)
    assert (await registry.get(KEY)).version == Version(1, 2)


async def test_idempotency_records_end_and_versions_do_not(registry, store, settings):
    """24 hours for idempotency keys; no TTL on anything else."""
    await registry.register(KEY, term=1)
    await registry.reserve("acme", term=1, owner="o", blocks=1, lease_s=5)
    await registry.renew("n1", term=1, boot_id="b1", lease_s=5, tenants={"acme": 0})
    await supersede(registry, Version(1, 0), "a")
    with store.admin() as admin:
        ttl_s = {key: admin.ttl(key) for key in admin.scan_iter(f"{settings.prefix}*")}
    record = f"{settings.prefix}{{acme}}:idem:a"
    assert 86390 <= ttl_s.pop(record) <= 86400
    assert len(ttl_s) >= 6
    assert set(ttl_s.values()) == {-1}


async def test_cancel_is_terminal(registry):
    """Cancel moves the epoch once; afterwards nothing commits, joins or goes on."""
    await registry.register(KEY, term=1)
    cancel = await supersede(registry, Version(1, 0), "a", kind=CommitKind.CANCEL)
    assert cancel.to_version == Version(1, 1)
    for kind in CommitKind:
        with pytest.raises(ScopeClosed, match="cancelled at 1.1"):
            await supersede(registry, Version(1, 1), kind.value, kind=kind)
    with pytest.raises(ScopeClosed):
        await registry.join(KEY, term=1, node="n1", boot_id="b1")
    with pytest.raises(ScopeClosed, match="scope 'plan' was cancelled"):
        await registry.register(ScopeKey("acme", "child"), term=1, parent="plan")
    assert (await registry.get(KEY)).cancelled


async def test_pause_and_resume_keep_the_version(registry):
    """Pause keeps authority: only the flag and the commit sequence move."""
    await registry.register(KEY, term=1)
    paused = await supersede(registry, Version(1, 0), "a", kind=CommitKind.PAUSE)
    assert (paused.to_version, paused.sequence) == (Version(1, 0), 1)
    assert (await registry.get(KEY)).paused
    resumed = await supersede(registry, Version(1, 0), "b", kind=CommitKind.RESUME)
    assert (resumed.to_version, resumed.sequence) == (Version(1, 0), 2)
    assert not (await registry.get(KEY)).paused


async def test_retiring_a_parent_retires_the_subtree(registry):
    """One commit moves every live descendant, names them, and counts the gates of all of them."""
    names = {
        "plan": None,
        "a": "plan",
        "b": "plan",
        "a1": "a",
        "a11": "a1",
        "dead": "a",
        "loner": None,
    }
    for name, parent in names.items():
        await registry.register(ScopeKey("acme", name), term=1, parent=parent, epoch=len(name))
    await supersede(registry, Version(1, 4), "0", ScopeKey("acme", "dead"), CommitKind.CANCEL)
    for name, node in (("plan", "n1"), ("a", "n2"), ("a11", "n2"), ("a11", "n3"), ("loner", "n4")):
        await registry.join(ScopeKey("acme", name), term=1, node=node, boot_id="b1")
    commit = await supersede(registry, Version(1, 4), "1")
    moved = {key.scope: version for key, version in commit.children}
    assert moved == {
        "a": Version(1, 2),
        "b": Version(1, 2),
        "a1": Version(1, 3),
        "a11": Version(1, 4),
    }
    assert sorted(gate.node for gate in commit.gates) == ["n1", "n2", "n3"]
    records = {record.key.scope: record for record in await registry.list_scopes("acme")}
    assert {name: records[name].version for name in moved} == moved
    assert (records["dead"].version, records["loner"].version) == (Version(1, 5), Version(1, 5))
    assert (await supersede(registry, Version(1, 4), "1")).children == commit.children
    async for event in registry.events("acme", after="0-0"):
        if event.fields.get("sequence") == "2":
            assert dict(json.loads(event.fields["children"])) == {
                k: str(v) for k, v in moved.items()
            }
            break


async def test_cancelling_a_parent_closes_the_subtree(registry):
    """Cancel is terminal for descendants too; pause and a child's own commits touch nobody else."""
    child = ScopeKey("acme", "child")
    await registry.register(KEY, term=1)
    await registry.register(child, term=1, parent="plan")
    assert (await supersede(registry, Version(1, 0), "0", kind=CommitKind.PAUSE)).children == ()
    assert not (await registry.get(child)).paused
    await supersede(registry, Version(1, 0), "1", child)
    assert (await registry.get(KEY)).version == Version(1, 0)
    commit = await supersede(registry, Version(1, 0), "2", kind=CommitKind.CANCEL)
    assert commit.children == ((child, Version(1, 2)),)
    with pytest.raises(ScopeClosed):
        await supersede(registry, Version(1, 2), "3", child)


async def test_join_and_leave(registry):
    """A gate joins at the current version and is no longer counted after it left."""
    await registry.register(KEY, term=1, epoch=2)
    await registry.join(KEY, term=1, node="n2", boot_id="b1")
    joined = await registry.join(KEY, term=1, node="n1", boot_id="b1")
    assert (joined.version, joined.nodes) == (Version(1, 2), ("n1", "n2"))
    await registry.leave(KEY, term=1, node="n2")
    await registry.leave(KEY, term=1, node="n9")
    assert (await registry.get(KEY)).nodes == ("n1",)
    assert [gate.node for gate in (await supersede(registry, Version(1, 2))).gates] == ["n1"]


async def test_ack_and_report_reach_the_committer(registry):
    """Acks and receipts are events after the commit; a replay carries the receipt that was kept."""
    await registry.register(KEY, term=1)
    commit = await supersede(registry, Version(1, 0), "a")
    await registry.ack(KEY, term=1, node="n1", version=commit.to_version, payload='{"ms": 1}')
    about = {"term": 1, "node": "n1", "version": commit.to_version}
    await registry.report(KEY, **about, receipt_json='{"r": 1}', idempotency_key="a")
    await registry.report(KEY, **about, receipt_json='{"r": 2}')
    with pytest.raises(VersionConflict, match="not committed yet"):
        await registry.ack(KEY, term=1, node="n1", version=Version(1, 2))
    seen = []
    async for event in registry.events("acme", after=commit.event_id):
        seen.append((event.kind, event.fields["version"], event.fields["payload"]))
        if len(seen) == 3:
            break
    receipts = [("receipt", "1.1", '{"r": 1}'), ("receipt", "1.1", '{"r": 2}')]
    assert seen == [("ack", "1.1", '{"ms": 1}'), *receipts]
    assert commit.receipt_json is None
    assert (await supersede(registry, Version(1, 0), "a")).receipt_json == '{"r": 1}'


@pytest.mark.parametrize(
    "scope", ["проект/план", '計画 🌍 {x} "q" \\ \'', "é" * 127 + "a", "a b c - 1.0"]
)
async def test_any_printable_name_works(registry, scope):
    """Unicode, spaces, braces, quotes and 255 bytes survive every operation."""
    key, child = ScopeKey("acme", scope), ScopeKey("acme", "c" + scope[1:])
    await registry.register(key, term=1)
    await registry.register(child, term=1, parent=scope)
    await registry.join(key, term=1, node="node-ü", boot_id="b-1")
    commit = await supersede(registry, Version(1, 0), scope, key)
    assert (commit.key, commit.children) == (key, ((child, Version(1, 1)),))
    assert (await supersede(registry, Version(1, 0), scope, key)).replayed
    records = {record.key: record for record in await registry.list_scopes("acme")}
    assert records[key].nodes == ("node-ü",)
    assert records[child].parent == scope


async def test_bad_input_names_the_field(registry):
    """Each bad value is refused before anything is sent."""
    await registry.register(KEY, term=1)
    with pytest.raises(InvalidField, match="^epoch must be"):
        await registry.register(KEY, term=1, epoch=-1)
    with pytest.raises(InvalidField, match="^parent must be another scope"):
        await registry.register(KEY, term=1, parent="plan")
    with pytest.raises(InvalidField, match="^term must be"):
        await registry.hello("acme", term=-1)
    with pytest.raises(InvalidField, match="^tenant must be a DNS label"):
        await registry.hello("a}{b", term=1)
    with pytest.raises(InvalidField, match="^node must be"):
        await registry.join(KEY, term=1, node="a b", boot_id="b")
    with pytest.raises(InvalidField, match="^boot_id must be"):
        await registry.join(KEY, term=1, node="a", boot_id="?")
    with pytest.raises(InvalidField, match="^idempotency_key must be"):
        await supersede(registry, Version(1, 0), "")
    with pytest.raises(InvalidField, match="^lease_s must be"):
        await registry.renew("n", term=1, boot_id="b", lease_s=0, tenants={})
    with pytest.raises(InvalidField, match="^blocks must be"):
        await registry.reserve("acme", term=1, owner="o", blocks=-1, lease_s=1)
    with pytest.raises(InvalidField, match="^after must be an event id"):
        await anext(registry.events("acme", after="yesterday"))


async def test_the_last_epoch_has_no_successor(registry):
    """At 2^40 - 1 a commit is refused in words instead of wrapping; one below is exact."""
    await registry.register(KEY, term=1, epoch=EPOCH_MAX - 1)
    assert (await supersede(registry, Version(1, EPOCH_MAX - 1))).to_version.epoch == EPOCH_MAX
    with pytest.raises(Exception, match="has no successor"):
        await supersede(registry, Version(1, EPOCH_MAX), "b")


async def test_scripts_come_back_after_script_flush(registry, store):
    """NOSCRIPT is answered by sending the script; the caller sees nothing."""
    await registry.register(KEY, term=1)
    with store.admin() as admin:
        admin.script_flush()
    assert (await supersede(registry, Version(1, 0))).to_version == Version(1, 1)
    assert (await registry.get(KEY)).version == Version(1, 1)


async def test_every_mutation_checks_the_term(registry):
    """A caller of another term changes nothing, whatever it asks."""
    await registry.register(KEY, term=1)
    before = await registry.snapshot("acme")
    attempts = (
        registry.register(ScopeKey("acme", "new"), term=2),
        registry.join(KEY, term=2, node="n", boot_id="b"),
        registry.leave(KEY, term=2, node="n"),
        supersede(registry, Version(1, 0), term=2),
        registry.ack(KEY, term=2, node="n", version=Version(1, 0)),
        registry.report(KEY, term=2, node="n", version=Version(1, 0), receipt_json="{}"),
        registry.renew("n", term=2, boot_id="b", lease_s=1, tenants={"acme": 0}),
        registry.expire("n", term=2, tenants=["acme"]),
        registry.reserve("acme", term=2, owner="o", blocks=1, lease_s=1),
        registry.release("acme", term=2, owner="o"),
        registry.set_quota("acme", term=2, blocks=1),
        registry.rebuild("acme", term=1, scopes=(), quota_blocks=None),
    )
    for attempt in attempts:
        with pytest.raises(TermMismatch, match="registry's term is 1"):
            await attempt
    assert await registry.snapshot("acme") == before

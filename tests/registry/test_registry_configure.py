"""Configuring a scope that exists: policy and parent, durable, told to nodes; never a circle."""

from __future__ import annotations

import asyncio

import pytest

from retire.protocol.contract import Policy
from retire.protocol.errors import InvalidField, NeedRegister, ScopeClosed, TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.registry.interface import CommitKind

KEY = ScopeKey("acme", "plan")
CHILD = ScopeKey("acme", "child")


async def told(registry, count):
    """The next ``count`` configure events of the tenant, as (scope, policy, parent)."""
    found = []
    async for event in registry.events("acme", after="0-0"):
        if event.kind == "configure":
            fields = event.fields
            found.append((fields["scope"], fields["policy"], fields["parent"]))
            if len(found) == count:
                return found
    return found


async def test_a_policy_is_set_changed_and_cleared(registry):
    """The record holds what was set last, the version stays, and each change is one event."""
    await registry.register(KEY, term=1, epoch=3)
    await registry.join(KEY, term=1, node="n1", boot_id="b1")
    for policy in (Policy.REJECT, Policy.REJECT, Policy.ROLLBACK, None):
        made = await registry.configure(KEY, term=1, policy=policy)
        assert (made.policy, made.version, made.nodes) == (policy, Version(1, 3), ("n1",))
        assert await registry.get(KEY) == made
    events = await asyncio.wait_for(told(registry, 3), 10)
    assert events == [("plan", "reject", ""), ("plan", "rollback", ""), ("plan", "-", "")]
    assert (await registry.snapshot("acme")).sequence == 0  # no commit was made


async def test_a_parent_is_set_once(registry):
    """An orphan gets a parent and moves with it from then on; another parent is refused."""
    await registry.register(KEY, term=1)
    await registry.register(CHILD, term=1, policy=Policy.ENQUEUE)
    for _ in range(2):  # asking twice is asking once
        made = await registry.configure(CHILD, term=1, policy=Policy.ENQUEUE, parent="plan")
        assert (made.parent, made.policy) == ("plan", Policy.ENQUEUE)
    assert (await registry.configure(CHILD, term=1, policy=None)).parent == "plan"
    await registry.register(ScopeKey("acme", "other"), term=1)
    with pytest.raises(InvalidField, match="^parent must be 'plan': a parent never changes"):
        await registry.configure(CHILD, term=1, policy=None, parent="other")
    moved = await registry.commit(
        CommitKind.SUPERSEDE,
        KEY,
        term=1,
        expected=Version(1, 0),
        idempotency_key="k",
        body_digest="d",
        by="t",
    )
    assert moved.children == ((CHILD, Version(1, 1)),)


async def test_a_circle_is_refused(registry):
    """A scope below itself would be retired without end."""
    names = ["a", "b", "c", "d"]
    for name, parent in zip(names, [None, *names], strict=False):
        await registry.register(ScopeKey("acme", name), term=1, parent=parent)
    for below in ("b", "d"):
        with pytest.raises(InvalidField, match="^parent must be a scope that is not below 'a'"):
            await registry.configure(ScopeKey("acme", "a"), term=1, policy=None, parent=below)
    with pytest.raises(InvalidField, match="^parent must be another scope"):
        await registry.configure(KEY, term=1, policy=None, parent="plan")
    assert (await registry.get(ScopeKey("acme", "a"))).parent is None


async def test_what_is_missing_is_named_and_nothing_is_made(registry):
    """Unknown scope, unknown or cancelled parent, another term."""
    with pytest.raises(NeedRegister, match="no scope 'plan'"):
        await registry.configure(KEY, term=1, policy=Policy.REJECT)
    await registry.register(KEY, term=1)
    await registry.register(CHILD, term=1)
    with pytest.raises(NeedRegister, match="no parent scope 'gone'"):
        await registry.configure(KEY, term=1, policy=Policy.REJECT, parent="gone")
    await registry.commit(
        CommitKind.CANCEL,
        CHILD,
        term=1,
        expected=Version(1, 0),
        idempotency_key="k",
        body_digest="d",
        by="t",
    )
    with pytest.raises(ScopeClosed, match="scope 'child' was cancelled"):
        await registry.configure(KEY, term=1, policy=Policy.REJECT, parent="child")
    with pytest.raises(TermMismatch) as refused:
        await registry.configure(KEY, term=2, policy=Policy.REJECT)
    assert refused.value.held == 1
    assert (await registry.get(KEY)).policy is None

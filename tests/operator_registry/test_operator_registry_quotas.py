"""Tenants' pin quotas: who gets a share, and what the registry is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_registry_world import Clock, World

from retire.protocol.errors import InvalidField, QuotaExceeded
from retire_operator.registry_guard import REBUILDING, SYNCED, RegistryState
from retire_operator.tenants import (
    PIN_QUOTA,
    TOLD_AGAIN_S,
    QuotaBook,
    QuotaRequest,
    TenantQuotas,
    quota_limit,
    requests_of,
    share_quota,
)


def ask(name: str, blocks: int | None, at: str = "1", namespace: str = "acme") -> QuotaRequest:
    return QuotaRequest(name, namespace, f"2026-01-01T00:00:0{at}Z", blocks)


SHARES = {
    "all fit": (10, [ask("a", 4), ask("b", 6, "2")], {"a": True, "b": True}, 0),
    "oldest first": (10, [ask("young", 6, "2"), ask("old", 6)], {"old": True, "young": False}, 4),
    "a smaller one still fits": (
        10,
        [ask("a", 6), ask("b", 6, "2"), ask("c", 3, "3")],
        {"a": True, "b": False, "c": True},
        1,
    ),
    "same second": (10, [ask("b", 6), ask("a", 6)], {"a": True, "b": False}, 4),
    "asks for nothing": (10, [ask("a", None), ask("b", 0)], {"b": True}, 10),
    "nothing to give": (0, [ask("a", 1), ask("b", 0, "2")], {"a": False, "b": True}, 0),
    "two objects of one scope": (
        10,
        [ask("a", 6), ask("a", 9, "2", namespace="other"), ask("b", 4, "3")],
        {"a": True, "b": True},
        0,
    ),
}


@pytest.mark.parametrize("case", SHARES)
def test_who_gets_a_share(case: str):
    """Oldest first; one that does not fit takes nothing and says what is left and what to do."""
    limit, requests, granted, left = SHARES[case]
    share = share_quota("acme", limit, requests)
    assert {name: answer.granted for name, answer in share.answers.items()} == granted
    assert share.blocks == limit
    assert {answer.left for answer in share.answers.values()} == {left}
    for answer in share.answers.values():
        assert answer.granted or (f"{left} of {limit} blocks are left" in answer.message)
        assert answer.granted or PIN_QUOTA in answer.message


@pytest.mark.parametrize(
    ("requests", "blocks"),
    [([], None), ([ask("a", None)], None), ([ask("a", 4), ask("b", 6)], 10)],
)
def test_without_an_annotation_the_sum_is_the_quota(requests, blocks: int | None):
    """Or no limit, when nobody asks; everybody gets what was asked."""
    share = share_quota("acme", None, requests)
    assert share.blocks == blocks
    assert all(answer.granted for answer in share.answers.values())


REQUESTS = st.builds(
    QuotaRequest,
    st.text("abcdef", min_size=1, max_size=2),
    st.sampled_from(["acme", "other"]),
    st.sampled_from(["1", "2", "3"]),
    st.none() | st.integers(0, 30),
)


@given(
    limit=st.integers(0, 60),
    requests=st.lists(REQUESTS, max_size=8, unique_by=lambda r: (r.namespace, r.name)),
)
def test_never_more_than_there_is(limit: int, requests: list[QuotaRequest]):
    """Granted requests fit; nobody is refused who would fit into what is left; order of arrival
    does not matter."""
    share = share_quota("acme", limit, requests)
    first = {}
    for r in sorted(requests, key=lambda r: (r.created_at, r.namespace, r.name)):
        if r.blocks is not None:
            first.setdefault(r.name, r.blocks)
    granted = sum(blocks for name, blocks in first.items() if share.answers[name].granted)
    assert granted <= limit
    for name, blocks in first.items():
        assert share.answers[name].left == limit - granted
        assert share.answers[name].granted or blocks > limit - granted
    assert share_quota("acme", limit, requests[::-1]) == share


@pytest.mark.parametrize(
    ("namespaces", "limit"),
    [
        ({}, None),
        ({"acme": {}}, None),
        ({"acme": {PIN_QUOTA: "100"}}, 100),
        ({"acme": {PIN_QUOTA: "0"}}, 0),
        ({"team": {PIN_QUOTA: "7"}}, None),
        ({"team": {PIN_QUOTA: "7", "serving.retire.dev/tenants": "globex, acme"}}, 7),
        (
            {
                "x": {PIN_QUOTA: "9", "serving.retire.dev/tenants": "acme"},
                "y": {PIN_QUOTA: "7", "serving.retire.dev/tenants": "acme"},
            },
            7,
        ),
        (
            {
                "acme": {PIN_QUOTA: "100"},
                "y": {PIN_QUOTA: "7", "serving.retire.dev/tenants": "acme"},
            },
            100,
        ),
    ],
)
def test_which_annotation_counts(namespaces, limit: int | None):
    """The namespace of the tenant's name, else the lowest of those that may speak for it."""
    assert quota_limit("acme", namespaces) == limit


@pytest.mark.parametrize("text", ["", "-1", "many", "1e3", "1.5", " 5", "٣", str(2**60)])
def test_a_malformed_annotation_is_named(text: str):
    """Annotation, namespace, and what it must be."""
    with pytest.raises(InvalidField, match=r"pin-quota-blocks of namespace acme must be a number"):
        quota_limit("acme", {"acme": {PIN_QUOTA: text}})


def body(name: str, blocks: int | None = None, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": more.pop("namespace", "acme"), "creationTimestamp": "1"}
    if more.pop("going", False):
        meta["deletionTimestamp"] = "2"
    quota = {} if blocks is None else {"quota": {"pinnedBlocks": blocks}}
    return {"metadata": meta, "spec": {**quota, **more}}


def test_whose_requests_count():
    """Of the tenant, whatever the namespace; not of scopes that are over or going."""
    bodies = [
        body("a", 1),
        body("b", 2, namespace="team", tenant="acme"),
        body("c", 4, tenant="globex"),
        body("d", 8, cancelled=True),
        body("e", 16, going=True),
        body("f"),
    ]
    assert {r.name: r.blocks for r in requests_of("acme", bodies)} == {"a": 1, "b": 2, "f": None}


class Settled:
    """Quotas on a real registry, with objects and a guard under the test's control."""

    def __init__(self, world: World) -> None:
        self.world, self.clock = world, Clock()
        self.bodies: list[dict[str, Any]] = []
        self.namespaces: dict[str, dict[str, str]] = {}
        self.state = RegistryState(1, True, SYNCED, "")
        self.told: list[int | None] = []
        self.book = QuotaBook(self._bodies, self._namespaces)
        self.quotas = TenantQuotas(self.book, self, self, clock=self.clock)

    async def _bodies(self):
        return self.bodies

    async def _namespaces(self):
        return self.namespaces

    async def ensure(self) -> RegistryState:
        return self.state

    async def open_tenant(self, tenant: str) -> None:
        await self.world.registry.hello(tenant, term=self.state.term)

    async def set_quota(self, tenant: str, *, term: int, blocks: int | None) -> None:
        await self.world.registry.set_quota(tenant, term=term, blocks=blocks)
        self.told.append(blocks)

    async def held(self) -> int | None:
        return (await self.world.registry.snapshot("acme")).quota_blocks


@pytest.fixture
async def settled(world: World) -> Settled:
    await world.synced(world.guard())
    return Settled(world)


async def test_the_registry_enforces_what_the_annotation_says(settled: Settled):
    """A tenant that was not open yet is opened; a reservation above the quota is refused."""
    settled.namespaces = {"acme": {PIN_QUOTA: "10"}}
    settled.bodies = [body("plan", 20)]
    answers = await settled.quotas.settle("acme")
    assert not answers["plan"].granted
    reserve = settled.world.registry.reserve
    await reserve("acme", term=1, owner="o", blocks=10, lease_s=30.0)
    with pytest.raises(QuotaExceeded):
        await reserve("acme", term=1, owner="p", blocks=1, lease_s=30.0)


async def test_only_a_change_is_told(settled: Settled):
    """The same quota again costs nothing; another one, another term or a minute later does."""
    settled.namespaces = {"acme": {PIN_QUOTA: "10"}}
    for _ in range(3):
        await settled.quotas.settle("acme")
    assert settled.told == [10]
    settled.namespaces = {"acme": {PIN_QUOTA: "12"}}
    await settled.quotas.settle("acme")
    assert settled.told == [10, 12]
    settled.clock.now_s += TOLD_AGAIN_S + 1
    await settled.quotas.settle("acme")
    assert settled.told == [10, 12, 12]
    await settled.world.flush()
    await settled.world.synced(settled.world.guard())
    assert settled.world.lease.stored is not None
    settled.state = RegistryState(settled.world.lease.stored.term, True, SYNCED, "")
    await settled.quotas.settle("acme")
    assert settled.told == [10, 12, 12, 12]


async def test_a_quota_that_nobody_asks_for_any_more_is_lifted(settled: Settled):
    """Requests were the quota; the scopes ask for nothing now."""
    settled.bodies = [body("plan", 20), body("side", 1)]
    await settled.quotas.settle("acme")
    assert await settled.held() == 21
    settled.bodies = [body("plan"), body("side")]
    assert await settled.quotas.settle("acme") == {}
    assert await settled.held() is None


async def test_tenants_without_objects_are_left_alone(settled: Settled):
    """An agent's own tenant keeps the quota that its nodes gave it."""
    await settled.open_tenant("acme")
    await settled.world.registry.set_quota("acme", term=1, blocks=5)
    assert await settled.quotas.settle("acme") == {}
    assert await settled.held() == 5
    assert await settled.book.decided("acme", 5) == 5
    settled.bodies = [body("plan")]
    assert await settled.book.decided("acme", 5) is None


async def test_a_malformed_annotation_changes_nothing(settled: Settled):
    """Who asked is told why; the registry keeps the last good quota, also through a rebuild."""
    settled.namespaces = {"acme": {PIN_QUOTA: "10"}}
    settled.bodies = [body("plan", 4), body("side")]
    await settled.quotas.settle("acme")
    settled.namespaces = {"acme": {PIN_QUOTA: "ten"}}
    answers = await settled.quotas.settle("acme")
    assert set(answers) == {"plan"}
    assert "pin-quota-blocks of namespace acme must be" in answers["plan"].message
    assert not answers["plan"].granted
    assert await settled.held() == 10
    assert await settled.book.decided("acme", 10) == 10


async def test_a_namespace_cannot_use_up_a_foreign_quota(settled: Settled):
    """Objects that name a tenant their namespace may not speak for ask in vain."""
    settled.namespaces = {"acme": {PIN_QUOTA: "10"}, "thief": {}}
    settled.bodies = [body("old", 9, namespace="thief", tenant="acme"), body("plan", 9)]
    assert {n: a.granted for n, a in (await settled.quotas.settle("acme")).items()} == {
        "plan": True
    }
    settled.namespaces["thief"] = {"serving.retire.dev/tenants": "acme"}  # control
    answers = await settled.quotas.settle("acme")
    assert [answers["old"].granted, answers["plan"].granted].count(True) == 1


async def test_nothing_is_told_while_the_registry_is_not_synced(settled: Settled):
    """The answers come all the same; the quota is told later."""
    settled.namespaces = {"acme": {PIN_QUOTA: "10"}}
    settled.bodies = [body("plan", 4)]
    settled.state = RegistryState(1, False, REBUILDING, "")
    assert (await settled.quotas.settle("acme"))["plan"].granted
    assert settled.told == []
    settled.state = RegistryState(1, True, SYNCED, "")
    await settled.quotas.settle("acme")
    assert settled.told == [10]

"""The term Lease: one suite over the in-memory Lease and over a real API server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client as kubernetes
from operator_registry_world import MemoryLease

from retire.protocol.errors import InvalidField, TermMismatch
from retire_operator.errors import AccessDenied, ApiUnavailable, ObjectMissing, WriteConflict
from retire_operator.term import (
    INCARNATION,
    KubernetesLease,
    StoredLease,
    TermLease,
    TermLeaseError,
)


@pytest.fixture(params=["memory", "kubernetes"])
def lease(request: pytest.FixtureRequest) -> Any:
    """A LeaseApi of each kind; nothing is stored yet."""
    if request.param == "memory":
        return MemoryLease()
    cluster, namespace, leases = (
        request.getfixturevalue(name) for name in ("cluster", "namespace", "leases")
    )
    return KubernetesLease.named(leases(cluster.kubeconfig), f"{namespace}/retire-term")


async def test_the_term_counts_up(lease):
    """0 while there is no Lease, then 1, 2 and a jump; each term is unfinished until noted."""
    term = TermLease(lease, identity="a")
    assert (await term.current()).number == 0
    assert (await term.advance(0)).number == 1
    await term.complete(1, "first")
    assert await term.current() == await TermLease(lease, identity="b").current()
    assert (await term.current()).incarnation == "first"
    made = await TermLease(lease, identity="b").advance(1, 7)
    assert (made.number, made.holder, made.incarnation) == (7, "b", "")


async def test_only_from_the_term_that_is(lease):
    """A stale expectation changes nothing."""
    term = TermLease(lease, identity="a")
    await term.advance(0)
    for call in (term.advance(0), term.advance(2), term.complete(2, "x")):
        with pytest.raises(TermMismatch, match="the term is 1"):
            await call
    assert (await term.current()).number == 1


async def test_a_create_race_has_one_winner(lease):
    """Two operators at the first start; the loser reads the winner's."""
    race = [TermLease(lease, identity=name).advance(0) for name in "ab"]
    results = await asyncio.gather(*race, return_exceptions=True)
    assert sorted(isinstance(result, TermMismatch) for result in results) == [False, True]
    assert (await TermLease(lease, identity="c").current()).number == 1


async def test_an_advance_race_has_one_winner(lease):
    """Five operators that all saw term 1."""
    await TermLease(lease, identity="a").advance(0)
    race = [TermLease(lease, identity=name).advance(1) for name in "abcde"]
    results = await asyncio.gather(*race, return_exceptions=True)
    winners = [result for result in results if not isinstance(result, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(r, TermMismatch) for r in results if isinstance(r, BaseException))
    assert (await TermLease(lease, identity="f").current()).holder == winners[0].holder


async def test_only_over_what_was_read(lease):
    """Control of the races: the store itself refuses a stale resourceVersion, and a second
    create."""
    first = await lease.create(StoredLease(1))
    await lease.replace(replace(first, term=2))
    with pytest.raises(WriteConflict):
        await lease.replace(replace(first, term=3))
    with pytest.raises(WriteConflict):
        await lease.create(StoredLease(1))
    assert (await lease.read()).term == 2


async def test_a_term_is_never_lowered(lease):
    """Not even by mistake of a caller."""
    term = TermLease(lease, identity="a")
    await term.advance(0, 5)
    with pytest.raises(AssertionError):
        await term.advance(5, 4)
    with pytest.raises(InvalidField, match="term must be at most 16777215"):
        await term.advance(5, 2**24)
    assert (await term.current()).number == 5


@pytest.mark.parametrize("number", [-1, 2**24])
async def test_a_nonsense_term_is_not_replaced_by_a_guess(number: int):
    """The message says what to write."""
    lease = MemoryLease()
    lease.stored = StoredLease(number, resource_version="1")
    with pytest.raises(TermLeaseError, match=r"leaseTransitions .* highest term .* plus one"):
        await TermLease(lease, identity="a").current()


@pytest.mark.parametrize("reference", ["", "name", "a/", "/b", "a/b/c"])
def test_the_reference_names_namespace_and_lease(reference: str):
    """Anything else is refused, naming the variable."""
    with pytest.raises(InvalidField, match="RETIRE_TERM_LEASE must be written"):
        KubernetesLease.named(kubernetes.CoordinationV1Api(), reference)


async def test_what_others_wrote_on_the_lease_stays(cluster, namespace: str, leases):
    """Labels and annotations of the chart survive; the note of an older term does not."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    meta = {"name": "t", "labels": {"app": "retire"}, "annotations": {"note": "kept"}}
    cluster.api.create(path, {"metadata": meta, "spec": {"leaseTransitions": 4}})
    api = KubernetesLease.named(leases(cluster.kubeconfig), f"{namespace}/t")
    term = TermLease(api, identity="op-1")
    await term.complete(4, "abc")
    assert cluster.api.get(f"{path}/t")["metadata"]["annotations"][INCARNATION] == "abc"
    assert (await term.advance(4)).number == 5
    found = cluster.api.get(f"{path}/t")
    assert found["metadata"]["labels"] == {"app": "retire"}
    assert found["metadata"]["annotations"] == {"note": "kept"}
    assert (found["spec"]["leaseTransitions"], found["spec"]["holderIdentity"]) == (5, "op-1")


async def test_a_lease_deleted_under_ones_hands_is_a_mismatch(cluster, namespace: str, leases):
    """Between reading and replacing."""
    api = KubernetesLease.named(leases(cluster.kubeconfig), f"{namespace}/retire-term")
    first = await api.create(StoredLease(1))
    cluster.api.delete(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/retire-term")
    with pytest.raises(WriteConflict, match="UID"):
        await api.replace(replace(first, term=2))
    assert await api.read() is None  # a PUT without the uid would have made it anew


async def test_what_the_api_server_refuses(cluster, leases):
    """A missing namespace, an unknown user, no server: each error says what was tried."""
    api = leases(cluster.kubeconfig)
    with pytest.raises(ObjectMissing, match="create lease no-such/t"):
        await KubernetesLease.named(api, "no-such/t").create(StoredLease(1))
    known = api.api_client.configuration
    nobody = leases(
        None,
        host=known.host,
        ssl_ca_cert=known.ssl_ca_cert,
        api_key={"authorization": "Bearer nobody"},
    )
    with pytest.raises(AccessDenied, match="get lease default/t"):
        await KubernetesLease.named(nobody, "default/t").read()
    away = leases(None, host="http://127.0.0.1:9", retries=False)
    with pytest.raises(ApiUnavailable, match="does not answer"):
        await KubernetesLease.named(away, "default/t").read()

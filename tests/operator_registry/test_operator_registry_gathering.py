"""What is gathered: nodes that answer, nodes that do not, and lists from a real API server."""

from __future__ import annotations

import asyncio

import pytest
from kubernetes import client as kubernetes
from kubernetes import config
from operator_registry_world import OTHER, PLAN, Clock, FakeNode, cr

from retire.protocol.contract import Policy
from retire.protocol.versions import Version
from retire.registry.interface import ScopeRecord
from retire.sidecar.pb import node_pb2 as pb
from retire_operator import listing
from retire_operator.errors import ApiUnavailable
from retire_operator.gathering import Gatherer, view_fact
from retire_operator.listing import NAMESPACES_S, Listing


def node(name: str) -> FakeNode:
    record = ScopeRecord(
        PLAN, Version(1, 3), 2, True, False, Policy.ENQUEUE, "up", nodes=("elsewhere",)
    )
    return FakeNode(name, sequences={"acme": 4}, scopes={PLAN: record})


async def nothing() -> list:
    return []


async def test_everything_of_a_node():
    """Status and List become facts; the node itself is who holds the scope."""
    facts = await Gatherer(nothing, lambda: [node("n0")]).everything()
    (found,) = facts.nodes
    assert (found.term, found.entered, found.sequences) == (1, True, {"acme": 4})
    (scope,) = found.scopes
    assert (scope.key, scope.version, scope.generation) == (PLAN, Version(1, 3), 2)
    assert (scope.paused, scope.policy, scope.parent) == (True, Policy.ENQUEUE, "up")
    assert scope.nodes == ("n0",)
    cheap = await Gatherer(nothing, lambda: [node("n0")]).known()
    assert cheap.nodes[0].scopes == ()


async def test_a_node_that_cannot_be_asked_is_left_out():
    """One refuses, one never answers: the third one is heard all the same, in bounded time."""
    refuses, hangs = node("n1"), node("n2")
    refuses.reachable = False

    async def never() -> pb.StatusReply:
        await asyncio.Event().wait()
        raise AssertionError

    hangs.status = never  # type: ignore[method-assign]
    nodes = [node("n0"), refuses, hangs]
    facts = await Gatherer(nothing, lambda: nodes, answer_s=0.2).nodes()
    assert [found.name for found in facts.nodes] == ["n0"]


async def test_a_node_whose_list_fails_is_still_known():
    """Its sequences and its term count, although its inventory is missing."""
    half = node("n0")

    async def broken(tenant: str = "") -> list[pb.ScopeView]:
        raise ApiUnavailable(f"no {tenant}")

    half.list = broken  # type: ignore[method-assign]
    facts = await Gatherer(nothing, lambda: [half]).everything()
    assert [(found.name, found.scopes) for found in facts.nodes] == [("n0", ())]


async def test_objects_that_say_nothing_are_left_out():
    """Only what the operator has accepted counts."""

    async def bodies() -> list:
        return [cr(PLAN, "1.3"), cr(OTHER, None)]

    facts = await Gatherer(bodies, list).known()
    assert [fact.key for fact in facts.crs] == [PLAN]


@pytest.mark.parametrize(
    "view",
    [
        pb.ScopeView(key=pb.ScopeKey(tenant="ACME", scope="x")),
        pb.ScopeView(key=pb.ScopeKey(tenant="acme", scope="")),
        pb.ScopeView(key=pb.ScopeKey(tenant="acme", scope="x"), version=pb.Version(term=2**25)),
        pb.ScopeView(key=pb.ScopeKey(tenant="acme", scope="x"), policy="later"),
    ],
)
def test_a_malformed_view_is_left_out(view: pb.ScopeView):
    """One bad answer must not stop a rebuild."""
    assert view_fact(view, node="n0") is None


@pytest.fixture
def objects(cluster, crd: str, namespace: str):
    """A namespace with three ServingScopes."""
    path = f"/apis/serving.retire.dev/v1alpha1/namespaces/{namespace}/servingscopes"
    for name in "abc":
        meta = {"name": name, "namespace": namespace}
        body = {
            "apiVersion": "serving.retire.dev/v1alpha1",
            "kind": "ServingScope",
            "metadata": meta,
            "spec": {},
        }
        cluster.api.create(path, body)
    return namespace


def connect(cluster) -> kubernetes.ApiClient:
    configuration = kubernetes.Configuration()
    config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    return kubernetes.ApiClient(configuration)


@pytest.mark.parametrize("page", [1, 2, 500])
async def test_every_object_is_listed(cluster, objects: str, page: int, monkeypatch):
    """Of all namespaces or of those watched, however many pages it takes."""
    monkeypatch.setattr(listing, "_PAGE", page)
    api = connect(cluster)
    everywhere = await Listing(api, clock=Clock()).scopes()
    watched = await Listing(api, watched=[objects, "no-such"], clock=Clock()).scopes()
    assert [b["metadata"]["name"] for b in watched] == ["a", "b", "c"]
    assert {b["metadata"]["uid"] for b in watched} <= {b["metadata"]["uid"] for b in everywhere}
    assert watched[0]["spec"]["epoch"] == 0


async def test_annotations_of_namespaces(cluster, namespace: str):
    """All, or those watched that exist; read again after a few seconds."""
    clock = Clock()
    lists = [
        Listing(connect(cluster), clock=clock),
        Listing(connect(cluster), watched=[namespace, "no-such"], clock=clock),
    ]
    for one in lists:
        assert namespace in await one.namespaces()
    assert set(await lists[1].namespaces()) == {namespace}
    patch = {"metadata": {"annotations": {"x": "1"}}}
    cluster.api.merge(f"/api/v1/namespaces/{namespace}", patch)
    assert "x" not in (await lists[1].namespaces())[namespace]  # control: it was cached
    clock.now_s += NAMESPACES_S
    assert (await lists[1].namespaces())[namespace]["x"] == "1"


async def test_no_api_server_is_unavailable():
    """An error that is tried again, naming what was read."""
    dead = kubernetes.Configuration(host="http://127.0.0.1:9")
    dead.retries = False
    api = kubernetes.ApiClient(dead)
    with pytest.raises(ApiUnavailable, match="list servingscopes"):
        await Listing(api, clock=Clock()).scopes()
    with pytest.raises(ApiUnavailable, match="list namespaces"):
        await Listing(api, clock=Clock()).namespaces()

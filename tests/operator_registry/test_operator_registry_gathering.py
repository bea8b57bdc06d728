"""What is gathered: nodes that answer, nodes that do not, objects that say something."""

from __future__ import annotations

import asyncio

import pytest
from operator_registry_world import OTHER, PLAN, FakeNode, cr

from retire.protocol.contract import Policy
from retire.protocol.versions import Version
from retire.registry.interface import ScopeRecord
from retire.sidecar.pb import node_pb2 as pb
from retire_operator.errors import ApiUnavailable
from retire_operator.gathering import Gatherer, view_fact


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

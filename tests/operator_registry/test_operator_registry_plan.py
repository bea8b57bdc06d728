"""loss() and plan_rebuild(): tables, and what must hold for every set of facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_registry_world import OTHER, OVER, PLAN, SIDE, cr

from retire.protocol.contract import Policy
from retire.protocol.errors import TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.registry.interface import ScopeRecord, Snapshot
from retire_operator.gathering import cr_fact
from retire_operator.rebuild import Facts, Held, NodeFact, ScopeFact, loss, plan_rebuild, unmet


def record(key: ScopeKey, version: str = "1.3", **known) -> ScopeRecord:
    base = ScopeRecord(key, Version.parse(version), 1, False, False, None, None, ())
    return replace(base, **known)


def snapshot(tenant: str, *scopes: ScopeRecord, term: int = 1, sequence: int = 5) -> Snapshot:
    return Snapshot(tenant, term, "i", sequence, tuple(scopes), None, (), "0-0")


def held(*snapshots: Snapshot, names: tuple[str, ...] = ()) -> Held:
    tenants = {s.tenant: s for s in snapshots}
    return Held(frozenset({*tenants, *names}), tenants)


def claim(key: ScopeKey = PLAN, version: str = "1.3", **known) -> ScopeFact:
    return ScopeFact(key, Version.parse(version), **known)


def node(*, term: int = 1, entered: bool = True, scopes=(), **sequences: int) -> NodeFact:
    return NodeFact("n", term, entered, sequences=sequences, scopes=tuple(scopes))


HEALTHY = held(snapshot("acme", record(PLAN), record(SIDE)))

PARTIAL = held(*HEALTHY.snapshots.values(), names=("globex",))

LOSSES = {
    "healthy": (Facts((claim(),), (node(acme=5),)), HEALTHY, ""),
    "empty": (Facts(), Held(None), "is empty"),
    "bereft": (Facts(), Held(frozenset({"acme"}), {}, frozenset({"acme"})), "lost the data"),
    "lower term": (Facts(), held(snapshot("acme", term=0)), "is of term 0, the Lease of 1"),
    "higher term": (Facts(), held(snapshot("acme", term=2)), "is of term 2, the Lease of 1"),
    "CR of a higher term": (Facts((claim(version="2.0"),)), HEALTHY, "term 2 was in use"),
    "node of a higher term": (Facts(nodes=(node(term=2),)), HEALTHY, "term 2 was in use"),
    "behind a node": (Facts(nodes=(node(acme=6),)), HEALTHY, "node n has seen 6"),
    "node of an older term": (Facts(nodes=(node(term=0, acme=6),)), HEALTHY, ""),
    "node on its way in": (Facts(nodes=(node(entered=False, acme=6),)), HEALTHY, ""),
    "tenant a node knows": (Facts(nodes=(node(globex=1),)), HEALTHY, "lost tenant 'globex'"),
    "tenant nobody committed in": (Facts(nodes=(node(globex=0),)), HEALTHY, ""),
    "behind a CR": (Facts((claim(version="1.4"),)), HEALTHY, "is at 1.3, ServingScope acme/plan"),
    "scope a CR knows": (Facts((claim(OVER),)), HEALTHY, "acme/over is at nothing"),
    "tenant a CR knows": (Facts((claim(OTHER),)), HEALTHY, "lost tenant 'globex'"),
    "CR of an older term": (Facts((claim(OTHER, "0.9"),)), HEALTHY, ""),
    "tenant not asked about": (Facts((claim(OTHER),)), PARTIAL, ""),
}


@pytest.mark.parametrize("case", LOSSES)
def test_what_is_a_loss(case: str):
    """Each sign of a loss, and beside it what looks like one and is none."""
    facts, registry, why = LOSSES[case]
    found = loss(facts, registry, 1)
    assert (why in found) if why else (found == "")


OLD, NEW = "1.3", "1.9"
REJECT, ENQUEUE = Policy.REJECT, Policy.ENQUEUE
# Claims, and what the plan must say besides the defaults of a scope at 2.9.
MERGES = {
    "one source": ([claim(version=NEW)], {}),
    "highest epoch": ([claim(), claim(version=NEW)], {}),
    "higher epoch of an older term": ([claim(), claim(version="0.9")], {}),
    "cancelled, says an old source": (
        [claim(version=NEW), claim(cancelled=True)],
        {"cancelled": True},
    ),
    "paused, says the newest": ([claim(version=NEW, paused=True), claim()], {"paused": True}),
    "paused long ago": ([claim(version=NEW), claim(paused=True)], {}),
    "paused as declared": (
        [claim(version=NEW), claim(paused=True, declared=True)],
        {"paused": True},
    ),
    "policy as declared": (
        [claim(version=NEW, policy=REJECT), claim(policy=ENQUEUE, declared=True)],
        {"policy": ENQUEUE},
    ),
    "no policy, declared": ([claim(version=NEW, policy=REJECT), claim(declared=True)], {}),
    "policy as known": ([claim(version=NEW), claim(policy=REJECT)], {"policy": REJECT}),
    "parent as known": (
        [claim(version=NEW, declared=True), claim(parent="up")],
        {"parent": "up"},
    ),
    "its own parent": ([claim(version=NEW, parent="plan")], {}),
    "nodes of all": (
        [claim(version=NEW, nodes=("b",)), claim(nodes=("a", "b"))],
        {"nodes": ("a", "b")},
    ),
    "highest generation": (
        [claim(version=NEW, generation=2), claim(generation=4)],
        {"generation": 4},
    ),
}


@pytest.mark.parametrize("case", MERGES)
@pytest.mark.parametrize("turn", [1, -1])
def test_how_claims_merge(case: str, turn: int):
    """In whatever order they come."""
    claims, said = MERGES[case]
    plans = plan_rebuild(Facts(tuple(claims[::turn])), Held(None), 2)
    assert plans["acme"].scopes == (record(PLAN, "2.9", **{"generation": 0, **said}),)


def test_every_tenant_that_anybody_knows():
    """From CRs, nodes and the registry, with the highest sequence; the quota as it is held."""
    registry = held(replace(snapshot("globex", sequence=9), quota_blocks=4), names=("idle",))
    facts = Facts((claim(),), (node(acme=3, globex=7, empty=0),))
    plans = plan_rebuild(facts, registry, 2)
    assert {name: (plan.sequence, plan.quota_blocks) for name, plan in plans.items()} == {
        "acme": (3, None),
        "empty": (0, None),
        "globex": (9, 4),
        "idle": (0, None),
    }


@pytest.mark.parametrize(
    ("facts", "registry"),
    [
        (Facts((claim(version="3.0"),)), Held(None)),
        (Facts(nodes=(node(term=3),)), Held(None)),
        (Facts(), held(snapshot("acme", term=3))),
    ],
)
def test_nothing_is_planned_below_a_known_term(facts: Facts, registry: Held):
    """A version above the plan's own term would be left behind: refused."""
    with pytest.raises(TermMismatch, match="term 3 was in use"):
        plan_rebuild(facts, registry, 2)
    assert plan_rebuild(facts, registry, 3) is not None


def test_below_a_cancelled_parent_nothing_lives():
    """A source that knew only the parent's cancel must not leave its children alive."""
    claims = (
        claim(PLAN, cancelled=True),
        claim(SIDE, parent="plan"),
        claim(OVER, parent="side"),
        claim(ScopeKey("acme", "free")),
    )
    scopes = plan_rebuild(Facts(claims), Held(None), 2)["acme"].scopes
    assert {r.key.scope: r.cancelled for r in scopes} == {
        "free": False,
        "plan": True,
        "side": True,
        "over": True,
    }
    assert [r.key.scope for r in scopes if r.key.scope != "free"] == ["plan", "side", "over"]


def test_a_circle_of_parents_is_opened():
    """CRs can name each other; a commit that walks down must come to an end."""
    claims = (claim(PLAN, parent="side"), claim(SIDE, parent="over"), claim(OVER, parent="plan"))
    scopes = plan_rebuild(Facts(claims), Held(None), 2)["acme"].scopes
    assert (
        sorted(str(r.parent) for r in scopes) == ["None", "over", "plan"]
        or len([r for r in scopes if r.parent is None]) == 1
    )


def test_what_somebody_elses_rebuild_lacks():
    """Scopes that are missing, or live on although they are over; not those that are further."""
    plan = plan_rebuild(
        Facts((claim(PLAN), claim(SIDE, cancelled=True), claim(OVER))), Held(None), 2
    )["acme"]
    found = held(snapshot("acme", record(PLAN, "2.9"), record(SIDE, "2.3"), term=2))
    assert [r.key for r in unmet(plan, found)] == [OVER, SIDE]
    assert len(unmet(plan, Held(None))) == 3


NAMES = st.sampled_from("abcd")
VERSIONS = st.builds(Version, st.integers(0, 3), st.integers(0, 6))
CLAIMS = st.builds(
    ScopeFact,
    key=st.builds(ScopeKey, st.sampled_from(["acme", "globex"]), NAMES),
    version=VERSIONS,
    generation=st.integers(0, 3),
    paused=st.booleans(),
    cancelled=st.booleans(),
    policy=st.none() | st.sampled_from(Policy),
    parent=st.none() | NAMES,
    declared=st.booleans(),
)
RECORDS = CLAIMS.map(
    lambda c: ScopeRecord(
        c.key, c.version, c.generation, c.paused, c.cancelled, c.policy, c.parent, ()
    )
)


@given(
    crs=st.lists(CLAIMS, max_size=6),
    listed=st.lists(CLAIMS, max_size=6),
    stored=st.lists(RECORDS, max_size=4, unique_by=lambda r: r.key),
    seen=st.integers(0, 9),
)
def test_nothing_acknowledged_is_ever_above_the_plan(crs, listed, stored, seen):
    """No version above, no lower epoch, no cancel undone, no circle: whatever the sources say."""
    snapshots = [
        snapshot(t, *(r for r in stored if r.key.tenant == t), term=3) for t in ("acme", "globex")
    ]
    facts = Facts(tuple(crs), (node(term=3, scopes=listed, acme=seen),))
    plans = plan_rebuild(facts, held(*snapshots), 4)
    planned = {r.key: r for plan in plans.values() for r in plan.scopes}
    for known in (*crs, *listed, *stored):
        result = planned[known.key]
        assert known.version < result.version
        assert known.version.epoch <= result.version.epoch
        assert known.generation <= result.generation
        assert result.cancelled or not known.cancelled
    assert plans["acme"].sequence == max(seen, 5)
    assert {r.key for r in planned.values()} == {k.key for k in (*crs, *listed, *stored)}
    for plan in plans.values():
        _check_forest({r.key.scope: r for r in plan.scopes})


def _check_forest(scopes: dict[str, ScopeRecord]) -> None:
    for name, found in scopes.items():
        path = [name]
        while (parent := scopes[path[-1]].parent) in scopes:
            assert parent is not None
            assert parent not in path
            path.append(parent)
            assert found.cancelled or not scopes[parent].cancelled
    order = list(scopes)
    for name, found in scopes.items():
        assert found.parent not in scopes or order.index(found.parent) < order.index(name)


@given(crs=st.lists(CLAIMS, min_size=1, max_size=6))
def test_a_plan_repeats_itself(crs):
    """What was planned, taken as the registry's own answer, plans the same again."""
    first = plan_rebuild(Facts(tuple(crs)), Held(None), 4)
    stored = [snapshot(p.tenant, *p.scopes, term=4, sequence=p.sequence) for p in first.values()]
    again = plan_rebuild(Facts(tuple(crs)), held(*stored), 4)
    assert again == first


def declared(key: ScopeKey = PLAN, **known) -> ScopeFact:
    return claim(key, declared=True, **known)


OBJECTS = {
    "accepted": (cr(PLAN, "1.3"), declared()),
    "never accepted": (cr(PLAN, None, spec_cancelled=True), None),
    "paused by spec": (cr(PLAN, "1.3", spec_paused=True), declared(paused=True)),
    "paused by an agent": (cr(PLAN, "1.3", phase="Paused"), declared(paused=True)),
    "cancelled by spec": (cr(PLAN, "1.3", spec_cancelled=True), declared(cancelled=True)),
    "cancelled by an agent": (cr(PLAN, "1.3", phase="Cancelled"), declared(cancelled=True)),
    "phase says something else now": (
        cr(PLAN, "1.3", phase="Degraded", receipts=[{"kind": "cancel", "toVersion": "1.3"}]),
        declared(cancelled=True),
    ),
    "policy and parent": (
        cr(PLAN, "1.3", spec_onNewInput="reject", spec_parentRef={"name": "up"}),
        declared(policy=Policy.REJECT, parent="up"),
    ),
    "another tenant": (
        cr(PLAN, "1.3", spec_tenant="globex"),
        declared(OTHER),
    ),
    "malformed version": (cr(PLAN, "1.99999999999999999"), None),
    "no policy of ours": (cr(PLAN, "1.3", spec_onNewInput="later"), declared()),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_what_an_object_says(case: str):
    """A ServingScope speaks only once the operator has accepted it."""
    body, fact = OBJECTS[case]
    assert cr_fact(body) == fact

"""What the registry must hold: is it the one everybody knew, and if not, what is written anew.

Pure: facts in, judgement and plan out. Facts come from CR status, from the nodes and from what the
registry still holds. Must never import a client of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from retire.protocol.contract import Policy
from retire.protocol.errors import TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.registry.interface import ScopeRecord, Snapshot

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ScopeFact:
    """One scope as one source knows it; ``version`` was acknowledged there."""

    key: ScopeKey
    version: Version
    generation: int = 0
    paused: bool = False
    cancelled: bool = False
    policy: Policy | None = None
    parent: str | None = None
    nodes: tuple[str, ...] = ()
    declared: bool = False  # from a CR: policy and parent are what its owner wants


@dataclass(frozen=True, slots=True)
class NodeFact:
    """One node as it answered. ``scopes`` only after a gather."""

    name: str
    term: int
    entered: bool  # its sequences are those of the registry of its term: it holds its lease there
    registry_lost: str = ""  # why the node says that the registry is not the one it knew
    publish_lease_s: float = 0.0
    sequences: Mapping[str, int] = field(default_factory=dict)
    scopes: tuple[ScopeFact, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known outside the registry. Read before the registry is: it may only be ahead."""

    crs: tuple[ScopeFact, ...] = ()
    nodes: tuple[NodeFact, ...] = ()

    def scopes(self) -> Iterator[tuple[str, ScopeFact]]:
        """Every claim about a scope, with who makes it."""
        for fact in self.crs:
            yield f"ServingScope {fact.key}", fact
        for node in self.nodes:
            for fact in node.scopes:
                yield f"node {node.name}", fact

    def tenants(self) -> set[str]:
        """Every tenant that somebody knows."""
        named = {tenant for node in self.nodes for tenant in node.sequences}
        return named | {fact.key.tenant for _, fact in self.scopes()}

    @property
    def term(self) -> int:
        """The highest term that somebody knows; 0: nobody knows one."""
        nodes = (node.term for node in self.nodes)
        return max((*nodes, *(fact.version.term for _, fact in self.scopes())), default=0)

    @property
    def publish_lease_s(self) -> float:
        """The longest publish lease of a node that answered."""
        return max((node.publish_lease_s for node in self.nodes), default=0.0)


@dataclass(frozen=True, slots=True)
class Held:
    """What the registry answered. ``tenants`` None: it is empty."""

    tenants: frozenset[str] | None
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)  # of the tenants asked about
    bereft: frozenset[str] = frozenset()  # asked about: named by the registry, but without data

    @property
    def term(self) -> int:
        """The highest term it holds."""
        return max((snapshot.term for snapshot in self.snapshots.values()), default=0)


def loss(facts: Facts, held: Held, term: int) -> str:
    """Why the registry is not the one of ``term`` that others knew; empty: it is.

    Tenants that ``held`` was not asked about are not judged by their data.
    """
    if held.tenants is None:
        return "the registry is empty"
    if held.bereft:
        return f"the registry lost the data of tenant {min(held.bereft)!r}"
    of_other_terms = (s for s in held.snapshots.values() if s.term != term)
    for snapshot in of_other_terms:
        return f"tenant {snapshot.tenant!r} is of term {snapshot.term}, the Lease of {term}"
    if facts.term > term:
        return f"term {facts.term} was in use, the Lease says {term}"
    return _behind_nodes(facts, held, term) or _behind_scopes(facts, held, term)


def _behind_nodes(facts: Facts, held: Held, term: int) -> str:
    assert held.tenants is not None
    for node in facts.nodes:
        if node.term != term or not node.entered:
            continue  # what it saw was another registry
        for tenant, seen in node.sequences.items():
            snapshot = held.snapshots.get(tenant)
            if snapshot is not None and snapshot.sequence < seen:
                return (
                    f"tenant {tenant!r} is at commit sequence {snapshot.sequence},"
                    f" node {node.name} has seen {seen}"
                )
            if seen and tenant not in held.tenants:
                return f"the registry lost tenant {tenant!r}, which node {node.name} knows"
    return ""


def _behind_scopes(facts: Facts, held: Held, term: int) -> str:
    assert held.tenants is not None
    versions = {
        record.key: record.version
        for snapshot in held.snapshots.values()
        for record in snapshot.scopes
    }
    for source, fact in facts.scopes():
        tenant = fact.key.tenant
        if fact.version.term != term:
            continue  # of a term that a rebuild has ended
        if tenant not in held.tenants:
            return f"the registry lost tenant {tenant!r}, which {source} knows"
        version = versions.get(fact.key)
        if tenant in held.snapshots and (version is None or version < fact.version):
            return f"scope {fact.key} is at {version or 'nothing'}, {source} has {fact.version}"
    return ""


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """A tenant as it is to be written."""

    tenant: str
    scopes: tuple[ScopeRecord, ...]
    sequence: int  # the highest commit sequence that anybody has seen
    quota_blocks: int | None  # as the registry still holds it


def plan_rebuild(facts: Facts, held: Held, term: int) -> dict[str, TenantPlan]:
    """Every tenant that anybody knows, merged by scope, under ``term``.

    The highest epoch over all sources; cancelled as soon as one source says so, and below a
    cancelled parent; paused when a source of that highest version says so, or its owner wants it;
    policy and parent as declared. TermMismatch when somebody knows a higher term.
    """
    known = max(facts.term, held.term)
    if known > term:
        raise TermMismatch(f"term {known} was in use: nothing may be written under term {term}")
    claims: dict[ScopeKey, list[ScopeFact]] = {}
    for fact in (*(fact for _, fact in facts.scopes()), *_held_facts(held)):
        claims.setdefault(fact.key, []).append(fact)
    merged = {key: _merged(found, term) for key, found in sorted(claims.items())}
    tenants = facts.tenants() | set(held.tenants or ()) | {key.tenant for key in merged}
    return {tenant: _tenant_plan(tenant, merged, facts, held) for tenant in sorted(tenants)}


def _held_facts(held: Held) -> Iterator[ScopeFact]:
    for snapshot in held.snapshots.values():
        for record in snapshot.scopes:
            yield ScopeFact(
                key=record.key,
                version=record.version,
                generation=record.generation,
                paused=record.paused,
                cancelled=record.cancelled,
                policy=record.policy,
                parent=record.parent,
                nodes=record.nodes,
            )


def _merged(claims: Sequence[ScopeFact], term: int) -> ScopeRecord:
    # A declaration wins over what is known, then the newest claim.
    ranked = sorted(claims, key=lambda fact: (fact.declared, fact.version), reverse=True)
    newest = max(fact.version for fact in claims)
    policy = ranked[0].policy if ranked[0].declared else _first(f.policy for f in ranked)
    parent = _first(fact.parent for fact in ranked)
    return ScopeRecord(
        key=claims[0].key,
        version=Version(term, max(fact.version.epoch for fact in claims)),
        generation=max(fact.generation for fact in claims),
        paused=any(f.paused and (f.declared or f.version == newest) for f in claims),
        cancelled=any(fact.cancelled for fact in claims),
        policy=policy,
        parent=None if parent == claims[0].key.scope else parent,
        nodes=tuple(sorted({node for fact in claims for node in fact.nodes})),
    )


def _first(values: Iterable[V | None]) -> V | None:
    return next((value for value in values if value is not None), None)


def _tenant_plan(
    tenant: str, merged: Mapping[ScopeKey, ScopeRecord], facts: Facts, held: Held
) -> TenantPlan:
    snapshot = held.snapshots.get(tenant)
    seen = (node.sequences.get(tenant, 0) for node in facts.nodes)
    return TenantPlan(
        tenant=tenant,
        scopes=_forest([record for key, record in merged.items() if key.tenant == tenant]),
        sequence=max((*seen, snapshot.sequence if snapshot else 0), default=0),
        quota_blocks=snapshot.quota_blocks if snapshot else None,
    )


def _forest(records: Sequence[ScopeRecord]) -> tuple[ScopeRecord, ...]:
    """Parents before children; no scope below itself (a commit walks down the tree); below a
    cancelled parent nothing lives."""
    given = {record.key.scope: record for record in records}
    above: dict[str, str] = {}
    for name, record in given.items():
        if record.parent is not None and name not in _upward(record.parent, above):
            above[name] = record.parent
    placed: list[ScopeRecord] = []
    for name in sorted(given, key=lambda name: (len(_upward(name, above)), name)):
        dead = any(given[up].cancelled for up in _upward(name, above) if up in given)
        placed.append(replace(given[name], parent=above.get(name), cancelled=dead))
    return tuple(placed)


def _upward(name: str, above: Mapping[str, str]) -> list[str]:
    """The scope itself, its parent, and so on."""
    path = [name]
    while (parent := above.get(path[-1])) is not None:
        path.append(parent)
    return path


def unmet(plan: TenantPlan, held: Held) -> list[ScopeRecord]:
    """Scopes of the plan that the registry does not hold, or holds alive against it: somebody else
    wrote the tenant first, from less knowledge."""
    snapshot = held.snapshots.get(plan.tenant)
    records = {record.key: record for record in snapshot.scopes} if snapshot else {}
    return [
        wanted
        for wanted in plan.scopes
        if (found := records.get(wanted.key)) is None or (wanted.cancelled and not found.cancelled)
    ]

"""Reads the replies of the scripts into the values of interface.py. Pure; never imports a
client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from retire.protocol.contract import Policy
from retire.protocol.errors import RegistryUnavailable
from retire.protocol.versions import ScopeKey, Version
from retire.registry.interface import (
    Commit,
    CommitKind,
    LeaseView,
    Renewal,
    Reservation,
    ScopeRecord,
    Snapshot,
)

_ABSENT = "-"


def one_renewal(lease_s: float, parts: Sequence[Renewal | BaseException]) -> Renewal:
    """The renewal of every tenant as one; raises when one failed, a refusal before a silence."""
    errors = [part for part in parts if isinstance(part, BaseException)]
    if errors:
        raise next((e for e in errors if not isinstance(e, RegistryUnavailable)), errors[0])
    granted = [part for part in parts if isinstance(part, Renewal)]
    return Renewal(
        lease_s,
        {tenant: tail for part in granted for tenant, tail in part.tails.items()},
        {tenant: number for part in granted for tenant, number in part.sequences.items()},
    )


def policy_text(policy: Policy | None) -> str:
    """The one word that stands for a policy in a record."""
    return _ABSENT if policy is None else policy.value


def scope_record(key: ScopeKey, text: str, nodes: Iterable[str], *, created: bool) -> ScopeRecord:
    """Parse ``term.epoch generation flags policy parent`` (prelude.lua)."""
    version, generation, flags, policy, parent = text.split(" ", 4)
    return ScopeRecord(
        key=key,
        version=Version.parse(version),
        generation=int(generation),
        paused="p" in flags,
        cancelled="c" in flags,
        policy=None if policy == _ABSENT else Policy(policy),
        parent=parent or None,
        nodes=tuple(sorted(set(nodes))),
        created=created,
    )


def scope_reply(key: ScopeKey, reply: Sequence[str]) -> ScopeRecord:
    """The reply of register, join and get: record, created, nodes."""
    return scope_record(key, reply[0], reply[2:], created=reply[1] == "1")


def scopes_reply(tenant: str, flat: Sequence[str], joins: Sequence[str]) -> tuple[ScopeRecord, ...]:
    """Every scope of a tenant by name, from HGETALL of scopes and all members of joins."""
    nodes: dict[str, list[str]] = {}
    for member in joins:
        scope, node, _boot = member.split("\0")
        nodes.setdefault(scope, []).append(node)
    return tuple(
        scope_record(ScopeKey(tenant, name), text, nodes.get(name, ()), created=False)
        for name, text in sorted(_pairs(flat))
    )


def commit_reply(tenant: str, reply: Sequence[str]) -> Commit:
    """The reply of commit: replayed, receipt, JSON. An empty Lua table arrives as ``{}``."""
    made = json.loads(reply[2])
    return Commit(
        kind=CommitKind(made["kind"]),
        key=ScopeKey(tenant, made["scope"]),
        from_version=Version.parse(made["from"]),
        to_version=Version.parse(made["to"]),
        generation=int(made["generation"]),
        sequence=int(made["sequence"]),
        event_id=made["event_id"],
        gates=tuple(LeaseView(node, boot, int(ms) / 1000) for node, boot, ms in made["gates"]),
        replayed=reply[0] == "1",
        children=tuple(moved_scopes(tenant, made["children"])),
        receipt_json=reply[1] or None,
    )


def moved_scopes(
    tenant: str, children: Iterable[Sequence[str]]
) -> Iterator[tuple[ScopeKey, Version]]:
    """The descendants that a commit moved, as in the ``children`` of its reply and its event."""
    for name, version in children:
        yield ScopeKey(tenant, name), Version.parse(version)


def snapshot_reply(tenant: str, reply: Sequence[Sequence[str]]) -> Snapshot:
    """The reply of snapshot."""
    (term, incarnation, sequence, tail, quota), scopes, joins, pins = reply
    quota_blocks = int(quota) if quota else None
    pinned = sum(int(blocks) for blocks in pins[1::3])
    left = None if quota_blocks is None else max(0, quota_blocks - pinned)
    return Snapshot(
        tenant=tenant,
        term=int(term),
        incarnation=incarnation,
        sequence=int(sequence),
        scopes=scopes_reply(tenant, scopes, joins),
        quota_blocks=quota_blocks,
        reservations=tuple(
            Reservation(owner, int(blocks), left, int(ms) / 1000)
            for owner, blocks, ms in zip(pins[::3], pins[1::3], pins[2::3], strict=True)
        ),
        tail=tail,
    )


def rebuild_scopes(scopes: Sequence[ScopeRecord]) -> str:
    """The scopes of a rebuild as its JSON argument (rebuild.lua)."""
    rows = [
        [
            scope.key.scope,
            str(scope.version.epoch),
            str(scope.generation),
            str(int(scope.paused)),
            str(int(scope.cancelled)),
            policy_text(scope.policy),
            scope.parent or "",
            list(scope.nodes),
        ]
        for scope in scopes
    ]
    return json.dumps(rows, ensure_ascii=False)


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)

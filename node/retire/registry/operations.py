"""Every operation of the registry, without IO: check and pack arguments, yield calls, read replies.

Both clients drive these programs. Owns what one client has learned: incarnations and positions in
the streams, which make a lost or rolled-back registry visible. Must never import a client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Final

from retire.protocol.contract import Policy
from retire.protocol.errors import InvalidField
from retire.protocol.versions import EPOCH_MAX, TERM_MAX, ScopeKey, Version
from retire.registry import replies
from retire.registry.calls import Call, Program, Subject, script
from retire.registry.interface import (
    Commit,
    CommitKind,
    Renewal,
    Reservation,
    ScopeRecord,
    Snapshot,
)
from retire.registry.keys import Keyspace, TenantKeys, checked_name, checked_word

IDEMPOTENCY_TTL_S: Final = 24 * 3600
LEASE_MAX_S: Final = 24 * 3600.0
BLOCKS_MAX: Final = 2**53 - 1  # what a Lua number holds exactly
SETTLE_S: Final = 2.0  # the default publish lease; pass the real one where it is longer


class Operations:
    """The programs of one client. ``may_open``: hello may open a registry that holds nothing."""

    def __init__(self, keyspace: Keyspace, *, may_open: bool) -> None:
        self._keyspace = keyspace
        self._may_open = may_open
        self._incarnations: dict[tuple[str, int], str] = {}  # by (tenant, term), from hello
        self._seen: dict[tuple[str, int], str] = {}  # an event that is in the stream, likewise

    def hello(self, tenant: str, *, term: int) -> Program[str]:
        """See Registry.hello."""
        keys, subject = self._keyspace.tenant(tenant), Subject(tenant, _checked_term(term))
        fresh = token_hex(16)
        # Whoever has met a registry before never takes an empty one for a new one.
        may_open = self._may_open and not self._incarnations
        opening = (str(term), tenant, str(int(may_open)), fresh)
        registry = (self._keyspace.registry,)
        recorded: str = yield Call(script("open"), registry, opening, subject)
        hello = (*self._caller(tenant, term), recorded, fresh)
        incarnation: str = yield Call(script("hello"), (keys.meta,), hello, subject)
        if incarnation != recorded:
            enrol = (str(term), tenant, incarnation, fresh)
            yield Call(script("enrol"), registry, enrol, subject)
        self._incarnations[tenant, term] = incarnation
        return incarnation

    def list_tenants(self) -> Program[tuple[str, ...]]:
        """See Registry.list_tenants."""
        subject = Subject("")
        names = yield Call(
            script("tenants"), (self._keyspace.registry,), (), subject, mutates=False
        )
        return tuple(sorted(names))

    def register(
        self,
        key: ScopeKey,
        *,
        term: int,
        epoch: int = 0,
        policy: Policy | None = None,
        parent: str | None = None,
    ) -> Program[ScopeRecord]:
        """See Registry.register."""
        if not 0 <= epoch <= EPOCH_MAX:
            raise InvalidField("epoch", epoch, f"an integer in 0..{EPOCH_MAX}")
        _check_parent(key, parent)
        keys = self._keyspace.tenant(key.tenant)
        reply = yield Call(
            script("register"),
            (keys.meta, keys.scopes, keys.children, keys.joins, keys.events),
            (
                *self._caller(key.tenant, term),
                *(key.scope, str(epoch), replies.policy_text(policy), parent or ""),
            ),
            Subject(key.tenant, term, key, parent=parent),
        )
        return replies.scope_reply(key, reply)

    def configure(
        self, key: ScopeKey, *, term: int, policy: Policy | None, parent: str | None = None
    ) -> Program[ScopeRecord]:
        """See Registry.configure."""
        _check_parent(key, parent)
        keys = self._keyspace.tenant(key.tenant)
        reply = yield Call(
            script("configure"),
            (keys.meta, keys.scopes, keys.children, keys.joins, keys.events),
            (
                *self._caller(key.tenant, term),
                *(key.scope, replies.policy_text(policy), parent or ""),
            ),
            Subject(key.tenant, term, key, parent=parent),
        )
        return replies.scope_reply(key, reply)

    def join(self, key: ScopeKey, *, term: int, node: str, boot_id: str) -> Program[ScopeRecord]:
        """See Registry.join."""
        names = (checked_word("node", node), checked_word("boot_id", boot_id))
        keys = self._keyspace.tenant(key.tenant)
        reply = yield Call(
            script("join"),
            (keys.meta, keys.scopes, keys.joins, keys.leases),
            (*self._caller(key.tenant, term), key.scope, *names),
            Subject(key.tenant, term, key),
        )
        return replies.scope_reply(key, reply)

    def leave(self, key: ScopeKey, *, term: int, node: str) -> Program[None]:
        """See Registry.leave."""
        keys = self._keyspace.tenant(key.tenant)
        yield Call(
            script("leave"),
            (keys.meta, keys.joins),
            (*self._caller(key.tenant, term), key.scope, checked_word("node", node)),
            Subject(key.tenant, term, key),
        )

    def commit(  # the request has this many parts
        self,
        kind: CommitKind,
        key: ScopeKey,
        *,
        term: int,
        expected: Version,
        idempotency_key: str,
        body_digest: str,
        by: str,
    ) -> Program[Commit]:
        """See Registry.commit."""
        keys = self._keyspace.tenant(key.tenant)
        checked_name("idempotency_key", idempotency_key)
        # One key answers one request: the same body sent to another scope is another request.
        digest = json.dumps([kind.value, key.scope, body_digest])
        ttl_ms = str(IDEMPOTENCY_TTL_S * 1000)
        reply = yield Call(
            script("commit"),
            (*_transition_keys(keys), keys.idempotency(idempotency_key)),
            (
                *self._caller(key.tenant, term),
                *(kind.value, key.scope, str(expected), digest, by, ttl_ms),
            ),
            Subject(key.tenant, term, key, expected=expected, idempotency_key=idempotency_key),
        )
        commit = replies.commit_reply(key.tenant, reply)
        if not commit.replayed:
            self._seen[key.tenant, term] = commit.event_id
        return commit

    def ack(
        self, key: ScopeKey, *, term: int, node: str, version: Version, payload: str = ""
    ) -> Program[None]:
        """See Registry.ack."""
        keys = self._keyspace.tenant(key.tenant)
        about = (key.scope, checked_word("node", node), str(version), str(version.epoch), payload)
        yield Call(
            script("ack"),
            (keys.meta, keys.scopes, keys.events),
            (*self._caller(key.tenant, term), *about),
            Subject(key.tenant, term, key, expected=version),
        )

    def report(  # the receipt has this many parts
        self,
        key: ScopeKey,
        *,
        term: int,
        node: str,
        version: Version,
        receipt_json: str,
        idempotency_key: str = "",
    ) -> Program[None]:
        """See Registry.report."""
        keys = self._keyspace.tenant(key.tenant)
        yield Call(
            script("report"),
            (keys.meta, keys.scopes, keys.events, keys.idempotency(idempotency_key)),
            (
                *self._caller(key.tenant, term),
                *(key.scope, checked_word("node", node), str(version), receipt_json),
            ),
            Subject(key.tenant, term, key),
        )

    def renew(
        self, node: str, *, term: int, boot_id: str, lease_s: float, tenants: Mapping[str, int]
    ) -> Program[Renewal]:
        """See Registry.renew."""
        lease_ms = _milliseconds("lease_s", lease_s)
        names = (checked_word("node", node), checked_word("boot_id", boot_id))
        tails: dict[str, str] = {}
        sequences: dict[str, int] = {}
        for tenant, sequence in tenants.items():
            keys = self._keyspace.tenant(tenant)
            seen = (str(sequence), self._seen.get((tenant, term), ""))
            tails[tenant], text = yield Call(
                script("renew"),
                (keys.meta, keys.leases, keys.events),
                (*self._caller(tenant, term), *names, lease_ms, *seen),
                Subject(tenant, term),
            )
            self._seen[tenant, term] = tails[tenant]
            sequences[tenant] = int(text)
        return Renewal(lease_s, tails, sequences)

    def expire(self, node: str, *, term: int, tenants: Sequence[str]) -> Program[None]:
        """See Registry.expire."""
        checked_word("node", node)
        for tenant in tenants:
            keys = self._keyspace.tenant(tenant)
            yield Call(
                script("expire"),
                (keys.meta, keys.leases),
                (*self._caller(tenant, term), node),
                Subject(tenant, term),
            )

    def reserve(
        self, tenant: str, *, term: int, owner: str, blocks: int, lease_s: float
    ) -> Program[Reservation]:
        """See Registry.reserve."""
        lease_ms = _milliseconds("lease_s", lease_s)
        asked = (checked_name("owner", owner), _checked_blocks(blocks), lease_ms)
        keys = self._keyspace.tenant(tenant)
        _blocks, left, over = yield Call(
            script("reserve"),
            (keys.meta, keys.pins, keys.pin_ends),
            (*self._caller(tenant, term), *asked, keys.quota),
            Subject(tenant, term, blocks=blocks),
        )
        return Reservation(owner, blocks, int(left) if left else None, lease_s, int(over))

    def release(self, tenant: str, *, term: int, owner: str) -> Program[None]:
        """See Registry.release."""
        keys = self._keyspace.tenant(tenant)
        yield Call(
            script("release"),
            (keys.meta, keys.pins, keys.pin_ends),
            (*self._caller(tenant, term), checked_name("owner", owner)),
            Subject(tenant, term),
        )

    def set_quota(self, tenant: str, *, term: int, blocks: int | None) -> Program[None]:
        """See Registry.set_quota."""
        keys = self._keyspace.tenant(tenant)
        text = "" if blocks is None else _checked_blocks(blocks)
        yield Call(
            script("set_quota"),
            (keys.meta, keys.quota, keys.events),
            (*self._caller(tenant, term), text),
            Subject(tenant, term),
        )

    def get(self, key: ScopeKey) -> Program[ScopeRecord]:
        """See Registry.get."""
        keys = self._keyspace.tenant(key.tenant)
        subject = Subject(key.tenant, key=key)
        reading = (keys.scopes, keys.joins)
        reply = yield Call(script("get"), reading, (key.scope,), subject, mutates=False)
        return replies.scope_reply(key, reply)

    def list_scopes(self, tenant: str) -> Program[tuple[ScopeRecord, ...]]:
        """See Registry.list_scopes."""
        keys = self._keyspace.tenant(tenant)
        reading = (keys.meta, keys.scopes, keys.joins)
        reply = yield Call(script("list_scopes"), reading, (), Subject(tenant), mutates=False)
        return replies.scopes_reply(tenant, *reply)

    def snapshot(self, tenant: str) -> Program[Snapshot]:
        """See Registry.snapshot."""
        keys = self._keyspace.tenant(tenant)
        reading = (keys.meta, keys.scopes, keys.joins, keys.quota, keys.pins, keys.pin_ends)
        reply = yield Call(script("snapshot"), reading, (), Subject(tenant), mutates=False)
        return replies.snapshot_reply(tenant, reply)

    def rebuild(  # the tenant has this many parts
        self,
        tenant: str,
        *,
        term: int,
        scopes: Sequence[ScopeRecord],
        quota_blocks: int | None,
        sequence: int = 0,
        settle_s: float = SETTLE_S,
    ) -> Program[str]:
        """See Registry.rebuild."""
        keys, subject = self._keyspace.tenant(tenant), Subject(tenant, _checked_term(term))
        foreign = next((scope.key for scope in scopes if scope.key.tenant != tenant), None)
        if foreign is not None:
            raise InvalidField("scopes", str(foreign), f"scopes of tenant {tenant!r}")
        quota = "" if quota_blocks is None else _checked_blocks(quota_blocks)
        settle_ms = _milliseconds("settle_s", settle_s) if settle_s else "0"
        incarnation, registry = token_hex(16), (self._keyspace.registry,)
        # The registry's term first: no tenant can be opened under the old one while this goes on.
        raising = (str(term), tenant, "", incarnation)
        yield Call(script("enrol"), registry, raising, subject)
        yield Call(
            script("rebuild"),
            (keys.meta, keys.scopes, keys.children, keys.joins, keys.quota, keys.events),
            (
                *(str(term), incarnation, quota, str(sequence), settle_ms),
                replies.rebuild_scopes(scopes),
            ),
            subject,
        )
        enrolling = (str(term), tenant, incarnation, incarnation)
        yield Call(script("enrol"), registry, enrolling, subject)
        self._incarnations[tenant, term] = incarnation
        return incarnation

    def tail(self, tenant: str, *, incarnation: str, after: str) -> Program[tuple[str, str, int]]:
        """Where a reader of the stream stands: incarnation, last id, number of that event."""
        keys = self._keyspace.tenant(tenant)
        arguments, subject = (incarnation, after), Subject(tenant)
        reading = (keys.meta, keys.events)
        held, resolved, n = yield Call(script("tail"), reading, arguments, subject, mutates=False)
        return held, resolved, int(n)

    def _caller(self, tenant: str, term: int) -> tuple[str, str]:
        return str(_checked_term(term)), self._incarnations.get((tenant, term), "")


def _transition_keys(keys: TenantKeys) -> tuple[str, ...]:
    return (keys.meta, keys.scopes, keys.children, keys.joins, keys.leases, keys.events)


def _check_parent(key: ScopeKey, parent: str | None) -> None:
    if parent is not None and ScopeKey(key.tenant, parent) == key:
        raise InvalidField("parent", parent, "another scope than the scope itself")


def _checked_term(term: int) -> int:
    if not 0 <= term <= TERM_MAX:
        raise InvalidField("term", term, f"an integer in 0..{TERM_MAX}")
    return term


def _checked_blocks(blocks: int) -> str:
    if not 0 <= blocks <= BLOCKS_MAX:
        raise InvalidField("blocks", blocks, f"an integer in 0..{BLOCKS_MAX}")
    return str(blocks)


def _milliseconds(field: str, seconds: float) -> str:
    if not 0.001 <= seconds <= LEASE_MAX_S:
        raise InvalidField(field, seconds, f"seconds in 0.001..{LEASE_MAX_S:g}")
    return str(int(seconds * 1000))

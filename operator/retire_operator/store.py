"""The ServingScopes as the watch told them last, and who depends on whom. Memory only, no IO."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey
from retire_operator.resource import Desired, Ref, parse, ref_of

# What a reconcile does not react to: the status is its own product, and looked at at every resync.
_WATCHED: Final = ("generation", "deletionTimestamp", "finalizers", "annotations", "uid")


class ScopeStore:
    """The newest body of every object, and indexes over those that can be read."""

    def __init__(self) -> None:
        self._bodies: dict[Ref, dict[str, Any]] = {}
        self._desired: dict[Ref, Desired] = {}
        self._by_key: dict[ScopeKey, set[Ref]] = defaultdict(set)
        self.revisions: dict[str, int] = defaultdict(int)  # by tenant: counts changes of its scopes

    def __iter__(self) -> Iterator[Ref]:
        return iter(tuple(self._bodies))

    def __len__(self) -> int:
        return len(self._bodies)

    def put(self, body: Mapping[str, Any]) -> bool:
        """Take a body in, unless a newer one is known; whether it is to be reconciled."""
        ref, known = ref_of(body), self._bodies.get(ref_of(body))
        if known is not None and _older(body, known):
            return False
        self._bodies[ref] = dict(body)
        changed = known is None or _essence(body) != _essence(known)
        if changed:
            self._index(ref)
        return changed

    def remove(self, ref: Ref) -> Desired | None:
        """The object is gone; what it wanted last."""
        self._bodies.pop(ref, None)
        return self._unindex(ref)

    def body(self, ref: Ref) -> dict[str, Any] | None:
        """The newest body."""
        return self._bodies.get(ref)

    def desired(self, ref: Ref) -> Desired | None:
        """The same, read; None: gone or unreadable."""
        return self._desired.get(ref)

    def all_desired(self) -> tuple[Desired, ...]:
        """Every object that can be read."""
        return tuple(self._desired.values())

    def refs(self, key: ScopeKey) -> tuple[Ref, ...]:
        """Every object that names this scope."""
        return tuple(self._by_key.get(key, ()))

    def owner(self, key: ScopeKey) -> Ref | None:
        """The oldest of them: the one that decides."""
        claims = (self._desired[ref] for ref in self._by_key.get(key, ()))
        first = min(claims, key=lambda d: (d.created_at, d.ref), default=None)
        return first.ref if first is not None else None

    def below(self, ref: Ref) -> tuple[Ref, ...]:
        """Objects that have ``ref`` as an ancestor."""
        found: list[Ref] = []
        queue = [ref]
        while queue:
            parent = queue.pop()
            for child in self._desired.values():
                here = child.ref.namespace == parent.namespace and child.parent == parent.name
                if here and child.ref not in found and child.ref != ref:
                    found.append(child.ref)
                    queue.append(child.ref)
        return tuple(found)

    def neighbours(self, desired: Desired) -> tuple[Ref, ...]:
        """Objects that a change of this one may block or free: same name, children, same quota."""
        quota = (
            d.ref
            for d in self._desired.values()
            if desired.quota_blocks is not None
            and d.quota_blocks is not None
            and d.key.tenant == desired.key.tenant
        )
        found = {*self.refs(desired.key), *self.below(desired.ref), *quota}
        return tuple(sorted(found - {desired.ref}))

    def in_pool(self, pool: str) -> tuple[Ref, ...]:
        """Objects served by a pool."""
        return tuple(d.ref for d in self._desired.values() if d.pool == pool)

    def _index(self, ref: Ref) -> None:
        self._unindex(ref)
        try:
            desired = parse(self._bodies[ref])
        except InvalidField:  # the reconcile says what is wrong
            return
        self._desired[ref] = desired
        self._by_key[desired.key].add(ref)
        self.revisions[desired.key.tenant] += 1

    def _unindex(self, ref: Ref) -> Desired | None:
        desired = self._desired.pop(ref, None)
        if desired is not None:
            self._by_key[desired.key].discard(ref)
            if not self._by_key[desired.key]:
                del self._by_key[desired.key]
            self.revisions[desired.key.tenant] += 1
        return desired


def _essence(body: Mapping[str, Any]) -> tuple[Any, ...]:
    meta = body["metadata"]
    return (body.get("spec"), *(meta.get(name) for name in _WATCHED))


def _older(body: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Our own write's answer may overtake the watch. Of another uid: a new object, never older."""
    if body["metadata"].get("uid") != known["metadata"].get("uid"):
        return False
    here, there = (str(b["metadata"].get("resourceVersion") or "") for b in (body, known))
    return here.isdecimal() and there.isdecimal() and int(here) < int(there)

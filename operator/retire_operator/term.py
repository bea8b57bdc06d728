"""The term: ``spec.leaseTransitions`` of one Lease, which only grows and only by compare-and-set.

Owns every write to that Lease. The term stands outside the registry because a term that the
registry could lose would be no term. Must never import a registry client, and never guess a term.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import urllib3.exceptions
from kubernetes import client as kubernetes
from kubernetes.client.exceptions import ApiException

from retire.protocol.errors import InvalidField, RetireError, TermMismatch
from retire.protocol.versions import TERM_MAX
from retire_operator.errors import ApiUnavailable, ObjectMissing, WriteConflict, from_api

T = TypeVar("T")

INCARNATION: Final = "serving.retire.dev/incarnation"
_TIMEOUT_S: Final = (3.0, 10.0)  # to connect, to answer
_NAME_PARTS: Final = 2


class TermLeaseError(RetireError):
    """The Lease cannot be trusted. It is never replaced by a guess: terms must not go back."""

    code = "term_lease"


@dataclass(frozen=True, slots=True)
class StoredLease:
    """The Lease as the API server holds it. ``raw`` is what was read, so that labels survive."""

    term: int  # 0: the field is absent
    holder: str = ""  # who made this term
    incarnation: str = ""  # of the registry, once it is completely written under this term
    resource_version: str = ""  # empty: there is no Lease yet
    raw: Any = field(default=None, compare=False)


class LeaseApi(Protocol):
    """One named Lease, with the API server's optimistic locking. Errors as in errors.py."""

    async def read(self) -> StoredLease | None:
        """The Lease, or None when there is none."""
        ...

    async def create(self, lease: StoredLease) -> StoredLease:
        """WriteConflict when somebody was faster."""
        ...

    async def replace(self, lease: StoredLease) -> StoredLease:
        """Only over the ``resource_version`` that was read; WriteConflict otherwise, also when it
        was deleted."""
        ...


@dataclass(frozen=True, slots=True)
class Term:
    """The term now. 0: no registry was ever opened, as far as the Lease knows."""

    number: int
    holder: str = ""
    incarnation: str = ""  # empty: the registry is not known to be complete under this term


class TermLease:
    """The authority over terms. ``identity`` names this operator to the others."""

    def __init__(self, api: LeaseApi, *, identity: str) -> None:
        self._api = api
        self.identity = identity

    async def current(self) -> Term:
        """Read the term."""
        stored = await self._read()
        return Term(stored.term, stored.holder, stored.incarnation)

    async def advance(self, expected: int, to: int | None = None) -> Term:
        """Move from ``expected`` to ``to`` (default: the next); TermMismatch when the term is
        another, or when somebody else wrote in between."""
        target = expected + 1 if to is None else to
        assert target > expected, "a term is never lowered"
        if target > TERM_MAX:
            raise InvalidField("term", target, f"at most {TERM_MAX}")
        stored = await self._read()
        if stored.term != expected:
            raise TermMismatch(f"the term is {stored.term}, not {expected}")
        made = replace(stored, term=target, holder=self.identity, incarnation="")
        try:
            made = await (
                self._api.replace(made) if stored.resource_version else self._api.create(made)
            )
        except WriteConflict as error:
            raise TermMismatch(f"another operator moved the term on from {expected}") from error
        return Term(made.term, made.holder, made.incarnation)

    async def complete(self, term: int, incarnation: str) -> None:
        """Note that the registry is completely written under ``term``; TermMismatch when it is
        over."""
        stored = await self._read()
        if stored.term != term:
            raise TermMismatch(f"the term is {stored.term}, not {term}")
        if stored.incarnation == incarnation:
            return
        try:
            await self._api.replace(replace(stored, incarnation=incarnation))
        except WriteConflict as error:
            raise TermMismatch(f"another operator wrote the Lease of term {term}") from error

    async def _read(self) -> StoredLease:
        stored = await self._api.read() or StoredLease(0)
        if not 0 <= stored.term <= TERM_MAX:
            raise TermLeaseError(
                f"spec.leaseTransitions of the term Lease must be an integer in 0..{TERM_MAX},"
                f" got {stored.term}; write the highest term that was ever in use (see the nodes'"
                " logs) plus one into it"
            )
        return stored


class KubernetesLease:
    """LeaseApi over the official client; its blocking calls run in a thread."""

    def __init__(
        self,
        api: kubernetes.CoordinationV1Api,
        *,
        namespace: str,
        name: str,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._api = api
        self._now = now
        self.namespace = namespace
        self.name = name

    @classmethod
    def named(cls, api: kubernetes.CoordinationV1Api, reference: str) -> KubernetesLease:
        """``reference`` as in RETIRE_TERM_LEASE: ``namespace/name``."""
        parts = reference.split("/")
        if len(parts) != _NAME_PARTS or not all(parts):
            raise InvalidField("RETIRE_TERM_LEASE", reference, 'written "namespace/name"')
        return cls(api, namespace=parts[0], name=parts[1])

    async def read(self) -> StoredLease | None:
        """See LeaseApi.read."""
        try:
            found = await self._call("get", self._api.read_namespaced_lease, self.name)
        except ObjectMissing:
            return None
        return _stored(found)

    async def create(self, lease: StoredLease) -> StoredLease:
        """See LeaseApi.create."""
        metadata = kubernetes.V1ObjectMeta(name=self.name, namespace=self.namespace)
        body = _written(kubernetes.V1Lease(metadata=metadata), lease, self._now())
        made = await self._call("create", self._api.create_namespaced_lease, body=body)
        return _stored(made)

    async def replace(self, lease: StoredLease) -> StoredLease:
        """See LeaseApi.replace."""
        body = _written(lease.raw, lease, self._now())
        replacing = self._api.replace_namespaced_lease
        try:
            return _stored(await self._call("update", replacing, self.name, body=body))
        except ObjectMissing as error:
            raise WriteConflict(f"{error}: it was deleted") from error

    async def _call(self, verb: str, method: Callable[..., T], *names: str, **body: Any) -> T:
        what = f"{verb} lease {self.namespace}/{self.name}"
        arguments = {"namespace": self.namespace, "_request_timeout": _TIMEOUT_S, **body}
        try:
            return await asyncio.to_thread(method, *names, **arguments)
        except ApiException as error:
            raise from_api(what, status=error.status, body=error.body) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailable(f"{what}: the API server does not answer: {error}") from error


def _stored(lease: Any) -> StoredLease:
    spec, metadata = lease.spec, lease.metadata
    return StoredLease(
        term=(spec.lease_transitions or 0) if spec else 0,
        holder=(spec.holder_identity or "") if spec else "",
        incarnation=(metadata.annotations or {}).get(INCARNATION, ""),
        resource_version=metadata.resource_version,
        raw=lease,
    )


def _written(raw: Any, lease: StoredLease, now: dt.datetime) -> kubernetes.V1Lease:
    """A copy of ``raw`` with our fields; its other fields, labels among them, stay."""
    annotations = dict(raw.metadata.annotations or {})
    annotations.pop(INCARNATION, None)
    if lease.incarnation:
        annotations[INCARNATION] = lease.incarnation
    metadata = kubernetes.V1ObjectMeta(
        name=raw.metadata.name,
        namespace=raw.metadata.namespace,
        labels=raw.metadata.labels,
        annotations=annotations,
        # The uid too: a PUT on a deleted Lease would make it anew, resourceVersion or not.
        uid=raw.metadata.uid,
        resource_version=lease.resource_version or None,
        owner_references=raw.metadata.owner_references,
        finalizers=raw.metadata.finalizers,
    )
    spec = kubernetes.V1LeaseSpec(
        lease_transitions=lease.term,
        holder_identity=lease.holder,
        renew_time=now,  # for people: when it was written last
    )
    return kubernetes.V1Lease(metadata=metadata, spec=spec)

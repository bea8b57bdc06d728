"""Where the sidecar's term comes from: its own file standalone, the operator's Lease in Kubernetes.

Must never touch the registry: a term that the registry could change would be lost with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from retire.protocol.errors import TermMismatch, Unavailable
from retire.protocol.versions import TERM_MAX

if TYPE_CHECKING:
    from retire.registry.term import TermAuthority
    from retire.sidecar.config import LeaseName
    from retire.sidecar.kube import KubeApi


class TermPending(Unavailable):
    """There is no higher term yet; the message says who has to make it."""


class Terms(Protocol):
    """Hands out terms that only rise."""

    follows: bool  # somebody else counts them and rebuilds; this node never writes a tenant anew

    async def above(self, floor: int) -> int:
        """A term higher than ``floor``. Unavailable (TermPending) while there is none."""
        ...


class OwnTerms:
    """Standalone: whoever finds the registry lost takes the next term, by compare-and-set."""

    follows = False

    def __init__(self, authority: TermAuthority) -> None:
        self._authority = authority

    async def above(self, floor: int) -> int:
        """The authority's term if it is higher, else the next one."""
        term = self._authority.current()
        if term > floor:
            return term
        try:
            return self._authority.advance(floor)
        except TermMismatch:  # another process was faster
            return self._authority.current()


class TermLease:
    """Kubernetes: ``spec.leaseTransitions`` of a Lease, which only the operator writes."""

    follows = True

    def __init__(self, api: KubeApi, lease: LeaseName) -> None:
        self._api = api
        self._lease = lease

    async def current(self) -> int:
        """The term now; 0 while there is no Lease."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._lease.namespace}/leases/"
        return self._term_of(await self._api.get(path + self._lease.name))

    async def above(self, floor: int) -> int:
        """The Lease's term if it is higher. It is never advanced here."""
        term = await self.current()
        if term > floor:
            return term
        if not floor:
            raise TermPending(
                f"waiting for the operator to open the registry: Lease {self._lease} holds no term"
            )
        raise TermPending(
            "waiting for the operator to rebuild the registry under a term higher than"
            f" {floor}: Lease {self._lease} holds {term or 'no term'}"
        )

    def _term_of(self, found: dict[str, Any] | None) -> int:
        term = ((found or {}).get("spec") or {}).get("leaseTransitions") or 0
        if not isinstance(term, int) or not 0 <= term <= TERM_MAX:
            raise Unavailable(f"Lease {self._lease}: spec.leaseTransitions is no term: {term!r}")
        return term

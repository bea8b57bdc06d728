"""Enters tenants that somebody else, the operator, writes anew after a loss.

A node in Kubernetes never rebuilds, never opens an empty registry, and never makes the nodes' own
tenant: the operator writes that one last, so it stands for all. Must never write a scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retire.protocol.errors import NeedRegister, TermMismatch, Unavailable
from retire.sidecar.tenants import NODE_TENANT

if TYPE_CHECKING:
    from retire.sidecar.ports import Ports
    from retire.sidecar.tenants import Tenants


class NotWritten(Unavailable):
    """The tenant, or the registry, is not there under our term yet."""


class Written:
    """Says hello to a tenant once it may be entered."""

    def __init__(self, ports: Ports, tenants: Tenants) -> None:
        self._ports = ports
        self._tenants = tenants

    async def enter(self, tenant: str, known: int) -> None:
        """Hello, when the tenant is of our term. ``known``: the term this node knew it under last.

        NotWritten while the operator is at work. TermMismatch: only a higher term helps.
        """
        term = self._ports.identity.term
        held = await self._term_of(tenant)
        if held is not None:
            self._check_term(tenant, held)
        elif known == term:
            raise TermMismatch(f"tenant {tenant!r}, known under term {term}, is not there any more")
        elif tenant == NODE_TENANT:
            what = f"rebuild it under term {term}" if known else "open it"
            raise NotWritten(f"the registry is not there: waiting for the operator to {what}")
        else:
            await self._check_orphan(tenant)
        try:
            await self._ports.registry.hello(tenant, term=term)
        except TermMismatch as error:
            if error.held is not None:
                self._check_term(tenant, error.held)
            raise

    async def _term_of(self, tenant: str) -> int | None:
        try:
            return (await self._ports.registry.snapshot(tenant)).term
        except NeedRegister:
            return None

    def _check_term(self, tenant: str, held: int) -> None:
        term = self._ports.identity.term
        if held < term:
            raise NotWritten(
                f"the registry holds tenant {tenant!r} under term {held}: waiting for the operator"
                f" to rebuild it under term {term}"
            )
        if held > term:
            raise TermMismatch(f"tenant {tenant!r} is of term {held}, this node of {term}")

    async def _check_orphan(self, tenant: str) -> None:
        """A tenant that the operator did not know of, because it could not reach this node. Hello
        makes it anew, once no lease of an older term can run in it any more."""
        if await self._term_of(NODE_TENANT) != self._ports.identity.term:
            raise NotWritten(f"waiting for the operator to rebuild tenant {tenant!r}")
        left_s = self._tenants.closed_until_s - self._ports.clock()
        if left_s > 0:
            raise NotWritten(f"tenant {tenant!r} is not in the rebuilt registry: {left_s:.1f} s")

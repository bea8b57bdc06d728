"""Enters tenants that somebody else, the operator, writes anew after a loss.

A node in Kubernetes never rebuilds, and never opens an empty registry: it waits until the tenant
is there under its term. Must never write a scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from retire.protocol.errors import NeedRegister, TermMismatch, Unavailable
from retire.sidecar.tenants import NODE_TENANT

if TYPE_CHECKING:
    from retire.sidecar.ports import Ports
    from retire.sidecar.tenants import Tenants

# A tenant that the operator has not written this long after the term rose is one it does not know
# of (it could not reach this node). By then no lease of the older term runs any more either.
ORPHAN_S: Final = 10.0


class NotWritten(Unavailable):
    """The tenant, or the registry, is not there under our term yet."""


class Written:
    """Says hello to a tenant once it may be entered."""

    def __init__(self, ports: Ports, tenants: Tenants) -> None:
        self._ports = ports
        self._tenants = tenants
        self._waiting_since_s: dict[tuple[str, int], float] = {}  # (tenant, term) -> first asked

    async def enter(self, tenant: str, known: int) -> None:
        """Hello, when the tenant is of our term. ``known``: the term this node knew it under last.

        NotWritten while the operator is at work. TermMismatch: only a higher term helps.
        """
        own = self._ports.identity
        await self._check(tenant, known)
        try:
            await self._ports.registry.hello(tenant, term=own.term)
        except NeedRegister as error:  # the registry is empty
            if known == own.term:
                raise TermMismatch(f"{error}; this node knew it under term {own.term}") from error
            raise NotWritten(f"waiting for the operator to open the registry: {error}") from error
        except TermMismatch as error:
            self._check_term(tenant, error.held)
            raise
        self._waiting_since_s.pop((tenant, own.term), None)

    async def _check(self, tenant: str, known: int) -> None:
        try:
            held = (await self._ports.registry.snapshot(tenant)).term
        except NeedRegister as error:
            self._check_absent(tenant, known, error)
        else:
            self._check_term(tenant, held)

    def _check_term(self, tenant: str, held: int | None) -> None:
        term = self._ports.identity.term
        if held is not None and held < term:
            raise NotWritten(
                f"waiting for the operator to rebuild tenant {tenant!r} under term {term};"
                f" the registry holds it under {held}"
            )
        if held is not None and held > term:
            raise TermMismatch(f"tenant {tenant!r} is of term {held}, this node of {term}")

    def _check_absent(self, tenant: str, known: int, why: NeedRegister) -> None:
        """Hello would make an absent tenant: never one that was lost, or that is to be rebuilt."""
        term, now_s = self._ports.identity.term, self._ports.clock()
        if tenant == NODE_TENANT or not known:  # holds no scope; hello knows a lost registry
            return
        if known == term:
            raise TermMismatch(f"{why}; this node knew it under term {term}") from why
        since_s = self._waiting_since_s.setdefault((tenant, term), now_s)
        if now_s < max(since_s + ORPHAN_S, self._tenants.closed_until_s):
            raise NotWritten(
                f"waiting for the operator to rebuild tenant {tenant!r} under term {term}"
            ) from why

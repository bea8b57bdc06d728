"""The publication gate and the node's publish lease, as pure rules (design, section 4; C5).

One rule decides publication; one machine decides which deadline may be stored in the mailbox. The
sidecar's lease keeper stores only what ``LeaseState.step`` orders. Must never read a clock: times
are arguments, nanoseconds on this node's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from retire.protocol.errors import IllegalTransition, InvalidField
from retire.protocol.versions import Version

DRIFT_MARGIN: Final = 0.05  # two clocks may run this far apart; 500 ppm is what NTP tolerates
_NS: Final = 1_000_000_000


def may_publish(*, known: Version | None, frame: Version, now_ns: int, deadline_ns: int) -> bool:
    """Whether a frame may be handed on: its version is the one this node knows, under its lease."""
    return known == frame and now_ns < deadline_ns


def deadline_ns(sent_ns: int, lease_s: float, *, drift: float = DRIFT_MARGIN) -> int:
    """End of publication for a renewal *sent* at ``sent_ns``.

    The registry starts its count later, when the renewal arrives, so it ends later than ours.
    """
    if lease_s < 0 or not 0 <= drift < 1:
        raise InvalidField("lease", (lease_s, drift), "lease_s >= 0 and drift in 0..1")
    return sent_ns + int(lease_s * (1 - drift) * _NS)


def wait_s(lease_left_s: float, *, drift: float = DRIFT_MARGIN) -> float:
    """How long a committer waits, on its own clock, for a lease with ``lease_left_s`` at COMMIT."""
    return max(0.0, lease_left_s) * (1 + drift)


@dataclass(frozen=True, slots=True)
class TenantJoined:
    """This node will hold scopes of the tenant; everything up to ``sequence`` is applied."""

    tenant: str
    sequence: int


@dataclass(frozen=True, slots=True)
class TenantLeft:
    """This node holds no scope of the tenant any more."""

    tenant: str


@dataclass(frozen=True, slots=True)
class RenewalSent:
    """A renewal for every joined tenant is about to be sent. ``now_ns`` is read before sending."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The registry granted the renewal that was sent at ``sent_ns``.

    ``sequences``: per tenant, the commit sequence at the moment of the renewal.
    """

    sent_ns: int
    lease_s: float
    sequences: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Applied:
    """Every commit of the tenant up to ``sequence`` stands in the mailbox."""

    tenant: str
    sequence: int


@dataclass(frozen=True, slots=True)
class LeaseDropped:
    """Stop publishing now: shutdown, or the registry is not the one we knew."""


LeaseEvent = TenantJoined | TenantLeft | RenewalSent | Renewed | Applied | LeaseDropped


@dataclass(frozen=True, slots=True)
class Grant:
    """A renewal that waits until this node has caught up with it."""

    deadline_ns: int
    sequences: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The node's lease. ``deadline_ns`` is what the mailbox must hold; 0: closed."""

    deadline_ns: int = 0  # Invariant: every commit up to the grant behind it is applied
    covered: frozenset[str] = frozenset()  # tenants in that grant: only their scopes may open
    applied: tuple[tuple[str, int], ...] = ()  # joined tenants and their applied commit sequence
    in_flight: tuple[int, ...] = ()  # sent_ns of renewals without an answer
    grants: tuple[Grant, ...] = ()  # granted, not caught up with; in the order they were sent

    def can_open(self, tenant: str) -> bool:
        """A scope gets a slot only when the stored deadline comes from a lease in its tenant."""
        return tenant in self.covered

    def step(self, event: LeaseEvent) -> LeaseState:
        """The next state; the shell then stores ``deadline_ns`` if it changed."""
        match event:
            case TenantJoined():
                return self._at_least(event.tenant, event.sequence)
            case TenantLeft():
                return self._without(event.tenant)._caught_up()
            case RenewalSent():
                return replace(self, in_flight=(*self.in_flight, event.now_ns))
            case Renewed():
                return self._granted(event)._caught_up()
            case Applied():
                if event.tenant not in dict(self.applied):
                    return self
                return self._at_least(event.tenant, event.sequence)._caught_up()
            case LeaseDropped():
                return LeaseState(applied=self.applied)
            case _:  # pyright: ignore[reportUnnecessaryComparison]
                raise IllegalTransition(f"not a lease event: {event}")

    def _without(self, tenant: str) -> LeaseState:
        rest = tuple(a for a in self.applied if a[0] != tenant)
        return replace(self, applied=rest, covered=self.covered - {tenant})

    def _at_least(self, tenant: str, sequence: int) -> LeaseState:
        merged = dict(self.applied)
        merged[tenant] = max(sequence, merged.get(tenant, sequence))
        return replace(self, applied=tuple(sorted(merged.items())))

    def _granted(self, event: Renewed) -> LeaseState:
        """An answer to a renewal that was dropped since, or never sent, grants nothing."""
        if event.sent_ns not in self.in_flight:
            return self
        grant = Grant(deadline_ns(event.sent_ns, event.lease_s), tuple(event.sequences.items()))
        rest = tuple(s for s in self.in_flight if s > event.sent_ns)
        # The registry counts by this grant already; a shorter one binds before we have caught up.
        sooner = min(self.deadline_ns, grant.deadline_ns)
        return replace(self, deadline_ns=sooner, in_flight=rest, grants=(*self.grants, grant))

    def _caught_up(self) -> LeaseState:
        """Take the last grant whose every commit is applied; it must cover all that may be open.

        A tenant that joined after it was asked for has nothing open yet and waits for the next one:
        were it to hold this one up, tenants that keep joining would end everybody's lease.
        """
        applied = dict(self.applied)
        for grant in reversed(self.grants):
            needed = dict(grant.sequences)
            reached = all(applied.get(t, s) >= s for t, s in needed.items())
            if reached and self.covered <= needed.keys():
                later = self.grants[self.grants.index(grant) + 1 :]
                covered = frozenset(applied.keys() & needed.keys())
                return replace(self, deadline_ns=grant.deadline_ns, covered=covered, grants=later)
        return self

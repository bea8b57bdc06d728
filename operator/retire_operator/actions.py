"""What a decision may order, one frozen dataclass each. Values only; apply.py executes them.

Idempotency keys: two operators, or one that was killed and came back, make the same call under the
same key, so the registry commits it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retire.protocol.contract import Contract, Policy
    from retire.protocol.versions import Version


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Before anything else: what is made must be ended again."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """The object may go. ``warning``: why the scope could not be ended first; empty: it was."""

    warning: str = ""


@dataclass(frozen=True, slots=True)
class Register:
    """Create the scope in the registry, unless it exists."""

    term: int
    epoch: int
    policy: Policy | None
    parent: str | None


@dataclass(frozen=True, slots=True)
class Configure:
    """Set what the registry holds beside the version; the parent only where there is none."""

    term: int
    policy: Policy | None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Supersede:
    """Move one epoch."""

    expected: Version
    idempotency_key: str
    contract: Contract


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the scope."""

    expected: Version
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Take no new work."""

    expected: Version
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Undo a pause."""

    expected: Version
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Warm:
    """Compute the revised context under the current version on ``node``."""

    version: Version
    node: str
    request_json: str
    digest: str


@dataclass(frozen=True, slots=True)
class TellGuard:
    """The registry is behind what was acknowledged: it may have lost its data."""

    why: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look again, though nothing may have changed."""

    after_s: float


Action = (
    AddFinalizer
    | RemoveFinalizer
    | Register
    | Configure
    | Supersede
    | Cancel
    | Pause
    | Resume
    | Warm
    | TellGuard
    | Requeue
)

"""A successor that waits for a copy from host memory, and what its outcome says of the wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from retire.engine.tier.restores import RestoreResult
from retire.protocol.alignment import cold
from retire.protocol.contract import StopReason

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from retire.engine.records import Outcome
    from retire.engine.tag import Tag

_REASONS: Final = {
    RestoreResult.DAMAGED: StopReason.RESTORE,
    RestoreResult.LATE: StopReason.RESTORE,
    RestoreResult.NO_ROOM: StopReason.RESTORE,
    RestoreResult.STALE: StopReason.GENERATION,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """One successor, kept out of the queues."""

    request: Request
    tag: Tag
    tokens: int  # that it would inherit


@dataclass(frozen=True, slots=True)
class Restored:
    """How the wait for ``tokens`` tokens ended."""

    result: RestoreResult
    tokens: int

    def told(self, outcome: Outcome) -> Outcome:
        """The outcome without, or with, the copy; where it lacks tokens it says why."""
        outcome = replace(outcome, restore=self.result)
        if self.result is RestoreResult.QUOTA:
            return replace(outcome, alignment=cold(outcome.alignment, StopReason.QUOTA), chain=None)
        reason = _REASONS.get(self.result)
        if reason is None or outcome.alignment.certified_tokens >= self.tokens:
            return outcome
        return replace(outcome, alignment=replace(outcome.alignment, stop_reason=reason))

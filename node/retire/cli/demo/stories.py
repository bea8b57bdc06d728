"""The two stories and what became of each telling. Value types only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from retire.cli.demo import repository

if TYPE_CHECKING:
    from retire.protocol.contract import Receipt


class Arm(Enum):
    """How the change of mind is handled."""

    RETIRE = "retire"
    NATIVE_PREFIX = "abort + resend"  # vLLM as it is, prefix caching on: the strong baseline
    NATIVE_COLD = "abort + resend, cold"


@dataclass(frozen=True, slots=True)
class Story:
    """An agent's request, and the moment its user changes their mind."""

    name: str
    title: str
    files: dict[str, str]
    task: str
    revised: str
    after_tokens: int | None  # revise when the agent has read so many tokens
    after_prefill: float | None  # or when this share of its prompt has been computed


STORIES: Final = (
    Story(
        name="mid-decode",
        title="the task changes while the plan is being written",
        files=repository.SMALL,
        task="Add retries with exponential backoff to the carrier client.",
        revised="No retries after all. Give every call of the carrier client a timeout instead.",
        after_tokens=30,
        after_prefill=None,
    ),
    Story(
        name="mid-prefill",
        title="the task changes while the repository is still being read",
        files=repository.WHOLE,
        task="Send all mails of one round in a single SMTP session.",
        revised="Leave the mails alone. Track parcels in parallel, eight at a time.",
        after_tokens=None,
        after_prefill=0.55,
    ),
)


@dataclass(frozen=True, slots=True)
class Read:
    """One item the agent took from the old stream. Times in seconds since the change of mind."""

    at_s: float
    tokens: int
    used: bool  # False: refused, its version was no longer current


@dataclass(frozen=True, slots=True)
class Telling:
    """One story under one arm. Milliseconds since the user's change of mind."""

    story: str
    arm: Arm
    old_reads: tuple[Read, ...]
    done_ms: float  # the abort or SUPERSEDE call had returned
    stages_ms: dict[str, float]  # ends, in order; the last is the successor's first token
    prompt_tokens: int
    inherited_tokens: int
    new_tokens_ms: tuple[float, ...]  # arrival of each chunk of the successor
    text: str
    receipt: Receipt | None = None
    problems: tuple[str, ...] = field(default=())  # checks that failed

    @property
    def late_tokens(self) -> int:
        """Old tokens the agent took and used after the call had returned."""
        return sum(r.tokens for r in self.old_reads if r.used and r.at_s * 1e3 > self.done_ms)

    @property
    def refused_tokens(self) -> int:
        """Old tokens that were on the way and that their version kept from being used."""
        return sum(read.tokens for read in self.old_reads if not read.used)

    @property
    def ttft_ms(self) -> float:
        """From the change of mind to the successor's first token."""
        return self.new_tokens_ms[0] if self.new_tokens_ms else float("inf")

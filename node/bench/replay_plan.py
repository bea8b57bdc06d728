"""What a replay does and when: turns of sessions, and seeded interruptions in them. Pure.

Recorded sessions hold no interruptions, so they are put in: each in one of six strata of a call
(queued, mid-prefill, first token, mid-decode, last step, tool wait), alone or as a burst of 2 to 8
chained revisions within a second. Where a stratum lies is predicted from the engine's speed, once,
so that both arms get the same instants. Lengths are scaled by one fixed factor.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.replay_sessions import Session

OUT_MIN: Final = 12  # tokens: below, no interruption could fall between the first and the last
BURST_SPAN_S: Final = 1.0
BURSTS: Final = (1, 8, 1, 2, 1, 5, 1, 3)  # revisions of a turn, taken in turn: half of them single


class Stratum(Enum):
    """Where in a call it is interrupted."""

    QUEUED = "queued"
    MID_PREFILL = "mid-prefill"
    FIRST_TOKEN = "first token"
    MID_DECODE = "mid-decode"
    LAST_STEP = "last step"
    TOOL_WAIT = "tool wait"


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the engine, measured once when idle; seconds."""

    prefill_token_s: float
    decode_token_s: float


@dataclass(frozen=True, slots=True)
class Revision:
    """A new context for the turn that runs; it is the next version."""

    after_s: float  # from the turn's start
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of an agent and what becomes of it. The last revision is the final version."""

    number: int
    start_s: float  # from the replay's start, at the earliest
    prompt: tuple[int, ...]
    out: int  # tokens of each version
    stratum: Stratum
    revisions: tuple[Revision, ...]


@dataclass(frozen=True, slots=True)
class Agent:
    """One session's turns, one after the other."""

    name: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """How a recording is made to fit a small model."""

    agents: int
    turns: int  # of each agent
    prompt_max: int  # tokens; the longest chosen prompt has this many
    gap_s: float  # mean time between an agent's turns
    compress: float = 1.0  # times of arrivals and bursts are divided by this, the same draws


def plan(sessions: Sequence[Session], scale: Scale, speed: Speed, *, seed: int) -> list[Agent]:
    """The same for the same arguments. Sessions with too few calls are left out."""
    chosen = [s for s in sessions if len(s.calls) >= scale.turns][: scale.agents]
    if not chosen:
        raise ValueError(f"no session has {scale.turns} calls")
    longest = max(call.tokens_in for s in chosen for call in s.calls[: scale.turns])
    factor = scale.prompt_max / longest
    interruptions = _Interruptions(speed, random.Random(seed), BURST_SPAN_S / scale.compress)
    return [_agent(session, scale, factor, interruptions) for session in chosen]


class _Interruptions:
    """Draws them: every stratum once before any comes again, and so the sizes of bursts."""

    def __init__(self, speed: Speed, draw: random.Random, span_s: float) -> None:
        self.speed, self.draw, self.span_s = speed, draw, span_s
        self._strata: list[Stratum] = []
        self._bursts = itertools.cycle(BURSTS)

    def of(self, prompt: list[int], out: int) -> tuple[Stratum, tuple[Revision, ...]]:
        """Those of one call."""
        if not self._strata:
            self._strata = self.draw.sample(list(Stratum), len(Stratum))
        stratum = self._strata.pop()
        at_s = _instant(stratum, len(prompt), out, self.speed)
        gaps = _gaps(next(self._bursts), self.span_s, self.draw)
        return stratum, _burst(prompt, at_s, gaps, self.draw)


def _agent(session: Session, scale: Scale, factor: float, interruptions: _Interruptions) -> Agent:
    draw = interruptions.draw
    turns, start_s = [], draw.uniform(0, scale.gap_s)
    for number, call in enumerate(session.calls[: scale.turns]):
        prompt = session.prompt(call, factor)
        out = max(OUT_MIN, round(call.tokens_out * factor))
        stratum, revisions = interruptions.of(prompt, out)
        at_s = start_s / scale.compress
        turns.append(Turn(number, at_s, tuple(prompt), out, stratum, revisions))
        start_s += draw.expovariate(1 / scale.gap_s)
    return Agent(session.name, tuple(turns))


def _instant(stratum: Stratum, prompt: int, out: int, speed: Speed) -> float:
    """Seconds after the call's start."""
    first_s = prompt * speed.prefill_token_s
    answer_s = out * speed.decode_token_s
    match stratum:
        case Stratum.QUEUED:
            return 0.0
        case Stratum.MID_PREFILL:
            return first_s / 2
        case Stratum.FIRST_TOKEN:
            return first_s
        case Stratum.MID_DECODE:
            return first_s + answer_s / 2
        case Stratum.LAST_STEP:
            return first_s + answer_s - speed.decode_token_s
        case Stratum.TOOL_WAIT:
            return 1.5 * (first_s + answer_s)


def _gaps(count: int, span_s: float, draw: random.Random) -> list[float]:
    """Seconds between ``count`` revisions, within ``span_s`` in all."""
    drawn = [draw.expovariate(1.0) for _ in range(count - 1)]
    total = sum(drawn)
    scale = span_s * min(1.0, 1.0 / total) if drawn else 1.0
    return [gap * scale for gap in drawn]


def _burst(
    prompt: list[int], at_s: float, gaps: Sequence[float], draw: random.Random
) -> tuple[Revision, ...]:
    """Chained revisions: each keeps a part of its predecessor's context."""
    made, context = [], prompt
    for gap in (0.0, *gaps):
        at_s += gap
        kept = int(len(context) * draw.uniform(0.3, 0.95))
        fresh = [draw.randrange(10, 2000) for _ in range(len(context) - kept)]
        context = context[:kept] + fresh
        made.append(Revision(at_s, tuple(context)))
    return tuple(made)

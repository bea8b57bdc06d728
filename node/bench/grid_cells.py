"""Runs cells of the grid on a stack: tries until the state was met, then has it judged.

Owns attempts, references and what a cell says of the processes. Must never decide what is right:
``grid_checks`` does.
"""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench import grid_checks
from bench.grid_events import Event, happen
from bench.grid_scene import NEW_PROMPT, NEW_TOKENS, OLD_PROMPT, scene
from bench.grid_states import LONG, Missed, State, reach
from bench.grid_variants import PLAIN, Variant
from bench.grid_wire import Stuck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.grid_events import Seen
    from bench.stack import Stack

ATTEMPTS: Final = 8
CELLS: Final = tuple(itertools.product(Event, State))
_BAD_LINE = re.compile(r"Traceback \(most recent call last\)|\b(ERROR|CRITICAL)\b")
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one cell came to."""

    event: Event
    state: State
    problems: tuple[str, ...]
    late_tokens: int = 0
    met: str = ""  # where the event really found the request
    attempts: int = 1
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """The cell keeps every promise."""
        return not self.problems


class Grid:
    """The cells of one stack."""

    def __init__(self, stack: Stack, variant: Variant = PLAIN) -> None:
        self._stack = stack
        self._variant = variant
        self._pids = stack.pids
        self.clean = grid_checks.Reference(
            old=self._clean_run(OLD_PROMPT, LONG), new=self._clean_run(NEW_PROMPT, NEW_TOKENS)
        )

    def cell(self, event: Event, state: State) -> Outcome:
        """Run one cell; a state that is never met is a failure too."""
        started_s = time.monotonic()
        missed: list[str] = []
        while len(missed) < ATTEMPTS:
            try:
                problems, seen = self._attempt(event, state)
            except Missed as miss:
                missed.append(str(miss))
                continue
            return Outcome(
                event,
                state,
                tuple(problems),
                late_tokens=grid_checks.late_tokens(seen) if seen else 0,
                met=_where(seen) if seen else "",
                attempts=len(missed) + 1,
                seconds=time.monotonic() - started_s,
            )
        why = f"the state was not met in {ATTEMPTS} attempts: {'; '.join(missed[-3:])}"
        seconds = time.monotonic() - started_s
        return Outcome(event, state, (why,), attempts=ATTEMPTS, seconds=seconds)

    def run(self) -> Iterator[Outcome]:
        """Every cell."""
        for event, state in CELLS:
            yield self.cell(event, state)

    def _attempt(self, event: Event, state: State) -> tuple[list[str], Seen | None]:
        first_line = len(self._stack.log())
        tenant = f"{event.value}-{state.name.lower().replace('_', '-')}-{next(_NUMBERS)}"
        seen: Seen | None = None
        try:
            with scene(self._stack, tenant, self._variant) as one:
                try:
                    reach(one, state)
                    seen = happen(one, state, event)
                    if instead := grid_checks.met(seen):
                        raise Missed(instead)
                except Missed:
                    one.cancel()
                    raise
        except Stuck as stuck:
            problems = [f"stuck: {stuck}"]
        else:
            problems = grid_checks.problems(seen, self.clean)
        return problems + self._processes(first_line), seen

    def _processes(self, first_line: int) -> list[str]:
        """Nothing died, nothing complained."""
        problems = [line for line in self._stack.log(first_line) if _BAD_LINE.search(line)]
        if self._stack.pids != self._pids:
            problems.append(f"processes {self._pids} became {self._stack.pids}")
        return problems

    def _clean_run(self, prompt: list[int], tokens: int) -> tuple[int, ...]:
        counted = {"return_token_ids": True, **self._variant.sampling}
        answer = self._stack.complete(prompt, max_tokens=tokens, **counted)
        return tuple(answer["choices"][0]["token_ids"])


def _where(seen: Seen) -> str:
    steps, tokens = seen.before.written, len(seen.old.tokens)
    return f"{steps} steps written before, {tokens} tokens delivered"

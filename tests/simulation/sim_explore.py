"""Breadth-first exploration of a world's joint states: safety at each step, liveness at the end."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class Keyed(Protocol):
    """A world: equal keys, equal worlds. Keys are cheap to hash and to compare."""

    @property
    def key(self) -> Hashable: ...


W = TypeVar("W", bound=Keyed)


class Interner:
    """Gives each value a small number, equal for equal values; deep values are hashed once."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._by_id: dict[int, tuple[object, int]] = {}

    def __call__(self, value: Hashable) -> int:
        known = self._by_id.get(id(value))
        if known is not None:
            return known[1]
        number = self._numbers.setdefault(value, len(self._numbers))
        self._by_id[id(value)] = (value, number)  # keeps the value, so its id stays its own
        return number


@dataclass
class Found:
    """A broken rule and the shortest way to it."""

    rule: str
    path: list[str]


@dataclass
class Report:
    states: int = 0
    edges: int = 0
    found: list[Found] = field(default_factory=list)
    stuck: list[list[str]] = field(default_factory=list)  # paths to states that never reach a goal

    @property
    def rules(self) -> set[str]:
        return {f.rule for f in self.found} | ({"C4.no_progress"} if self.stuck else set())


Parents = dict[Hashable, tuple[Hashable, str] | None]
Successors = Callable[[W], Iterable[tuple[str, W, list[str]]]]


def explore(
    start: W,
    successors: Successors[W],
    is_goal: Callable[[W], bool],
    *,
    limit: int,
    stop_at: str | None = None,
) -> Report:
    """Visit every reachable state. ``successors`` yields (action, state, broken rules).

    A state whose step broke a rule is not continued. ``stop_at``: a broken rule that ends the
    search.
    Raises AssertionError above ``limit`` states: a bound that cuts off silently proves nothing.
    """
    gc.disable()  # nothing here is garbage until the end
    try:
        return _explore(start, successors, is_goal, limit=limit, stop_at=stop_at)
    finally:
        gc.enable()


def _explore(
    start: W,
    successors: Successors[W],
    is_goal: Callable[[W], bool],
    *,
    limit: int,
    stop_at: str | None,
) -> Report:
    report = Report()
    parents: Parents = {start.key: None}
    before: dict[Hashable, list[Hashable]] = {start.key: []}
    able = {start.key} if is_goal(start) else set[Hashable]()
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for action, after, broken in successors(state):
            report.edges += 1
            report.found += [Found(rule, [*_path(parents, state.key), action]) for rule in broken]
            if stop_at in broken:
                report.states = len(parents)
                return report
            if broken:
                continue
            if after.key not in parents:
                assert len(parents) < limit, f"more than {limit} states"
                parents[after.key] = (state.key, action)
                before[after.key] = []
                queue.append(after)
                if is_goal(after):
                    able.add(after.key)
            before[after.key].append(state.key)
    report.states = len(parents)
    report.stuck = [_path(parents, s) for s in _unable(before, able)]
    return report


def _unable(before: dict[Hashable, list[Hashable]], able: set[Hashable]) -> list[Hashable]:
    """States from which no goal state can be reached."""
    queue = deque(able)
    while queue:
        for earlier in before[queue.popleft()]:
            if earlier not in able:
                able.add(earlier)
                queue.append(earlier)
    return [s for s in before if s not in able]


def _path(parents: Parents, state: Hashable) -> list[str]:
    path: list[str] = []
    while (came := parents[state]) is not None:
        state, action = came
        path.append(action)
    return path[::-1]

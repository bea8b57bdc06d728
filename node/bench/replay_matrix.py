"""Revision rate x concurrency x policy (the paper's A.2.2), and its bursts of eight revisions.

Open loop on the engine of a replay: every version has a prompt that shares nothing with another and
decodes until it is revised or the window ends, so that what is measured is retirement alone.
Goodput counts tokens that a version delivered while it was current, per second of the window.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.goals import Better
from bench.replay_engine import Engine, Execution, Native, Resend, Retire
from bench.report import Row, value

if TYPE_CHECKING:
    from rich.console import Console

BURST: Final = 8  # revisions
BURST_SCOPES: Final = 3
Arm = Native | Retire


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of a matrix. ``rates``: revisions a scope and second."""

    window_s: float
    prompt: int
    out: int
    quanta: tuple[int, ...]
    rates: tuple[float, ...]
    scopes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """Instants of revision, scope by scope, in seconds from the window's start."""

    name: str
    revisions: tuple[tuple[float, ...], ...]


@dataclass(slots=True)
class Window:
    """One arm's run of a cell."""

    seconds: float
    executions: list[Execution] = field(default_factory=list)
    finals: list[Execution] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Tokens a second that were current when they were delivered."""
        return sum(_current(run) for run in self.executions) / self.seconds

    @property
    def obsolete(self) -> int:
        """Tokens delivered by versions that had been revised."""
        return sum(sum(n for _, n in run.delivered) - _current(run) for run in self.executions)

    @property
    def late(self) -> int:
        """... after the revision had been acknowledged."""
        return sum(run.late for run in self.executions)

    @property
    def advanced(self) -> float:
        """Share of the final versions that have delivered a token within the window."""
        return sum(bool(run.delivered) for run in self.finals) / len(self.finals)


def _current(run: Execution) -> int:
    until_s = run.revised_s if run.revised_s is not None else float("inf")
    return sum(count for at_s, count in run.delivered if at_s < until_s)


def cells(setting: Setting, *, seed: int = 0) -> list[Cell]:
    """Every rate x concurrency, and the bursts; the same for the same arguments."""
    draw = random.Random(f"matrix-{seed}")
    made = []
    for rate in setting.rates:
        for scopes in setting.scopes:
            times = tuple(_poisson(rate, setting.window_s, draw) for _ in range(scopes))
            made.append(Cell(f"r{rate:g}_c{scopes}", times))
    return [*made, bursts(setting.window_s, draw)]


def _poisson(rate: float, window_s: float, draw: random.Random) -> tuple[float, ...]:
    found, at_s = [], 0.0
    while rate and (at_s := at_s + draw.expovariate(rate)) < window_s:
        found.append(at_s)
    return tuple(found)


def bursts(window_s: float, draw: random.Random) -> Cell:
    """Three scopes, a burst of eight each within a tenth of the window, as in the recording."""
    made = []
    for number in range(BURST_SCOPES):
        start_s = window_s * (0.1 + 0.2 * number)
        span = sorted(draw.uniform(0, window_s / 10) for _ in range(BURST))
        made.append(tuple(start_s + at_s for at_s in span))
    return Cell("bursts", tuple(made))


class Matrix:
    """Every cell, every policy, on one engine."""

    def __init__(self, made: Engine, setting: Setting) -> None:
        self.engine, self.setting = made, setting
        self.windows: dict[tuple[str, str], Window] = {}

    def arms(self, cell: Cell) -> list[Arm]:
        """Native abort at each quantum, resend without abort, and ours."""
        quanta = self.setting.quanta
        natives = [Native(self.engine, f"matrix-{cell.name}", quantum) for quantum in quanta]
        resend = Resend(self.engine, f"matrix-{cell.name}", max(quanta))
        return [*natives, resend, Retire(self.engine, "matrix")]

    async def measure(self, console: Console) -> None:
        """Each cell in turn."""
        for cell in cells(self.setting):
            for arm in self.arms(cell):
                await self.engine.use(arm.quantum)
                window = self.windows[cell.name, arm.name] = await self._window(cell, arm)
                console.print(
                    f"{cell.name}, {arm.name}: {window.goodput:.1f} current tokens/s, "
                    f"{window.obsolete} obsolete, {window.late} late, "
                    f"{window.advanced:.0%} of the final versions advanced", highlight=False,
                )  # fmt: skip
        await self.engine.use(0)

    async def _window(self, cell: Cell, arm: Arm) -> Window:
        window = Window(self.setting.window_s)
        began_s = time.monotonic()
        scopes = [
            asyncio.create_task(self._scope(arm, cell, number, began_s, window))
            for number in range(len(cell.revisions))
        ]
        await asyncio.sleep(window.seconds)
        delivered = {run.name: len(run.delivered) for run in window.executions}
        await asyncio.gather(*scopes)  # whoever is being revised
        live = [run for run in window.executions if run.ended_s is None]
        await self.engine.llm.abort([run.name for run in live])
        for run in window.executions:
            del run.delivered[delivered.get(run.name, 0) :]  # what came after the window
        await self.engine.settle()
        return window

    async def _scope(
        self, arm: Arm, cell: Cell, number: int, began_s: float, window: Window
    ) -> None:
        run = self._version(arm, cell, number, 0, window)
        window.finals.append(run)
        await arm.begin(run, f"scope-{number}")
        for version, at_s in enumerate(cell.revisions[number], 1):
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            old, run = run, self._version(arm, cell, number, version, window)
            window.finals[window.finals.index(old)] = run
            await arm.revise(old, run)

    def _version(
        self, arm: Arm, cell: Cell, number: int, version: int, window: Window
    ) -> Execution:
        name = f"{cell.name}/{arm.name.replace('/', ' ')}/{number}/{version}"
        draw = random.Random(f"{cell.name}-{number}-{version}")
        prompt = tuple(draw.randrange(10, 2000) for _ in range(self.setting.prompt))
        run = Execution(name, prompt, self.setting.out)
        window.executions.append(run)
        return run


def rows(matrix: Matrix) -> list[Row]:
    """Per cell: ours against the best native quantum, and against resend without abort."""
    made: list[Row] = []
    for cell in dict.fromkeys(name for name, _ in matrix.windows):
        found = {arm: window for (name, arm), window in matrix.windows.items() if name == cell}
        aborts = [arm for arm in found if arm.startswith(Native.name)]
        native = max(aborts, key=lambda arm, found=found: found[arm].goodput)
        resend = next(arm for arm in found if arm.startswith(Resend.name))
        ours = found[Retire.name]
        for metric, read, unit, better in (
            ("goodput", lambda one: one.goodput, "tokens/s", Better.HIGHER),
            ("final_fraction", lambda one: one.advanced, "share", Better.HIGHER),
            ("late", lambda one: one.late, "tokens", Better.LOWER),
            ("obsolete", lambda one: one.obsolete, "tokens", Better.LOWER),
        ):
            for against, name in (("", native), ("_vs_resend", resend)):
                made.append(
                    value(
                        f"matrix.{metric}{against}_{cell}",
                        read(ours),
                        n=1,
                        unit=unit,
                        baseline=(name, read(found[name])),
                        better=better,
                    )
                )
    return made


def samples(matrix: Matrix) -> dict[str, list[float]]:
    """Of every window: goodput, obsolete tokens, share of final versions."""
    return {
        f"{cell} {arm}: current tokens/s, obsolete, late, advanced": [
            window.goodput, float(window.obsolete), float(window.late), window.advanced,
        ]
        for (cell, arm), window in matrix.windows.items()
    }  # fmt: skip

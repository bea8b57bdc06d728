"""The state x event grid on the real stack: every cell judged, as a table (promise C1 and others).

Owns the table, the result file and the exit status. Usage: python -m bench.grid [EVENT ...]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from bench import report
from bench.grid_cells import CELLS, Grid
from bench.grid_events import Event
from bench.grid_states import State
from bench.stack import Stack, StackSettings
from retire.protocol import invariants
from retire.telemetry import history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.grid_cells import Outcome

# No cell is about the lease: it must not run out because the machine has other work.
SETTINGS: Final = StackSettings(env={"RETIRE_LEASE_S": "20"})


def table(outcomes: Sequence[Outcome]) -> Table:
    """States down, events across."""
    found = {(one.event, one.state): one for one in outcomes}
    events = [event for event in Event if any(one.event is event for one in outcomes)]
    shown = Table(title="state x event", title_justify="left")
    shown.add_column("state of the old request")
    for event in events:
        shown.add_column(event.value, justify="right")
    for state in State:
        shown.add_row(state.value, *(_cell(found.get((event, state))) for event in events))
    return shown


def _cell(one: Outcome | None) -> str:
    if one is None:
        return ""
    if one.ok:
        return f"[green]ok[/green] {one.seconds:4.1f} s"
    late = f", {one.late_tokens} late" if one.late_tokens else ""
    return f"[red]FAILED[/red]{late}"


def details(outcomes: Sequence[Outcome], console: Console) -> None:
    """Every problem of every failed cell."""
    for one in outcomes:
        if not one.ok:
            console.print(f"\n[bold]{one.event.value} x {one.state.value}[/bold]  ({one.met})")
            for problem in one.problems:
                console.print(f"  - {problem}", markup=False)


def rows(outcomes: Sequence[Outcome], violations: int) -> list[report.Row]:
    """The metrics of the goals' table, and what stands behind them."""
    count = len(outcomes)
    late = sum(one.late_tokens for one in outcomes)
    return [
        report.value("grid.cells", count, n=count),
        report.value("grid.failed", sum(not one.ok for one in outcomes), n=count),
        report.value("grid.late_tokens", late, n=count, unit="tokens"),
        report.value("grid.history_violations", violations, n=count, unit="records"),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run, print, write; 1 when a cell failed."""
    console = Console()
    events = [Event(name) for name in arguments] or list(Event)
    console.print("starting the stack (registry, sidecar, vLLM) ...")
    outcomes: list[Outcome] = []
    with Stack(SETTINGS) as stack:
        grid = Grid(stack)
        for event, state in CELLS:
            if event in events:
                outcomes.append(grid.cell(event, state))
                word = "ok" if outcomes[-1].ok else "FAILED"
                console.print(f"{event.value} x {state.value}: {word}", highlight=False)
        violations = invariants.check(invariants.in_order(history.read(stack.history)))
    console.print(table(outcomes))
    details(outcomes, console)
    for broken in violations:
        console.print(f"history: {broken.name}: {broken.message}", markup=False)
    if events == list(Event):
        seconds = {"cell_s": [one.seconds for one in outcomes]}
        path = report.write("grid", rows(outcomes, len(violations)), device="cpu", samples=seconds)
        console.print(f"written: {path}")
    return int(bool(violations) or not all(one.ok for one in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

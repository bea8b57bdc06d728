"""The state x event grid on the real stack: every cell judged, as a table (promise C1 and others).

Every variant of ``grid_variants`` in turn, each on a stack of its own. Owns the table, the result
file (written when all cells of all variants ran) and the exit status.
Usage: python -m bench.grid [--variant NAME]... [EVENT ...]
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from bench import report
from bench.grid_cells import CELLS, Grid
from bench.grid_events import Event
from bench.grid_states import State
from bench.grid_variants import VARIANTS, Variant
from bench.stack import Stack
from retire.protocol import invariants
from retire.telemetry import history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.grid_cells import Outcome

_DRAFTS: Final = re.compile(
    r"^vllm:spec_decode_num_(draft|accepted)_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE
)


def table(outcomes: Sequence[Outcome], name: str) -> Table:
    """States down, events across."""
    found = {(one.event, one.state): one for one in outcomes}
    events = [event for event in Event if any(one.event is event for one in outcomes)]
    shown = Table(title=f"state x event: {name}", title_justify="left")
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


@dataclass(frozen=True, slots=True)
class Run:
    """What one variant's grid came to."""

    variant: Variant
    outcomes: Sequence[Outcome]
    violations: Sequence[invariants.Violation]
    drafts: tuple[int, int] = (0, 0)  # proposed, accepted

    @property
    def failed(self) -> int:
        """Cells that break a promise."""
        return sum(not one.ok for one in self.outcomes)

    @property
    def late(self) -> int:
        """Tokens of an old version that a consumer read late."""
        return sum(one.late_tokens for one in self.outcomes)

    @property
    def ok(self) -> bool:
        """No cell failed, the history is sound, and the variant was what its name says."""
        return not self.failed and not self.violations and self.met

    @property
    def met(self) -> bool:
        """With speculation: drafts were made, some of them right and some wrong."""
        proposed, accepted = self.drafts
        return not self.variant.drafts or 0 < accepted < proposed


def rows(runs: Sequence[Run]) -> list[report.Row]:
    """The metrics of the goals' table over all variants, and each variant's own."""
    count = sum(len(run.outcomes) for run in runs)
    found = [
        report.value("grid.cells", count, n=count),
        report.value("grid.failed", sum(run.failed for run in runs), n=count),
        report.value("grid.late_tokens", sum(run.late for run in runs), n=count, unit="tokens"),
        report.value(
            "grid.history_violations",
            sum(len(run.violations) for run in runs),
            n=count,
            unit="records",
        ),
    ]
    for run in runs:
        name, own = f"grid.{run.variant.name}", len(run.outcomes)
        found.append(report.value(f"{name}.cells", own, n=own, unit="cells"))
        found.append(report.value(f"{name}.failed", run.failed, n=own, unit="cells"))
        if run.variant.drafts:
            proposed, accepted = run.drafts
            found.append(report.value(f"{name}.drafts", proposed, n=own, unit="tokens"))
            found.append(report.value(f"{name}.drafts_accepted", accepted, n=own, unit="tokens"))
    return found


def run_variant(variant: Variant, events: Sequence[Event], console: Console) -> Run:
    """Start the variant's stack, run its cells and show them."""
    console.print(f"starting the stack of {variant.name} (registry, sidecar, vLLM) ...")
    outcomes: list[Outcome] = []
    with Stack(variant.settings) as stack:
        grid = Grid(stack, variant)
        for event, state in CELLS:
            if event in events:
                outcomes.append(grid.cell(event, state))
                word = "ok" if outcomes[-1].ok else "FAILED"
                console.print(f"{variant.name}: {event.value} x {state.value}: {word}")
        violations = invariants.check(invariants.in_order(history.read(stack.history)))
        run = Run(variant, outcomes, violations, drafts(stack))
    console.print(table(outcomes, variant.name))
    details(outcomes, console)
    for broken in violations:
        console.print(f"history: {broken.name}: {broken.message}", markup=False)
    if not run.met:
        console.print(f"{variant.name}: {run.drafts} drafts proposed and accepted", markup=False)
    return run


def drafts(stack: Stack) -> tuple[int, int]:
    """Draft tokens proposed and accepted so far, by vLLM's own counters."""
    text = stack.http.get("/metrics").raise_for_status().text
    found = {kind: int(float(count)) for kind, count in _DRAFTS.findall(text)}
    return found.get("draft", 0), found.get("accepted", 0)


def main(arguments: Sequence[str]) -> int:
    """Run, print, write; 1 when a cell failed."""
    console = Console(highlight=False)
    chosen = argparse.ArgumentParser(prog="bench.grid", description=__doc__)
    chosen.add_argument("event", nargs="*", type=Event)
    chosen.add_argument("--variant", action="append", choices=list(VARIANTS))
    options = chosen.parse_args(arguments)
    events = options.event or list(Event)
    runs = [
        run_variant(variant, events, console)
        for name, variant in VARIANTS.items()
        if name in (options.variant or VARIANTS)
    ]
    if events == list(Event) and len(runs) == len(VARIANTS):
        seconds = {f"{r.variant.name}.cell_s": [o.seconds for o in r.outcomes] for r in runs}
        path = report.write("grid", rows(runs), device="cpu", samples=seconds)
        console.print(f"written: {path}")
    return int(not all(run.ok for run in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``retire check FILE...``: judge a recorded history by the rules of the contract, offline."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections import Counter

    from retire.protocol.invariants import Violation
    from retire.telemetry.recorded import Recorded

SILENT_S: Final = 2.0  # how long reading and judging may take before progress is shown
_SKEW: Final = (
    "clocks of {} hosts were merged by wall time: a skew between them can look like a fault"
)


def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="What RETIRE_HISTORY recorded.")
    ],
    every: Annotated[
        bool, typer.Option("--all", help="Explain every violation, not only the first.")
    ] = False,
    events: Annotated[
        int, typer.Option(min=1, help="Events shown of what led to a violation.")
    ] = 24,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Judge recorded histories; exit 1 when a rule is broken, with the events that led there."""
    from retire.telemetry.recorded import read_all

    progress = Progress()
    recorded = read_all(files, progress.read)
    if not recorded.records:
        raise typer.BadParameter("no records: was the run recorded with RETIRE_HISTORY?")
    found = _judged(recorded, progress)
    progress.end()
    if recorded.hosts > 1:
        print(f"retire: {_SKEW.format(recorded.hosts)}", file=sys.stderr)
    if as_json:
        print(json.dumps(_report(recorded, found)))
    elif found:
        _explain(recorded, found if every else found[:1], len(found), events)
    else:
        print(f"{_summary(recorded)}: every rule holds")
    if found:
        raise typer.Exit(1)


class Progress:
    """A line on standard error that is written over, once something takes long."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + SILENT_S
        self._shown = False

    def read(self, path: Path, done: int, size: int) -> None:
        """Bytes of a file."""
        self._show(f"reading {path.name}: {done / 1e6:.0f} of {size / 1e6:.0f} MB")

    def judged(self, done: int, count: int) -> None:
        """Records."""
        self._show(f"judging: {100 * done // count} % of {count:,} records")

    def end(self) -> None:
        """Leave the terminal clean."""
        if self._shown:
            print(file=sys.stderr)

    def _show(self, text: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s, self._shown = time.monotonic() + SILENT_S / 4, True
            print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)


def _judged(recorded: Recorded, progress: Progress) -> list[Violation]:
    from retire.protocol.invariants import Judge

    judge, found = Judge(), []
    for done, record in enumerate(recorded.records):
        found += judge.observe(record)
        if done % 4096 == 0:
            progress.judged(done, len(recorded.records))
    return found + judge.at_end()


def _explain(recorded: Recorded, found: list[Violation], total: int, events: int) -> None:
    from retire.protocol.traces import explain

    def place(index: int) -> str:
        return str(recorded.places[index])

    for violation in found:
        print(explain(recorded.records, violation, place=place, shown=events), end="\n\n")
    rest = f", the first {len(found)} shown (--all for the rest)" if total > len(found) else ""
    print(f"{_summary(recorded)}: {total} violations{rest}")


def _summary(recorded: Recorded) -> str:
    records = recorded.records
    files = len({place.path for place in recorded.places})
    seconds = (records[-1].at_ns - records[0].at_ns) / 1e9
    kinds = _kinds(recorded)
    counts = ", ".join(f"{kinds[kind]:,} {name}" for kind, name in _COUNTED if kinds[kind])
    return f"{len(records):,} records of {files} file(s), {seconds:.1f} s ({counts})"


_COUNTED: Final = (
    ("CommitMade", "commits"),
    ("Published", "publications"),
    ("ReceiptGiven", "receipts"),
    ("CertificateIssued", "certificates"),
    ("Adopted", "adoptions"),
)


def _kinds(recorded: Recorded) -> Counter[str]:
    from collections import Counter

    return Counter(type(record).__name__ for record in recorded.records)


def _report(recorded: Recorded, found: list[Violation]) -> dict[str, object]:
    from retire.protocol.history import record_to_dict
    from retire.protocol.traces import trace_of

    def traced(violation: Violation) -> list[dict[str, object]]:
        return [
            {"place": str(recorded.places[i]), **record_to_dict(recorded.records[i])}
            for i in trace_of(recorded.records, violation)
        ]

    return {
        "records": len(recorded.records),
        "kinds": dict(_kinds(recorded)),
        "hosts": recorded.hosts,
        "violations": [
            {"rule": one.name, "message": one.message, "trace": traced(one)} for one in found
        ],
    }

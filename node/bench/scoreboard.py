"""``make scoreboard``: every result of the repository in one table, goals missed first.

Reads ``results/*/*.json`` and nothing else. Exits 1 when a result is malformed.

Usage: python -m bench.scoreboard [--root DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.goals import GOALS
from bench.report import ROOT, Row

_REQUIRED = ("bench", "command", "commit", "versions", "device", "rows", "samples")
_ROW_FIELDS = tuple(field.name for field in fields(Row))


class MalformedResult(ValueError):
    """A result file that does not have the form of design, section 9."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row and where it comes from."""

    device: str
    row: Row

    @property
    def order(self) -> tuple[int, str, str]:
        """Missed first, then met, then rows without a goal."""
        rank = {False: 0, True: 1, None: 2}[self.row.met]
        return rank, self.row.metric, self.device


def load(root: Path) -> list[Result]:
    """Every row under ``root/results``, in the order of the table."""
    results: list[Result] = []
    for path in sorted((root / "results").glob("*/*.json")):
        results.extend(Result(path.parent.name, row) for row in _rows(path))
    return sorted(results, key=lambda result: result.order)


def _rows(path: Path) -> list[Row]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise MalformedResult(f"{path}: not JSON ({error})") from error
    missing = [name for name in _REQUIRED if name not in document]
    if missing:
        raise MalformedResult(f"{path}: lacks {', '.join(missing)}")
    return [_row(path, raw) for raw in document["rows"]]


def _row(path: Path, raw: dict[str, Any]) -> Row:
    if set(raw) != set(_ROW_FIELDS):
        wrong = ", ".join(sorted(set(raw) ^ set(_ROW_FIELDS)))
        raise MalformedResult(f"{path}: row {raw.get('metric')!r} lacks or has too much: {wrong}")
    row = Row(**{**raw, "ci95": tuple(raw["ci95"]) if raw["ci95"] else None})
    goal = GOALS.get(row.metric)
    truth = goal.is_met(ours=row.ours, ratio=row.ratio) if goal else None
    if truth is not row.met:
        raise MalformedResult(
            f"{path}: row {row.metric!r} says met={row.met}, but by its goal ({goal}) it is {truth}"
        )
    return row


def table(results: list[Result]) -> Table:
    """The scoreboard."""
    board = Table(title="Scoreboard", caption=_caption(results))
    for name in ("metric", "on", "ours", "baseline", "ratio", "95 % interval", "n", "goal", ""):
        right = name in ("ours", "baseline", "ratio", "n")
        board.add_column(name, justify="right" if right else "left", no_wrap=name != "baseline")
    for result in results:
        row = result.row
        board.add_row(
            row.metric,
            result.device,
            f"{_number(row.ours)} {row.unit}",
            "" if row.baseline is None else f"{_number(row.baseline)} ({row.baseline_name})",
            "" if row.ratio is None else f"{_number(row.ratio)}x",
            "" if row.ci95 is None else f"{_number(row.ci95[0])} .. {_number(row.ci95[1])}",
            str(row.n),
            row.goal or "",
            {True: "[green]met[/]", False: "[bold red]MISSED[/]", None: ""}[row.met],
        )
    return board


def _caption(results: list[Result]) -> str:
    missed = sum(result.row.met is False for result in results)
    met = sum(result.row.met is True for result in results)
    open_goals = len(GOALS.keys() - {result.row.metric for result in results})
    return f"{missed} goals missed, {met} met, {open_goals} not measured yet"


def _number(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 when a result is malformed or there is none."""
    parser = argparse.ArgumentParser(prog="scoreboard", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    root: Path = parser.parse_args(arguments).root
    try:
        results = load(root)
    except MalformedResult as error:
        print(f"scoreboard: {error}", file=sys.stderr)
        return 1
    if not results:
        print(f"scoreboard: no results under {root / 'results'}; run a bench", file=sys.stderr)
        return 1
    console = Console()
    Console(width=max(console.width, 150)).print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

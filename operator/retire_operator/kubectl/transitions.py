"""How transitions look: the receipt of one, the timeline of the last ones, both to scale. Pure.

Times of a receipt count from the call; a stage is drawn from the end of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from retire_operator.kubectl.words import bar, counted, ms, shown

Receipt = Mapping[str, Any]
BAR_COLUMNS: Final = 40
STAGES: Final = (
    ("commitMs", "COMMIT", "░"),
    ("unpublishableMs", "UNPUBLISHABLE", "▒"),
    ("fenceMs", "FENCE", "█"),
)
LEGEND: Final = "  ".join(f"{mark} to {name}" for _, name, mark in STAGES)


def stages(receipt: Receipt) -> Iterator[tuple[str, float, float, str]]:
    """(name, from, to, mark) of every stage that was measured, in milliseconds since the call."""
    before = 0.0
    for field, name, mark in STAGES:
        if receipt.get(field) is not None:
            end = float(receipt[field])
            yield name, before, end, mark
            before = max(before, end)


def total_ms(receipt: Receipt) -> float:
    """From the call to the end of the last stage."""
    return max((end for _, _, end, _ in stages(receipt)), default=0.0)


def moved(receipt: Receipt) -> str:
    """``1.3 -> 1.4``, or where it stayed."""
    before, after = receipt.get("fromVersion"), receipt["toVersion"]
    return f"{before} -> {after}" if before and before != after else str(after)


def receipt_table(name: str, receipt: Receipt) -> Table:
    """One transition as a small table with stage bars."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    by = f" by {receipt['by']}" if receipt.get("by") else ""
    table.add_row("scope", f"{name}  {moved(receipt)}  {receipt['kind']}{by}")
    scale = total_ms(receipt)
    for stage, start, end, mark in stages(receipt):
        drawn = bar([(start, end, mark)], scale, BAR_COLUMNS)
        table.add_row(stage.lower(), Text.assemble(f"{ms(end):>9}  ", (drawn, "green")))
    for label, value in _facts(receipt):
        table.add_row(label, value)
    return table


def _facts(receipt: Receipt) -> Iterator[tuple[str, str]]:
    if receipt.get("residualMs") is not None:
        yield "residual", f"{ms(receipt['residualMs'])} of old work after COMMIT"
    if receipt.get("gates") is not None:
        ended = receipt.get("gatesLeaseEnded") or 0
        yield (
            "gates",
            f"{receipt['gates'] - ended} acked"
            + (f", {ended} by the end of their lease" if ended else ""),
        )
    if receipt.get("retiredRequests") is not None:
        yield "retired", counted(receipt["retiredRequests"], "request")
    if receipt.get("certifiedTokens") is not None:
        yield "inherited", _inherited(receipt)
    if receipt.get("pinnedBlocks") is not None:
        yield "pinned", counted(receipt["pinnedBlocks"], "block")
    if receipt.get("traceId"):
        yield "trace", receipt["traceId"]
    if receipt.get("error"):
        yield "error", receipt["error"]


def _inherited(receipt: Receipt) -> str:
    common, stopped = receipt.get("inheritableTokens"), receipt.get("stoppedBy")
    of = "" if common is None else f" of {common} common"
    return f"{receipt['certifiedTokens']}{of} tokens" + (
        f" (stopped by {stopped})" if stopped else ""
    )


def timeline(receipts: Sequence[Receipt]) -> Table:
    """The last transitions, newest first, all on one scale."""
    scale = max((total_ms(receipt) for receipt in receipts), default=0.0)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("AT", "VERSION", "KIND", "BY"):
        table.add_column(header, no_wrap=True)
    table.add_column(f"0 .. {ms(scale)}" if scale else "", no_wrap=True)
    table.add_column("TOOK", justify="right", no_wrap=True)
    table.add_column("INHERITED", justify="right", no_wrap=True)
    for receipt in receipts:
        spans = [(start, end, mark) for _, start, end, mark in stages(receipt)]
        drawn = bar(spans, scale, BAR_COLUMNS) if spans else "no receipt"
        drawn = "failed" if receipt.get("error") else drawn
        table.add_row(
            shown(receipt.get("at")),
            moved(receipt),
            receipt["kind"],
            shown(receipt.get("by")),
            Text(drawn, style="red" if receipt.get("error") else "green"),
            ms(total_ms(receipt)) if spans else "-",
            shown(receipt.get("certifiedTokens", "-")),
        )
    return table

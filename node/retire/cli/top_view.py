"""What ``retire top`` draws: tables from the facts of the live page. Pure.

Names are what agents chose: control characters never reach the terminal. Must never ask anybody.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Facts = Mapping[str, Any]

# (stage, glyph, style): told apart without colour too.
STAGES: Final = (
    ("commit", "█", "blue"),
    ("unpublishable", "▓", "magenta"),
    ("fence", "▒", "yellow"),
    ("align", "░", "cyan"),
    ("resume", "▄", "green"),
)
_BAR_CELLS: Final = 36
_TRANSITIONS: Final = 12


def screen(facts: Facts, *, scopes: int) -> Group:
    """One look at a node; ``scopes``: rows of the table of scopes."""
    return Group(
        _headline(facts),
        Panel(_transitions(facts["transitions"]), title="Last transitions", title_align="left"),
        Panel(_pins(facts["pins"]), title="Pins by tenant", title_align="left"),
        Panel(_scopes(facts["scopes"], scopes), title="Scopes", title_align="left"),
    )


def name(text: object) -> Text:
    """A name as it is, but for what would move the cursor."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)))


def bar(stages_ms: Mapping[str, float], longest_ms: float, cells: int = _BAR_CELLS) -> Text:
    """Stages on one scale of ``cells`` characters for ``longest_ms``; | is UNPUBLISHABLE."""
    drawn = Text()
    known = sorted((stages_ms[s], g, style) for s, g, style in STAGES if s in stages_ms)
    end = known[-1][0] if known else 0.0
    point = stages_ms.get("unpublishable")
    for cell in range(cells):
        low, high = (longest_ms * edge / cells for edge in (cell, cell + 1))
        if point is not None and low <= point < high:
            drawn.append("|", "bold")
            continue
        if low >= end:
            break
        middle = min((low + high) / 2, end)
        glyph, style = next((g, s) for at, g, s in known if middle <= at)
        drawn.append(glyph, style)
    return drawn


def milliseconds(value: float | None) -> str:
    """Short, with its unit."""
    if value is None:
        return ""
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.1f} ms"


def _headline(facts: Facts) -> Text:
    node = facts["node"]
    state = Text("ready", "green") if node["ready"] else Text(node["not_ready_reason"], "yellow")
    if node["registry_lost"]:
        state = Text(f"registry lost: {node['registry_lost']}", "red")
    line = Text("Retire ", "bold")
    line.append_text(name(node["node"]))
    line.append("  ")
    line.append_text(state)
    lease = f"{node['lease_left_ms'] / 1000:.1f} s" if node["lease"] == "held" else node["lease"]
    line.append(
        f"  scopes {facts['scopes']['total']}  gates {node['gates']}  lease {lease}"
        f"  term {node['term']}"
    )
    return line


def _transitions(records: Sequence[Facts]) -> Table:
    shown = list(_told(records))[:_TRANSITIONS]
    longest = max((max(r["stages_ms"].values(), default=0.0) for _, r in shown if r), default=0.0)
    table = _table(("scope", "left"), ("tenant", "left"), ("version", "left"))
    table.add_column(_legend(longest), no_wrap=True)
    for title in ("unpublishable", "inherited"):
        table.add_column(title, justify="right", no_wrap=True)
    for record, receipt in shown:
        stages = receipt["stages_ms"] if receipt else {}
        kept = receipt and receipt["successor_request_id"]
        table.add_row(
            name(record["scope"]),
            name(record["tenant"]),
            f"{record['from_version']} > {record['to_version']}",
            bar(stages, longest) if stages else Text(record["kind"], "dim"),
            milliseconds(stages.get("unpublishable")),
            str(receipt["certified_tokens"]) if receipt and kept else "",
        )
    if not shown:
        table.add_row(Text("nothing was superseded yet", "dim"))
    return table


def _told(records: Sequence[Facts]) -> Iterator[tuple[Facts, Facts | None]]:
    """Each transition once with its newest receipt, newest first."""
    seen: set[tuple[str, ...]] = set()
    for record in records:
        what = (record["tenant"], record["scope"], record["to_version"])
        if not record["receipt_json"]:
            yield record, None
        elif what not in seen:
            seen.add(what)
            yield record, json.loads(record["receipt_json"])


def _legend(longest_ms: float) -> Text:
    line = Text()
    for stage, glyph, style in STAGES:
        line.append(f"{glyph}", style)
        line.append(f"{stage[:6]} ", "dim")
    return line.append(f"to {milliseconds(longest_ms)}", "dim") if longest_ms else line


def _pins(pins: Sequence[Facts]) -> Table:
    table = _table(
        ("tenant", "left"), ("pinned blocks", "right"), ("of this node's share", "right")
    )
    for pin in sorted(pins, key=lambda one: -one["pinned_blocks"])[:6]:
        granted = pin["granted_blocks"]
        share = "no quota" if granted is None else str(granted)
        table.add_row(name(pin["tenant"]), str(pin["pinned_blocks"]), share)
    if not pins:
        table.add_row(Text("nothing is pinned", "dim"))
    return table


def _scopes(scopes: Facts, limit: int) -> Table:
    table = _table(
        ("scope", "left"), ("tenant", "left"), ("version", "left"), ("phase", "left"),
        ("receipts", "right"), ("last used", "right"),
    )  # fmt: skip
    for scope in scopes["shown"][:limit]:
        phase = (
            "cancelled" if scope["cancelled"] else "paused" if scope["paused"] else scope["phase"]
        )
        table.add_row(
            name(scope["scope"]),
            name(scope["tenant"]),
            scope["version"],
            Text(phase, "green" if phase == "current" else "yellow"),
            str(scope["receipts"]),
            f"{scope['used_s_ago']:.0f} s ago",
        )
    more = scopes["total"] - min(limit, len(scopes["shown"]))
    if more > 0:
        table.add_row(Text(f"and {more} more", "dim"))
    if not scopes["total"]:
        table.add_row(Text("no scope", "dim"))
    return table


def _table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="dim")
    for title, justify in columns:
        table.add_column(title, justify=justify, overflow="ellipsis", no_wrap=True)
    return table

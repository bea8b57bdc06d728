"""``describe``: everything about one scope that a person wants to read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from retire_operator.kubectl.transitions import LEGEND, timeline
from retire_operator.kubectl.words import age, counted, shown

Body = Mapping[str, Any]


def describe(
    body: Body, events: Sequence[Body] | None, *, now_s: float, events_why: str = ""
) -> RenderableType:
    """``events`` None: they could not be read, because of ``events_why``."""
    status = body.get("status") or {}
    parts: list[RenderableType] = [_head(body, now_s)]
    parts += _section("Conditions", _conditions(status.get("conditions") or (), now_s))
    parts += _section("Participants", _participants(status.get("participants") or ()))
    receipts = status.get("receipts") or ()
    parts += _section("Transitions", timeline(receipts) if receipts else None)
    if receipts:
        parts.append(Padding(Text(LEGEND, style="dim"), (0, 0, 0, 2)))
    parts += _section("Events", _events(events or (), now_s), empty=events_why or "<none>")
    return Group(*parts)


def _section(title: str, table: Table | None, *, empty: str = "<none>") -> list[RenderableType]:
    if table is None or not table.row_count:
        return [Text(f"{title}:  {empty}")]
    return [Text(f"{title}:"), Padding(table, (0, 0, 0, 2))]


def _head(body: Body, now_s: float) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for label, value in _facts(body, now_s):
        table.add_row(f"{label}:", value)
    return table


def _facts(body: Body, now_s: float) -> Iterator[tuple[str, str]]:
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    yield "Name", meta["name"]
    yield "Namespace", meta["namespace"]
    yield "Tenant", status.get("tenant") or spec.get("tenant") or meta["namespace"]
    yield "Pool", (spec.get("poolRef") or {}).get("name") or "default"
    yield "Version", shown(status.get("version"))
    yield "Wanted epoch", str(spec.get("epoch", 0))
    yield "Phase", shown(status.get("phase"))
    if spec.get("parentRef"):
        yield "Parent", spec["parentRef"]["name"]
    if spec.get("onNewInput"):
        yield "On new input", spec["onNewInput"]
    yield "Contract", _contract(spec.get("contract") or {})
    if spec.get("quota"):
        yield "Quota", f"{spec['quota'].get('pinnedBlocks')} blocks asked"
    yield "Pinned", f"{status.get('pinnedBlocks', 0)} blocks"
    yield "Inherited", f"{status.get('inheritedTokens', 0)} tokens"
    yield "Context", _context(spec.get("context") or {})
    if status.get("prewarm"):
        yield "Pre-warmed", _prewarm(status["prewarm"])
    yield "Trace", shown(status.get("traceId"))
    yield "Age", age(meta.get("creationTimestamp"), now_s)


def _contract(spec: Mapping[str, Any]) -> str:
    kept = spec.get("retention") or {}
    words = [
        f"equivalence {spec.get('equivalence', 'exact')}",
        f"inherit {spec.get('inherit', 'certified')}",
        f"retention {kept.get('tier', 'hbm')} {kept.get('ttlSeconds', 30)} s",
    ]
    if spec.get("fenceBoundMs") is not None:
        words.append(f"fence within {spec['fenceBoundMs']} ms")
    return ", ".join(words)


def _context(spec: Mapping[str, Any]) -> str:
    model = f" for {spec['model']}" if spec.get("model") else ""
    inline = spec.get("inline")
    if inline is not None:
        messages = inline.get("messages")
        size = len(messages or inline.get("prompt", ""))
        what = counted(size, "message" if messages else "character")
        return f"inline, {what}{model}"
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if spec.get(field):
            return f"{kind} {spec[field]['name']} key {spec[field].get('key', 'context')}{model}"
    return "<none>"


def _prewarm(done: Mapping[str, Any]) -> str:
    return (
        f"{done.get('promptTokens', 0)} tokens under {done.get('version', '?')}"
        f" on {done.get('node', '?')}, {done.get('cachedTokens', 0)} of them were there before"
    )


def _conditions(rows: Sequence[Mapping[str, Any]], now_s: float) -> Table:
    table = _table("TYPE", "STATUS", "SINCE", "REASON")
    table.add_column("MESSAGE", overflow="fold")
    for row in rows:
        style = {"True": "green", "False": "red"}.get(str(row.get("status")), "yellow")
        table.add_row(
            row["type"],
            Text(str(row["status"]), style=style),
            age(row.get("lastTransitionTime"), now_s),
            row.get("reason", ""),
            row.get("message", ""),
        )
    return table


def _participants(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("NODE", "READY", "VERSION", "REQUESTS", "PINNED", "BOOT")
    for row in rows:
        table.add_row(
            row["node"],
            shown(row.get("ready")),
            shown(row.get("version")),
            str(row.get("requests", 0)),
            str(row.get("pinnedBlocks", 0)),
            shown(row.get("bootId")),
        )
    return table


def _events(rows: Sequence[Body], now_s: float) -> Table:
    table = _table("AGE", "TYPE", "REASON")
    table.add_column("MESSAGE", overflow="fold")
    for row in rows:
        count = int(row.get("count") or 1)
        since = age(row.get("lastTimestamp") or row.get("eventTime"), now_s)
        table.add_row(
            f"{since} (x{count})" if count > 1 else since,
            str(row.get("type", "")),
            str(row.get("reason", "")),
            str(row.get("message", "")).strip(),
        )
    return table


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header, no_wrap=True)
    return table

"""Lists of scopes: ``status`` as kubectl get shows them, ``top`` by what they pin. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from retire_operator.kubectl.words import age, bar, condition, shown

Body = Mapping[str, Any]
_BAR_COLUMNS: Final = 20
_PHASE_STYLE: Final = {
    "Active": "green",
    "Retiring": "yellow",
    "Paused": "yellow",
    "Cancelled": "dim",
    "Blocked": "red",
    "Degraded": "red",
}


def _table(*headers: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="")
    for header in headers:
        justify = "right" if header in right else "left"
        table.add_column(header, no_wrap=True, justify=justify)
    return table


def plain(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Rows under headers."""
    table = _table(*headers)
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    return table


def status_table(bodies: Sequence[Body], *, now_s: float, everywhere: bool = False) -> Table:
    """One row a scope, with the columns of ``kubectl get``."""
    first = ("NAMESPACE",) if everywhere else ()
    rest = ("NAME", "VERSION", "PHASE", "READY", "REASON", "INHERITED", "PINNED", "AGE")
    table = _table(*first, *rest)
    for body in bodies:
        meta, status, ready = body["metadata"], body.get("status") or {}, condition(body, "Ready")
        phase = shown(status.get("phase"))
        cells = (
            meta["name"],
            shown(status.get("version")),
            Text(phase, style=_PHASE_STYLE.get(phase, "")),
            shown(ready.get("status")),
            shown(ready.get("reason")),
            shown(status.get("inheritedTokens")),
            shown(status.get("pinnedBlocks")),
            age(meta.get("creationTimestamp"), now_s),
        )
        table.add_row(*((meta["namespace"],) if everywhere else ()), *cells)
    return table


@dataclass(frozen=True, slots=True)
class Usage:
    """What one scope uses now."""

    tenant: str
    namespace: str
    name: str
    version: str
    phase: str
    requests: int
    pinned_blocks: int
    asked_blocks: int | None  # of the tenant's quota; None: it asks for nothing


def usages(bodies: Sequence[Body]) -> list[Usage]:
    """The most pinned blocks first; then the most requests, then by name."""
    found = [_usage(body) for body in bodies]
    return sorted(found, key=lambda u: (-u.pinned_blocks, -u.requests, u.tenant, u.name))


def _usage(body: Body) -> Usage:
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    return Usage(
        tenant=status.get("tenant") or spec.get("tenant") or meta["namespace"],
        namespace=meta["namespace"],
        name=meta["name"],
        version=shown(status.get("version")),
        phase=shown(status.get("phase")),
        requests=sum(int(p.get("requests") or 0) for p in status.get("participants") or ()),
        pinned_blocks=int(status.get("pinnedBlocks") or 0),
        asked_blocks=(spec.get("quota") or {}).get("pinnedBlocks"),
    )


def top(bodies: Sequence[Body]) -> RenderableType:
    """Tenants with their sums, then every scope, both by pinned blocks."""
    rows = usages(bodies)
    if not rows:
        return Text("No ServingScopes found.")
    return Group(_tenants(rows), Text(""), _scopes(rows))


def _tenants(rows: Sequence[Usage]) -> Table:
    numbers = ("SCOPES", "REQUESTS", "PINNED", "ASKED")
    table = _table("TENANT", *numbers, "SHARE", right=numbers)
    sums: dict[str, list[Usage]] = {}
    for row in rows:
        sums.setdefault(row.tenant, []).append(row)
    whole = sum(row.pinned_blocks for row in rows)
    ranked = sorted(sums.items(), key=lambda kv: (-sum(r.pinned_blocks for r in kv[1]), kv[0]))
    for tenant, owned in ranked:
        pinned = sum(row.pinned_blocks for row in owned)
        asked = [row.asked_blocks for row in owned if row.asked_blocks is not None]
        table.add_row(
            tenant,
            str(len(owned)),
            str(sum(row.requests for row in owned)),
            str(pinned),
            str(sum(asked)) if asked else "-",
            Text(bar([(0, pinned, "█")], whole, _BAR_COLUMNS), style="cyan"),
        )
    return table


def _scopes(rows: Sequence[Usage]) -> Table:
    numbers = ("REQUESTS", "PINNED", "ASKED")
    table = _table("NAMESPACE", "NAME", "VERSION", "PHASE", *numbers, right=numbers)
    for row in rows:
        table.add_row(
            row.namespace,
            row.name,
            row.version,
            Text(row.phase, style=_PHASE_STYLE.get(row.phase, "")),
            str(row.requests),
            str(row.pinned_blocks),
            shown(row.asked_blocks) if row.asked_blocks is not None else "-",
        )
    return table

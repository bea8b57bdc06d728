"""Results of the commands: what a machine reads, what a person reads."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from retire_operator.kubectl import revisions, tables, transitions
from retire_operator.kubectl.cluster import Body
from retire_operator.kubectl.session import Session


def show_transition(
    session: Session, body: Body, kind: str, epoch: int | None, *, wait: bool
) -> None:
    """The receipt of what was asked for; without one, where the scope stands."""
    receipt = revisions.receipt_of(body, kind=kind, epoch=epoch) if wait else None
    meta, version = body["metadata"], revisions.status(body).get("version")
    name = f"{meta['namespace']}/{meta['name']}"
    machine = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "epoch": body["spec"]["epoch"],
        "version": version,
        "phase": revisions.status(body).get("phase"),
        "receipt": receipt,
    }
    if receipt is not None:
        session.show(machine, lambda: transitions.receipt_table(name, receipt))
    elif wait:
        session.show(machine, lambda: Text(f"{name} is at {version}; its receipt has not come"))
    else:
        asked = f"epoch {machine['epoch']}" if kind == "supersede" else kind
        session.show(machine, lambda: Text(f"{name}: {asked} is asked for"))


def show_phase(session: Session, body: Body) -> None:
    """Where the scope stands after a pause or resume."""
    meta, found = body["metadata"], revisions.status(body)
    machine = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "paused": bool(body["spec"].get("paused")),
        "phase": found.get("phase"),
        "version": found.get("version"),
    }
    text = f"{meta['namespace']}/{meta['name']} is {found.get('phase') or 'not looked at yet'}"
    session.show(machine, lambda: Text(f"{text} at {found.get('version') or 'no version'}"))


def listing(session: Session, bodies: list[Body], now_s: float) -> RenderableType:
    """``status`` of many scopes."""
    if bodies:
        return tables.status_table(bodies, now_s=now_s, everywhere=session.everywhere)
    where = "" if session.everywhere else f" in namespace {session.scopes.namespace!r}"
    return Text(f"No ServingScopes found{where}.")


def as_list(bodies: list[Body]) -> dict[str, Any]:
    """As kubectl writes a list."""
    return {"apiVersion": "v1", "kind": "List", "items": bodies}


def as_usages(bodies: list[Body]) -> list[dict[str, Any]]:
    """``top`` for a machine."""
    return [
        {
            "tenant": row.tenant,
            "namespace": row.namespace,
            "name": row.name,
            "version": row.version,
            "phase": row.phase,
            "requests": row.requests,
            "pinnedBlocks": row.pinned_blocks,
            "askedBlocks": row.asked_blocks,
        }
        for row in tables.usages(bodies)
    ]


def trace_table(rows: list[dict[str, Any]]) -> RenderableType:
    """``trace`` for a person."""
    return tables.plain(
        ("VERSION", "KIND", "AT", "TRACE"),
        [
            (row["toVersion"], row["kind"], row.get("at"), row.get("url") or row["traceId"])
            for row in rows
        ],
    )

"""What the live page and ``retire top`` show, as plain JSON values; made from the tables.

Pure but for the engines' answers about pins, which ``pins.py`` asks for. Must never change
anything, and must stay cheap: it runs in the loop that switches gates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.events import Admission
from retire.sidecar import convert
from retire.sidecar.views import status_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retire.sidecar.journal import Journal
    from retire.sidecar.parts import Parts
    from retire.sidecar.pb import node_pb2 as pb
    from retire.sidecar.scopes import Entry, Scopes

SCOPES_DEFAULT: Final = 100
SCOPES_MAX: Final = 1000
TRANSITIONS_MAX: Final = 60
_SCANNED_MAX: Final = 5000  # scopes and records looked at for one answer


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for. ``tenant`` "": every tenant; ``after``: newest record known, 0: none."""

    tenant: str = ""
    after: int = 0
    limit: int = SCOPES_DEFAULT
    match: str = ""  # part of a scope's name


def node_facts(parts: Parts, *, every_tenant: bool) -> dict[str, Any]:
    """The node now; counts of all tenants together only for who may see every tenant."""
    status = status_reply(parts)
    found: dict[str, Any] = {
        "node": status.node,
        "term": status.term,
        "ready": status.ready,
        "not_ready_reason": status.not_ready_reason,
        "registry_lost": status.registry_lost,
        "lease": status.lease,
        "lease_left_ms": round(status.lease_left_ms),
        "publish_lease_s": status.publish_lease_s,
        "gates": status.gates,
        "engines": [
            {
                "model": engine.model,
                "gates": engine.gates,
                "block_size": engine.block_size,
                "num_blocks": engine.num_blocks,
            }
            for engine in status.engines
        ],
    }
    if every_tenant:
        found |= {"scopes": status.scopes, "slots_free": status.slots_free}
    return found


def scope_facts(scopes: Scopes, query: Query, *, now_s: float) -> dict[str, Any]:
    """Scopes that match, last used first. ``total``: how many match, of those looked at."""
    found = [
        entry for entry in islice(scopes.newest_first(), _SCANNED_MAX) if _matches(entry, query)
    ]
    return {
        "total": len(found),
        "partial": len(scopes) > _SCANNED_MAX,
        "shown": [_scope(entry, now_s) for entry in found[: query.limit]],
    }


def transition_facts(journal: Journal, query: Query) -> list[dict[str, Any]]:
    """The newest records past ``after``, newest first; receipts as the JSON text they are kept."""
    records = islice(journal.newest_first(), _SCANNED_MAX)
    return [_transition(record) for record in islice(_newer(records, query), TRANSITIONS_MAX)]


def _matches(entry: Entry, query: Query) -> bool:
    key = entry.state.key
    return query.tenant in ("", key.tenant) and query.match in key.scope


def _scope(entry: Entry, now_s: float) -> dict[str, Any]:
    state = entry.state
    return {
        "tenant": state.key.tenant,
        "scope": state.key.scope,
        "version": str(state.version),
        "phase": state.phase.value,
        "paused": state.admission is Admission.PAUSED,
        "cancelled": state.admission is Admission.CANCELLED,
        "parent": entry.parent,
        "on_new_input": entry.policy.value if entry.policy else None,
        "receipts": len(entry.receipts or ()),
        "used_s_ago": round(max(0.0, now_s - entry.last_seen_s), 1),
    }


def _newer(records: Iterator[pb.TransitionRecord], query: Query) -> Iterator[pb.TransitionRecord]:
    for record in records:
        if record.sequence <= query.after:
            return
        if query.tenant in ("", record.key.tenant) and record.kind != "register":
            yield record


def _transition(record: pb.TransitionRecord) -> dict[str, Any]:
    return {
        "sequence": record.sequence,
        "kind": record.kind,
        "tenant": record.key.tenant,
        "scope": record.key.scope,
        "from_version": str(convert.version_from(getattr(record, "from"))),
        "to_version": str(convert.version_from(record.to)),
        "at_unix_s": record.at_unix_s,
        "receipt_json": record.receipt_json,
    }

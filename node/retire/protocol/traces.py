"""The events that led to a violation, out of a whole history, as lines that a person can read.

Pure. What is shown: the record that broke the rule, and before it the changes of its scope, the
work of its version, and whatever touched the same blocks, gate, consumer or key. Imports nothing
outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from retire.protocol.history import (
    STAGES,
    Acknowledged,
    CommitMade,
    Delivered,
    NodeRestarted,
    PinReleased,
    PinTaken,
    Published,
    ReceiptGiven,
    Record,
    RegistryRebuilt,
    Submitted,
    VersionSeen,
    WritersClosed,
)
from retire.protocol.invariants import Violation
from retire.protocol.versions import ScopeKey, Version

EVENTS_SHOWN: Final = 24
BLOCKS_SHOWN: Final = 12
_CHANGES: Final = (CommitMade, Acknowledged, ReceiptGiven, WritersClosed)
_ABOUT_PAGES: Final = ("C2.", "C3.", "C6.")


def trace_of(history: Sequence[Record], violation: Violation) -> list[int]:
    """Indices of the records that led to it, oldest first; the last one broke the rule.

    At the end of a history, where no single record did, it ends with what is still open.
    """
    last = min(violation.index, len(history) - 1)
    by_end = violation.index > last
    return [
        i
        for i in range(last + 1)
        if (i == last and not by_end) or _leads(history[i], history[last], violation)
    ]


def explain(
    history: Sequence[Record],
    violation: Violation,
    *,
    place: Callable[[int], str] = str,
    shown: int = EVENTS_SHOWN,
) -> str:
    """The rule, and its trace: when (ms before the end), stage, what, of whom, which blocks."""
    trace = trace_of(history, violation)
    lines = [f"{violation.name}: {violation.message}"]
    if len(trace) > shown:
        lines.append(f"  ... {len(trace) - shown} earlier events of it are not shown")
    end_ns = history[trace[-1]].at_ns if trace else 0
    for i in trace[-shown:]:
        broke = "  <- breaks it" if i == violation.index else ""
        lines.append(f"  {_line(history[i], end_ns)}  [{place(i)}]{broke}")
    if violation.index >= len(history):
        lines.append("  the history ends here")
    return "\n".join(lines)


def _leads(record: Record, broke: Record, violation: Violation) -> bool:
    if violation.subject is not None:
        return _of_version(record, *violation.subject)
    if isinstance(broke, RegistryRebuilt):
        return isinstance(record, RegistryRebuilt) and record.tenant == broke.tenant
    if violation.name == "C6.idle":
        return isinstance(record, PinTaken | PinReleased) and _node(record) == _node(broke)
    if isinstance(record, NodeRestarted):
        return record.node == _node(broke)
    about_pages = violation.name.startswith(_ABOUT_PAGES)
    if about_pages and _node(record) == _node(broke) and _blocks(record) & _blocks(broke):
        return True  # whoever it was
    if isinstance(record, RegistryRebuilt):
        key = _key(broke)
        return key is not None and record.tenant == key.tenant
    return _key(record) == _key(broke) and _same_matter(record, broke)


def _same_matter(record: Record, broke: Record) -> bool:
    """Of one scope: its changes always; work of its own kind only where it is the same."""
    if isinstance(record, _CHANGES):
        return not isinstance(record, WritersClosed) or record.node == _node(broke)
    if isinstance(record, VersionSeen):
        return not isinstance(broke, VersionSeen) or record.observer == broke.observer
    if isinstance(record, Delivered):
        return isinstance(broke, Delivered) and record.consumer == broke.consumer
    if isinstance(record, Published):
        return isinstance(broke, Published | ReceiptGiven) and _told(record, broke)
    if isinstance(record, Submitted):
        return getattr(broke, "request_id", record.request_id) == record.request_id
    return not _blocks(record)


def _told(record: Published, broke: Published | ReceiptGiven) -> bool:
    if isinstance(broke, Published):
        return record.request_id == broke.request_id
    return record.request_id in {request.request_id for request in broke.receipt.requests}


def _of_version(record: Record, key: ScopeKey, version: Version) -> bool:
    if _key(record) != key:
        return False
    if isinstance(record, CommitMade):
        return version in (record.from_version, record.to_version)
    return getattr(record, "version", None) == version and not _blocks(record)


def _key(record: Record) -> ScopeKey | None:
    return getattr(record, "key", None)


def _node(record: Record) -> str | None:
    return getattr(record, "node", None)


def _blocks(record: Record) -> set[int]:
    return set(getattr(record, "blocks", ()))


def _line(record: Record, end_ns: int) -> str:
    kind = type(record)
    stage = STAGES[kind].value if kind in STAGES else "-"
    ahead_ms = (record.at_ns - end_ns) / 1e6
    return f"{ahead_ms:+10.3f} ms  {stage:<8}{kind.__name__:<18}{_subject(record)}"


def _subject(record: Record) -> str:
    if isinstance(record, CommitMade):
        what = f"{record.change.value} {record.from_version} -> {record.to_version}"
    elif isinstance(record, ReceiptGiven):
        receipt = record.receipt
        what = (
            f"{receipt.from_version} -> {receipt.to_version} certified {receipt.certified_tokens}"
        )
    else:
        what = str(getattr(record, "version", getattr(record, "to_version", "")))
    parts = [str(_key(record) or getattr(record, "tenant", "")), what]
    for name in ("node", "request_id", "gate", "observer", "consumer", "term"):
        value = getattr(record, name, None)
        parts += [f"{name}={value}"] if value is not None else []
    for name in ("index", "generation", "tokens", "quota_left"):
        value = getattr(record, name, None)
        parts += [f"{name}={value}"] if value is not None else []
    return " ".join([*(part for part in parts if part), *_shown_blocks(record)])


def _shown_blocks(record: Record) -> list[str]:
    blocks = sorted(_blocks(record))
    if not blocks:
        return []
    more = f" and {len(blocks) - BLOCKS_SHOWN} more" if len(blocks) > BLOCKS_SHOWN else ""
    return [f"blocks {', '.join(map(str, blocks[:BLOCKS_SHOWN]))}{more}"]

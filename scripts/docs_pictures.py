"""The pictures of "how it works": the state machine of ``step``, and one recorded SUPERSEDE.

The first is read off the production code (``retire.protocol.edges``), the second off
``docs/pictures/history.ndjson``, which ``scripts/docs_history.py`` records on a real stack. Owns
places and colours; must never add an edge or an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import FancyArrowPatch

from bench import plots
from retire.protocol.edges import edges
from retire.protocol.history import (
    STAGES,
    Acknowledged,
    Adopted,
    CertificateIssued,
    CommitMade,
    Freed,
    PinReleased,
    PinTaken,
    Published,
    ReceiptGiven,
    Record,
    WritersClosed,
)
from retire.protocol.state import Phase
from retire.telemetry.recorded import read

HISTORY = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "history.ndjson"
# Where each phase stands: the five stages from left to right, what is idle on the left.
PLACES = {
    Phase.UNKNOWN: (0.0, 1.0),
    Phase.CURRENT: (1.6, 1.0),
    Phase.PAUSED: (1.6, -0.9),
    Phase.ADVANCING: (3.4, 1.0),
    Phase.FENCING: (5.0, 1.0),
    Phase.ALIGNING: (6.6, 1.0),
    Phase.RESUMING: (8.2, 1.0),
    Phase.RECLAIMING: (9.8, 1.0),
    Phase.CANCELLED: (9.8, -0.9),
}
Edge = tuple[Phase, Phase]
# The way of one undisturbed change, and pause and resume: drawn strong, with their events.
USUAL: Sequence[tuple[Edge, str]] = (
    ((Phase.UNKNOWN, Phase.CURRENT), "Registered"),
    ((Phase.CURRENT, Phase.ADVANCING), "Committed supersede"),
    ((Phase.ADVANCING, Phase.FENCING), "GateAcked"),
    ((Phase.FENCING, Phase.ALIGNING), "FenceReceipt"),
    ((Phase.ALIGNING, Phase.RESUMING), "Certified"),
    ((Phase.RESUMING, Phase.RECLAIMING), "SuccessorAdmitted"),
    ((Phase.RECLAIMING, Phase.CANCELLED), "Reclaimed"),
    ((Phase.RECLAIMING, Phase.CURRENT), "Reclaimed"),
    ((Phase.CURRENT, Phase.PAUSED), "Committed pause"),
    ((Phase.PAUSED, Phase.CURRENT), "Committed resume"),
)
LABEL = {
    (Phase.RECLAIMING, Phase.CANCELLED): "Reclaimed\n(of a cancel)",
    (Phase.CURRENT, Phase.PAUSED): "Committed\npause",
    (Phase.PAUSED, Phase.CURRENT): "Committed\nresume",
    (Phase.CURRENT, Phase.ADVANCING): "Committed\nsupersede",
    (Phase.RESUMING, Phase.RECLAIMING): "Successor-\nAdmitted",
    (Phase.FENCING, Phase.ALIGNING): "Fence-\nReceipt",
    (Phase.ADVANCING, Phase.FENCING): "last\nGateAcked",
}


def draw(folder: Path) -> list[Path]:
    """Both pictures."""
    made = [state_machine(folder / "state-machine.svg")]
    if HISTORY.exists():
        made.append(timeline(read(HISTORY), folder / "timeline.svg"))
    return made


# --- the state machine ---------------------------------------------------------------------------


def moves() -> dict[Edge, set[str]]:
    """Every move of ``step`` from a phase to another, and the events that make it."""
    found: dict[Edge, set[str]] = {}
    for before, event, after in edges():
        if before != after:
            found.setdefault((before, after), set()).add(event)
    return found


def state_machine(path: Path) -> Path:
    """Strong: one undisturbed change. Pale: every other move that the code has."""
    found, usual = moves(), dict(USUAL)
    for edge, event in USUAL:
        assert event in found[edge], f"{event} no longer leads along {edge}"
    made, (axes,) = plots.figure(1, width=9.2, height=3.6)
    for edge in sorted(found, key=lambda e: (e[0].value, e[1].value)):
        _arrow(axes, edge, strong=edge in usual)
    for phase, (x, y) in PLACES.items():
        box = {"boxstyle": "round,pad=0.45", "fc": "white", "ec": plots.INK, "lw": 1.2}
        axes.text(x, y, phase.value, ha="center", va="center", fontsize=8.5, bbox=box, zorder=5)
    for edge, event in USUAL:
        _label(axes, edge, LABEL.get(edge, event))
    axes.set_xlim(-0.8, 10.9)
    axes.set_ylim(-1.5, 2.7)
    axes.axis("off")
    note = f"{len(found)} moves between phases, read off step(); strong: one undisturbed change"
    return plots.save(made, path, note=note)


def _arrow(axes: Any, edge: Edge, *, strong: bool) -> None:
    (x0, y0), (x1, y1) = PLACES[edge[0]], PLACES[edge[1]]
    near = abs(x1 - x0) < 2 and y0 == y1
    bend = 0.0 if near and x1 > x0 else -0.28 if x1 > x0 else -0.3
    if x0 == x1:
        bend = 0.35
    style = {"color": plots.OURS, "lw": 1.6, "zorder": 4} if strong else {}
    style = style or {"color": "#BDBDBD", "lw": 0.8, "zorder": 2}
    arrow = FancyArrowPatch(
        (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=9, shrinkA=24, shrinkB=24,
        connectionstyle=f"arc3,rad={bend}", **style,
    )  # fmt: skip
    axes.add_patch(arrow)


def _label(axes: Any, edge: Edge, text: str) -> None:
    (x0, y0), (x1, y1) = PLACES[edge[0]], PLACES[edge[1]]
    x, y, align = (x0 + x1) / 2, (y0 + y1) / 2 + 0.42, "center"
    if x0 == x1:
        side = 1 if y1 > y0 else -1
        x, y, align = x0 + 0.45 * side, (y0 + y1) / 2, "left" if side > 0 else "right"
    elif x1 < x0:
        y = -0.58
    axes.text(
        x, y, text, ha=align, va="center", fontsize=7, color=plots.OURS, zorder=6,
        linespacing=0.95, bbox={"fc": "white", "ec": "none", "pad": 0.6, "alpha": 0.85},
    )  # fmt: skip


# --- one recorded SUPERSEDE ----------------------------------------------------------------------

OLD, NEW = "old version publishes", "successor publishes"
_POINTS: dict[type[Record], str] = {
    CommitMade: "COMMIT",
    Acknowledged: "UNPUBLISHABLE",
    WritersClosed: "writers closed",
    PinTaken: "prefix pinned",
    CertificateIssued: "certificate",
    Adopted: "prefix adopted",
    ReceiptGiven: "receipt",
    PinReleased: "pin released",
    Freed: "rest freed",
}
BEFORE_MS = 60.0  # of the old answer


def commit_of(records: Iterable[Record]) -> CommitMade:
    """The change of version that the picture is about: the first."""
    found = (r for r in records if isinstance(r, CommitMade) and r.change.moves_version)
    return next(found)


def events(records: Sequence[Record]) -> list[tuple[float, str]]:
    """(ms since COMMIT, row), of the scope that changed: each token, each point once."""
    commit = commit_of(records)
    found: list[tuple[float, str]] = []
    for record in records:
        if getattr(record, "key", None) != commit.key:
            continue
        at_ms = (record.at_ns - commit.at_ns) / 1e6
        if isinstance(record, Published):
            found.append((at_ms, OLD if record.version < commit.to_version else NEW))
        elif type(record) in _POINTS and at_ms >= 0:
            row = f"{STAGES[type(record)].name}: {_POINTS[type(record)]}"
            if all(row != one for _, one in found):
                found.append((at_ms, row))
    return sorted(found)


def timeline(records: Sequence[Record], path: Path) -> Path:
    """Tokens as ticks, points of the transition as dots; COMMIT is 0."""
    found, commit = events(records), commit_of(records)
    rows = [OLD, *dict.fromkeys(row for _, row in found if row not in (OLD, NEW)), NEW]
    made, (axes,) = plots.figure(1, width=9.2, height=3.8)
    for at_ms, row in found:
        y = len(rows) - 1 - rows.index(row)
        if row in (OLD, NEW):
            color = plots.NATIVE if row == OLD else plots.OURS
            axes.plot([at_ms, at_ms], [y - 0.3, y + 0.3], color=color, lw=1.4)
            continue
        axes.plot([at_ms], [y], "o", color=plots.INK, ms=4.5)
        axes.text(at_ms, y, f"   {at_ms:.1f} ms", fontsize=7.5, va="center")
    axes.axvline(0, color="#BDBDBD", lw=0.8, zorder=1)
    axes.set_yticks(range(len(rows)), rows[::-1])
    axes.set_xlim(left=-BEFORE_MS)
    axes.set_xlabel("ms since COMMIT")
    note = (
        f"recorded on a CPU with a tiny model; {commit.from_version} to {commit.to_version}; "
        "a tick is a token that was handed to the transport"
    )
    return plots.save(made, path, note=note)

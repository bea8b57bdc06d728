"""Small pieces of text: ages, milliseconds, bars. Pure; time comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

NONE: Final = "<none>"
_STEPS: Final = ((365 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_FINE: Final = {"m": ("s", 1, 10), "h": ("m", 60, 8), "d": ("h", 3600, 8)}  # as kubectl shows it


def age(since: str | None, now_s: float) -> str:
    """How long ago an RFC 3339 time was, as kubectl writes it: 45s, 3m20s, 5h, 12d."""
    if not since:
        return "<unknown>"
    left = max(0, int(now_s - datetime.fromisoformat(since).timestamp()))
    for size, unit in _STEPS:
        if left >= size or unit == "s":
            whole, rest = divmod(left, size)
            fine, fine_size, below = _FINE.get(unit, ("", 1, 0))
            more = rest // fine_size if whole < below else 0
            return f"{whole}{unit}" + (f"{more}{fine}" if more else "")
    raise AssertionError(left)


def ms(value: float | None) -> str:
    """Milliseconds with as many digits as say something."""
    if value is None:
        return "-"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} ms"


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(value: Any) -> str:
    """A cell of a table."""
    return NONE if value in (None, "") else str(value)


def bar(spans: Sequence[tuple[float, float, str]], scale: float, width: int) -> str:
    """Spans (from, to, character) drawn in ``width`` columns; ``scale`` is the whole width.

    Each span that is not empty is at least one column wide, so that nothing that took time is
    unseen.
    """
    cells = [" "] * width
    at = 0
    for start, end, mark in spans:
        if end <= start or scale <= 0:
            continue
        first = max(at, round(start / scale * width))
        last = min(width, max(first + 1, round(end / scale * width)))
        first = min(first, width - 1)
        for cell in range(first, last):
            cells[cell] = mark
        at = last
    return "".join(cells).rstrip()


def condition(body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty when there is none."""
    rows = (body.get("status") or {}).get("conditions") or ()
    return next((row for row in rows if row.get("type") == kind), {})

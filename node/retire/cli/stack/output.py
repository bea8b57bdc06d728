"""One readable stream out of several processes: ``[engine] ...`` lines, or JSON objects.

Owns how the stack's log looks. Must never start or signal a process.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

TAIL_LINES: Final = 20
_PROCESS: Final = re.compile(r"\((\w+ pid=\d+)\) ")
SUPERVISOR: Final = "retire"
_COLORS: Final = {"retire": "1;37", "registry": "35", "sidecar": "36", "engine": "32"}


class LineSink(Protocol):
    """Where lines go: ``source`` is the child's name, ``line`` has no line end."""

    def __call__(self, source: str, line: str) -> None:
        """Show one line."""
        ...


class PlainSink:
    """``[source] line``, coloured on a terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdout
        self._color = self._stream.isatty()

    def __call__(self, source: str, line: str) -> None:
        """Show one line."""
        head = f"[{source}]".ljust(10)
        if self._color:
            head = f"\x1b[{_COLORS.get(source, '0')}m{head}\x1b[0m"
        self._stream.write(f"{head} {line}\n")
        self._stream.flush()


class JsonSink:
    """One JSON object a line; a child's own JSON line is nested, not quoted."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdout

    def __call__(self, source: str, line: str) -> None:
        """Show one line."""
        body: dict[str, object] = {"time": round(time.time(), 3), "source": source}
        process, rest = _split(line)
        nested = _json_object(rest)
        if nested is None:
            body["message"] = line
        else:
            body |= ({"process": process} if process else {}) | {"record": nested}
        self._stream.write(json.dumps(body, separators=(",", ":")) + "\n")
        self._stream.flush()


class Tail:
    """The last lines of one child, for the message that explains its death."""

    def __init__(self, lines: int = TAIL_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=lines)

    def add(self, line: str) -> None:
        """Remember a line."""
        self._lines.append(line)

    def lines(self) -> Sequence[str]:
        """Oldest first."""
        return tuple(self._lines)


def _split(line: str) -> tuple[str, str]:
    """vLLM writes ``(APIServer pid=7) `` before every line of its processes."""
    found = _PROCESS.match(line)
    return (found[1], line[found.end() :]) if found else ("", line)


def _json_object(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None

"""Files that somebody else replaces while this process runs: certificates, tokens.

Says whether they are others than before. Must never read their content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_Mark = tuple[tuple[int, int, int] | None, ...]


class Watched:
    """A set of files and how they were when they were last marked."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._marked: _Mark = ()

    def changed(self) -> bool:
        """Whether a file is another than at the last mark (a Secret's volume swaps a link)."""
        return self._now() != self._marked

    def mark(self) -> None:
        """Take the files as they are for known. Before reading: a later change is then seen."""
        self._marked = self._now()

    def _now(self) -> _Mark:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

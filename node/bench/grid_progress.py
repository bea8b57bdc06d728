"""Where the engine is with one tenant's work, read from the history it records as it goes.

A record is written before the step it speaks of goes on, so a reader can catch the engine inside a
step. Owns that observation. Must never judge it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """Of the newest version of a tenant's only scope."""

    submitted: int = 0  # requests that reached the engine
    allocated: int = 0  # KV blocks
    chunks: int = 0  # steps that allocated some: prefill chunks, for blocks no larger than those
    written: int = 0  # steps whose writes are done
    commits: int = 0  # COMMITs of the scope
    acknowledged: int = 0  # UNPUBLISHABLE reached


class HistoryTail:
    """The records that a stack appends to its history, of one tenant, since this was made."""

    def __init__(self, path: Path, tenant: str) -> None:
        self._mark = f'"tenant":"{tenant}"'.encode()
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""
        self._counts: Counter[str] = Counter()
        self._blocks = 0
        self.records: list[dict[str, Any]] = []

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self) -> Progress:
        """Progress now."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            if self._mark in line:
                self._take(json.loads(line))
        count = self._counts
        return Progress(
            submitted=count["Submitted"],
            allocated=self._blocks,
            chunks=count["Allocated"],
            written=count["Wrote"],
            commits=count["CommitMade"],
            acknowledged=count["Acknowledged"],
        )

    def _take(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        kind = record["record"]
        self._counts[kind] += 1
        if kind == "Allocated":
            self._blocks += len(record["blocks"])

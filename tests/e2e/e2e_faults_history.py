"""Reads a history while it is written: commits, acknowledgements and frames of one scope.

Owns its place in the file. Must never judge: ``ClusterHistory`` does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeVar

from e2e.waiting import wait_for
from retire.protocol.events import Change
from retire.protocol.history import (
    Acknowledged,
    CommitMade,
    Published,
    RegistryRebuilt,
    record_from_dict,
)
from retire.protocol.versions import ScopeKey, Version

if TYPE_CHECKING:
    from pathlib import Path

    from retire.protocol.history import Record

R = TypeVar("R", CommitMade, Acknowledged, Published, RegistryRebuilt)
_KEPT: Final = tuple(f'"{kind.__name__}"'.encode() for kind in R.__constraints__)


class Tail:
    """Every record of interest since the file was made, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._records: list[Record] = []

    def of(self, kind: type[R], key: ScopeKey | None = None) -> list[R]:
        """Records of a kind, of a scope, in the order of time."""
        self._read()
        found = [
            one
            for one in self._records
            if isinstance(one, kind) and (key is None or getattr(one, "key", None) == key)
        ]
        return sorted(found, key=lambda one: one.at_ns)

    def superseded(self, key: ScopeKey) -> list[Version]:
        """Where the scope's SUPERSEDEs led, in their order."""
        made = [one for one in self.of(CommitMade, key) if one.change is Change.SUPERSEDE]
        return [one.to_version for one in made]

    def committed(self, key: ScopeKey, version: Version, limit_s: float = 60.0) -> CommitMade:
        """Wait for the COMMIT of a version."""

        def made() -> list[CommitMade]:
            return [one for one in self.of(CommitMade, key) if one.to_version == version]

        return wait_for(f"COMMIT of {key} {version}", made, limit_s)[0]

    def acknowledged(self, key: ScopeKey, version: Version, limit_s: float = 60.0) -> Acknowledged:
        """Wait for UNPUBLISHABLE of all below a version."""

        def told() -> list[Acknowledged]:
            return [one for one in self.of(Acknowledged, key) if one.version >= version]

        return wait_for(f"UNPUBLISHABLE below {key} {version}", told, limit_s)[0]

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # the rest is still to be written
                self._offset += len(line)
                if any(kind in line for kind in _KEPT):
                    self._records.append(record_from_dict(json.loads(line)))

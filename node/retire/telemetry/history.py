"""The NDJSON history recorder: what happened, for ``protocol.invariants`` to judge.

Off unless ``RETIRE_HISTORY`` names a file. Several processes may append to one file: each record is
one ``write`` of one line. Must never import the sidecar, the engine or vLLM.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from retire.protocol.errors import InvalidField
from retire.protocol.history import record_from_dict, record_to_dict
from retire.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.protocol.history import Record


class History:
    """Appends records. ``on`` is checked by callers, so that an absent history costs one load."""

    __slots__ = ("_fd", "on")

    def __init__(self, path: Path | None = None) -> None:
        self.on = path is not None
        self._fd = -1 if path is None else _open(path)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> History:
        """Read ``RETIRE_HISTORY``; raises InvalidField when the file cannot be appended to."""
        value = (os.environ if env is None else env).get(names.HISTORY_ENV)
        return cls(Path(value) if value else None)

    def write(self, record: Record) -> None:
        """Append one record; nothing when the history is off."""
        if self.on:
            line = json.dumps(record_to_dict(record), separators=(",", ":")) + "\n"
            os.write(self._fd, line.encode())

    def close(self) -> None:
        """Close the file."""
        if self.on:
            self.on = False
            os.close(self._fd)


def read(path: Path) -> list[Record]:
    """Every record of a history file, in the order of its lines."""
    with path.open(encoding="utf-8") as lines:
        return [record_from_dict(json.loads(line)) for line in lines if line.strip()]


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        must_be = f"a file that can be appended to ({error.strerror})"
        raise InvalidField(names.HISTORY_ENV, str(path), must_be) from error

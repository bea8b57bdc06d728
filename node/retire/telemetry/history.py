"""The NDJSON history recorder: what happened, for ``protocol.invariants`` to judge.

Off unless ``RETIRE_HISTORY`` names a file. Several processes may append to one file: each record is
one ``write`` of one line. Must never import the sidecar, the engine or vLLM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import InvalidField
from retire.protocol.history import HistoryOpened, record_to_dict
from retire.telemetry import names
from retire.telemetry.recorded import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.protocol.history import Record

__all__ = ["History", "read"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # the monotonic clock is one boot's


class History:
    """Appends records. ``on`` is checked by callers, so that an absent history costs one load."""

    __slots__ = ("_fd", "on")

    def __init__(self, path: Path | None = None) -> None:
        self.on = path is not None
        self._fd = -1 if path is None else _open(path)
        if self.on:
            self.write(_opened())

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


def _opened() -> HistoryOpened:
    writer = f"{Path(sys.argv[0]).name or 'python'}[{os.getpid()}]"
    host = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return HistoryOpened(time.monotonic_ns(), time.time_ns(), host, writer)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        must_be = f"a file that can be appended to ({error.strerror})"
        raise InvalidField(names.HISTORY_ENV, str(path), must_be) from error

"""One history of a whole cluster: every container appends to one file, judged as `retire check`.

All pods share the machine's monotonic clock, so their records have one order. Of the product it may
import ``retire.protocol`` and the reader of histories, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from retire.protocol import invariants
from retire.protocol.traces import explain
from retire.telemetry.recorded import read_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from retire.protocol.history import Record
    from retire.protocol.invariants import Violation

INSIDE: Final = "/var/log/retire/history.ndjson"
_SHOWN: Final = 3


class BrokenHistory(AssertionError):
    """Rules were broken; the first ones are in the text, as ``retire check`` shows them."""


class ClusterHistory:
    """A file that containers of any user may append to; give ``binds`` and ``env`` to images."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        path.chmod(0o666)

    @property
    def binds(self) -> dict[str, str]:
        """For ``Image.binds``."""
        return {str(self.path): INSIDE}

    @property
    def env(self) -> dict[str, str]:
        """For ``Image.env``."""
        return {"RETIRE_HISTORY": INSIDE}

    def records(self) -> list[Record]:
        """Everything so far, in the order of time."""
        return list(read_all([self.path]).records)

    def violations(self) -> Sequence[Violation]:
        """Every rule that is broken."""
        return invariants.check(self.records())

    def judge(self, *, at_least: int = 1) -> int:
        """The number of records; BrokenHistory when a rule is broken or too few are there."""
        records = self.records()
        if len(records) < at_least:
            raise BrokenHistory(f"{len(records)} records in {self.path}, expected {at_least}")
        if broken := invariants.check(records):
            lines = [explain(records, one) for one in broken[:_SHOWN]]
            raise BrokenHistory("\n".join([f"{len(broken)} violations", *lines]))
        return len(records)

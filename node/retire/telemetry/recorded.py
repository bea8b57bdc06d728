"""Reads recorded histories: lines become records, several files one history in the order of time.

Owns how a bad line is reported and how the clocks of several hosts are brought together. Must never
judge (``protocol.invariants`` does), nor import the sidecar, the engine or vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from retire.protocol.errors import InvalidField
from retire.protocol.history import CertificateIssued, HistoryOpened, Record, record_from_dict

_STEP: Final = 4096  # lines between two calls of ``progress``
_SHOWN: Final = 80
_CUT = "the process that wrote it was killed in the middle of it: delete this line"
_NO_JSON = "not a record of this program: delete it, or give the file it came from"

Progress = Callable[[Path, int, int], None]
"""Called with a file, the bytes of it that were read, and its size."""


class BadLine(InvalidField):
    """A line that is no record. The message names file, line and what to do."""

    def __init__(self, place: Place, fault: str, fix: str) -> None:
        Exception.__init__(self, f"{place}: {fault}; {fix}")
        self.field = str(place)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One history, and where each record of it came from. ``hosts``: clocks that were merged."""

    records: Sequence[Record]
    places: Sequence[Place]
    hosts: int


def read(path: Path) -> list[Record]:
    """Every record of a history file, in the order of its lines."""
    return [record for _, record in _lines(path, None)]


def read_all(paths: Iterable[Path], progress: Progress | None = None) -> Recorded:
    """Files of several processes or nodes as one history, by time; ties keep their order.

    Files of one host share its monotonic clock. Those of several are merged by wall clock, which
    is as good as the hosts' clocks agree. Raises BadLine, and InvalidField for a file that cannot
    be read or that does not say whose clock it is when another's is read too.
    """
    files = [list(_lines(path, progress)) for path in dict.fromkeys(paths)]
    clocks = [_clock(file) for file in files]
    hosts = {clock.host for clock in clocks if clock is not None}
    if len(hosts) > 1:
        files = [_by_wall_clock(*one) for one in zip(files, clocks, strict=True)]
    found = sorted((at for file in files for at in file), key=lambda at: at[1].at_ns)
    return Recorded([r for _, r in found], [p for p, _ in found], max(1, len(hosts)))


def _lines(path: Path, progress: Progress | None) -> Iterator[tuple[Place, Record]]:
    try:
        size, done = path.stat().st_size, 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                done += len(line)
                if progress is not None and (number % _STEP == 0 or done == size):
                    progress(path, done, size)
                if line.strip():
                    place = Place(path, number)
                    yield place, _record(place, line)
    except OSError as error:
        must_be = f"a history file that can be read ({error.strerror})"
        raise InvalidField("FILE", str(path), must_be) from error


def _record(place: Place, line: bytes) -> Record:
    try:
        return record_from_dict(json.loads(line))
    except InvalidField as error:
        raise BadLine(place, str(error), _NO_JSON) from None
    except (ValueError, RecursionError) as error:
        fix = _NO_JSON if line.endswith(b"\n") else _CUT
        shown = line[:_SHOWN].decode("utf-8", "replace").rstrip("\n")
        raise BadLine(place, f"not JSON ({error}): {shown!r}", fix) from None


def _clock(file: list[tuple[Place, Record]]) -> HistoryOpened | None:
    return next((record for _, record in file if isinstance(record, HistoryOpened)), None)


def _by_wall_clock(
    file: list[tuple[Place, Record]], clock: HistoryOpened | None
) -> list[tuple[Place, Record]]:
    if not file:
        return file
    if clock is None:
        must_be = "a history that says whose clock it is (a HistoryOpened line), or be read alone"
        raise InvalidField("FILE", str(file[0][0].path), must_be)
    ahead_ns = clock.wall_ns - clock.at_ns
    return [(place, _moved(record, ahead_ns)) for place, record in file]


def _moved(record: Record, ahead_ns: int) -> Record:
    if isinstance(record, CertificateIssued):
        record = replace(record, expires_ns=record.expires_ns + ahead_ns)
    return replace(record, at_ns=record.at_ns + ahead_ns)

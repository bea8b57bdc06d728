"""``retire check``: histories from files, planted faults, bad lines, several hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from retire.cli.app import app
from retire.protocol.events import Change
from retire.protocol.history import (
    Acknowledged,
    Allocated,
    CommitMade,
    HistoryOpened,
    Published,
    Wrote,
    record_to_dict,
)
from retire.protocol.versions import ScopeKey, Version
from retire.telemetry.history import History
from retire.telemetry.recorded import read, read_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retire.protocol.history import Record

K = ScopeKey("acme", "plan")
V0, V1 = Version(1, 0), Version(1, 1)
MOVE = CommitMade(20, K, Change.SUPERSEDE, V0, V1, "k1", 7)
ACK = Acknowledged(30, K, V1)


def publish(at: int, index: int = 0) -> Published:
    return Published(at, K, V0, "r", "n/api", index, 6)


GOOD: list[Record] = [publish(10), MOVE, ACK]
LATE = [*GOOD, publish(40, 1)]


def write(path: Path, records: Iterable[Record], tail: str = "") -> Path:
    lines = [json.dumps(record_to_dict(record)) + "\n" for record in records]
    path.write_text("".join(lines) + tail)
    return path


def run(*args: str | Path) -> tuple[int, str]:
    """Exit status and all output of the command, as a shell gets it."""
    done = subprocess.run(
        [sys.executable, "-m", "retire.cli", "check", *map(str, args)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def checked(*args: str | Path) -> tuple[int, str]:
    """The same inside this process."""
    done = CliRunner().invoke(app, ["check", *map(str, args)])
    return done.exit_code, done.output


def test_a_good_history_passes(tmp_path: Path) -> None:
    """Exit 0, and what was judged is counted."""
    status, said = run(write(tmp_path / "h", GOOD))
    assert (status, said) == (
        0,
        "3 records of 1 file(s), 0.0 s (1 commits, 1 publications): every rule holds\n",
    )


def test_a_late_token_is_found_with_what_led_to_it(tmp_path: Path) -> None:
    """Exit 1; rule, scope, version, stage and the line of each event."""
    path = write(tmp_path / "h", LATE)
    status, said = run(path)
    assert status == 1
    lines = said.splitlines()
    assert lines[0].startswith("C1.published_after_acknowledge: a gate published below")
    assert [line.split("[")[-1].split("]")[0] for line in lines[1:5]] == [
        f"{path}:{n}" for n in (1, 2, 3, 4)
    ]
    assert "advance CommitMade        acme/plan supersede 1.0 -> 1.1" in lines[2]
    assert lines[4].endswith("<- breaks it") and "1 violations" in lines[-1]


def test_json_holds_the_same(tmp_path: Path) -> None:
    """For scripts: the rule and its trace as records with their places."""
    status, said = checked(write(tmp_path / "h", LATE), "--json")
    report = json.loads(said)
    assert status == 1 and report["records"] == 4
    (violation,) = report["violations"]
    assert violation["rule"] == "C1.published_after_acknowledge"
    assert [one["record"] for one in violation["trace"]] == [
        "Published", "CommitMade", "Acknowledged", "Published",
    ]  # fmt: skip


def test_only_the_first_is_explained_unless_all_are_asked_for(tmp_path: Path) -> None:
    """A broken run breaks many rules; the first one is where to look."""
    path = write(tmp_path / "h", [*LATE, publish(50, 2)])
    status, said = checked(path)
    assert status == 1 and said.count("<- breaks it") == 1
    assert "2 violations, the first 1 shown (--all for the rest)" in said
    assert checked(path, "--all")[1].count("<- breaks it") == 2


@pytest.mark.parametrize(
    ("line", "fault", "fix"),
    [
        ('{"schema":1,"record":"Publi', "not JSON", "delete this line"),
        ("garbage\n", "not JSON", "not a record of this program"),
        ('{"schema":9,"record":"Idle","at_ns":1,"node":"n"}\n', "record.schema must be 1", "not a"),
        ('{"schema":1,"record":"Idle","at_ns":1}\n', "record.node must be present", "not a record"),
        ('{"schema":1,"record":"Ide"}\n', "record.record must be one of HistoryOpened", "not a"),
        ("[1]\n", "record must be a JSON object", "not a record"),
    ],
)
def test_a_bad_line_is_named_with_its_fix(tmp_path: Path, line: str, fault: str, fix: str) -> None:
    """Exit 2 and one line: file, line, what is wrong, what to do. Never a traceback."""
    path = write(tmp_path / "h", GOOD, tail=line)
    status, said = run(path)
    assert status == 2 and said.count("\n") == 1, said
    assert said.startswith(f"retire: {path}:4: {fault}") and fix in said


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """Exit 2."""
    status, said = run(tmp_path / name)
    assert status == 2 and "FILE must be a history file that can be read" in said


def test_an_empty_history_proves_nothing(tmp_path: Path) -> None:
    """Exit 2: the run was not recorded."""
    path = write(tmp_path / "h", [])
    status, said = checked(path)
    assert status == 2 and "RETIRE_HISTORY" in said


def test_files_of_one_host_are_merged_by_their_clock(tmp_path: Path) -> None:
    """Apart each half is fine; together the late token shows, whichever is named first."""
    commits = write(tmp_path / "sidecar", [MOVE, ACK])
    frames = write(tmp_path / "api", [publish(10), publish(40, 1)])
    assert checked(commits)[0] == checked(frames)[0] == 0
    for order in ((commits, frames), (frames, commits)):
        status, said = checked(*order)
        assert status == 1 and f"{frames}:2" in said


def test_files_of_two_hosts_are_merged_by_wall_time(tmp_path: Path) -> None:
    """Their monotonic clocks began at different times; the user is told what that is worth."""
    here = HistoryOpened(5, 1_000_005, "host-a", "sidecar[1]")
    there = HistoryOpened(900_000, 1_000_000, "host-b", "api[2]")
    commits = write(tmp_path / "a", [here, MOVE, ACK])  # acknowledged at wall 1_000_030
    early = write(tmp_path / "b", [there, publish(900_020)])  # wall 1_000_020
    late = write(tmp_path / "c", [there, publish(900_040)])  # wall 1_000_040
    status, said = checked(commits, early)
    assert status == 0 and "clocks of 2 hosts were merged by wall time" in said
    assert checked(commits, late)[0] == 1
    nobodys = write(tmp_path / "d", [publish(10)])
    status, said = run(commits, early, nobodys)
    assert status == 2 and f"got '{nobodys}'" in said


def test_certificates_expire_by_the_clock_of_their_host(tmp_path: Path) -> None:
    """What is moved is moved whole."""
    from retire.protocol.history import CertificateIssued

    opened = [HistoryOpened(5, 105, "a", "x"), HistoryOpened(5, 1_005, "b", "y")]
    issued = CertificateIssued(6, "n", K, V1, 1, 32, (1,), 50)
    for name, clock in zip("ab", opened, strict=True):
        write(tmp_path / name, [clock, issued])
    merged = read_all([tmp_path / "a", tmp_path / "b"])
    found = [r for r in merged.records if isinstance(r, CertificateIssued)]
    assert [(r.at_ns, r.expires_ns) for r in found] == [(106, 150), (1_006, 1_050)]
    assert merged.hosts == 2


def test_the_recorder_says_whose_clock_it_is(tmp_path: Path) -> None:
    """The first line of every process: monotonic and wall time, the host, the program."""
    history = History(tmp_path / "h")
    history.write(ACK)
    history.close()
    opened, ack = read(tmp_path / "h")
    assert isinstance(opened, HistoryOpened) and ack == ACK
    assert opened.host == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert abs(opened.wall_ns - (tmp_path / "h").stat().st_mtime_ns) < 60 * 10**9


def test_a_big_file_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long says how far it is, on standard error; short runs stay silent."""
    from retire.cli import check

    path = tmp_path / "h"
    frame = json.dumps(record_to_dict(publish(10))) + "\n"
    path.write_text(frame * 20_000)
    assert checked(path)[1].count("\r") == 0
    monkeypatch.setattr(check, "SILENT_S", 0.0)
    status, said = checked(path)
    assert status == 0
    assert "reading h: 1 of " in said and "judging: " in said, said


PLANTED: dict[str, Any] = {
    "C3.foreign_write": [Wrote(5, "n", K, V0, (1,))],
    "C3.owned_twice": [
        Allocated(5, "n", K, V0, (1,)),
        Allocated(6, "n", ScopeKey("rival", "plan"), V0, (1,)),
    ],
}


@pytest.mark.parametrize("rule", PLANTED)
def test_pages_of_others_name_their_blocks(tmp_path: Path, rule: str) -> None:
    """The trace of a page fault shows the block ids."""
    status, said = checked(write(tmp_path / "h", PLANTED[rule]))
    assert status == 1 and said.startswith(rule) and "blocks 1" in said

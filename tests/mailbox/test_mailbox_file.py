"""The file: its mode, its one writer, what is refused and what is replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retire.mailbox import GateState, MailboxView, MailboxWriter, layout
from retire.protocol.errors import CapacityExceeded, InvalidField, Unavailable
from retire.protocol.versions import ScopeKey, Version

KEY = ScopeKey("acme", "plan")
V1, V2 = Version(1, 1), Version(1, 2)


def overwrite(path: Path, word: int, value: int) -> None:
    """Damage one word of the file, as a stray write would."""
    with path.open("r+b") as file:
        file.seek(word * 8)
        file.write(value.to_bytes(8, "little"))


def test_only_the_owner_may_open_it(path: Path):
    """The mode is 0600 whatever the umask."""
    previous = os.umask(0)
    try:
        MailboxWriter.create(path).detach()
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    MailboxWriter.create(path).detach()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_writer_is_refused_while_the_first_lives(path: Path):
    """Another process gets a clear error; after detach it gets the file."""
    first = MailboxWriter.create(path)
    code = f"from retire.mailbox import MailboxWriter; MailboxWriter.create({str(path)!r})"
    command = [sys.executable, "-c", code]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"mailbox {path} is held by a running sidecar; stop it" in second.stderr
    first.detach()
    third = subprocess.run(command, capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stderr


def test_attach_without_a_name_or_a_file(path: Path, monkeypatch):
    """The error names RETIRE_MAILBOX and what to do."""
    monkeypatch.delenv("RETIRE_MAILBOX", raising=False)
    with pytest.raises(InvalidField, match="RETIRE_MAILBOX must be the path of the sidecar"):
        MailboxView.attach()
    monkeypatch.setenv("RETIRE_MAILBOX", str(path))
    with pytest.raises(Unavailable, match="does not exist; start the sidecar first"):
        MailboxView.attach()


def test_the_environment_names_it_and_a_bare_name_lies_in_shared_memory(path: Path, monkeypatch):
    """RETIRE_MAILBOX=name is /dev/shm/name."""
    writer = MailboxWriter.create(path)
    monkeypatch.setenv("RETIRE_MAILBOX", path.name)
    view = MailboxView.attach()
    assert (view.path, view.boot_id) == (path, writer.boot_id)
    writer.detach()


@pytest.mark.parametrize("content", [b"", b"RETIREMB", b"x" * 100])
def test_a_short_file_is_refused_by_both_sides_and_left_alone(path: Path, content: bytes):
    """Too short to hold a header: not ours to destroy."""
    path.write_bytes(content)
    message = rf"a Retire mailbox; this file is too short \({len(content)} bytes\)"
    for attempt in (MailboxView.attach, MailboxWriter.create):
        with pytest.raises(InvalidField, match=message):
            attempt(path)
    assert path.read_bytes() == content


def test_a_foreign_file_is_refused_by_both_sides_and_left_alone(path: Path):
    """No magic: somebody else's file, named by mistake."""
    path.write_bytes(b"precious data " * 1000)
    for attempt in (MailboxView.attach, MailboxWriter.create):
        with pytest.raises(InvalidField, match="this file is something else, name another path"):
            attempt(path)
    assert path.read_bytes() == b"precious data " * 1000


def test_a_symlink_is_not_followed(path: Path, tmp_path: Path):
    """/dev/shm is writable by everyone: a planted link must not redirect the writer."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    path.symlink_to(target)
    for attempt in (MailboxView.attach, MailboxWriter.create):
        with pytest.raises(InvalidField, match="Too many levels of symbolic links"):
            attempt(path)
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        (layout.H_LAYOUT, 9, "has layout 9, not 2"),
        (layout.H_CAPACITY, 0, "names an impossible capacity, 0"),
        (layout.H_CAPACITY, 64, "bytes long, not"),
        (layout.H_HOST_BOOT, 1, "was written in another boot of this machine"),
    ],
)
def test_an_unusable_mailbox_is_refused_by_readers_and_replaced_by_the_writer(
    path: Path, lease, word: int, value: int, reason: str
):
    """The new file has another inode and boot id, and none of its stamps is an old one."""
    writer = MailboxWriter.create(path, capacity=128)
    lease(writer)
    old = writer.open(KEY, V1)
    view = MailboxView.attach(path)
    boot_id = view.boot_id
    writer.detach()
    overwrite(path, word, value)
    with pytest.raises(InvalidField, match=reason):
        MailboxView.attach(path)
    assert not view.replaced()
    again = MailboxWriter.create(path, capacity=128)
    lease(again)
    assert view.replaced()
    assert again.boot_id != boot_id
    assert list(again.slots()) == []
    assert again.open(KEY, V1).stamp > old.stamp
    assert view.gate(old) is not GateState.OPEN, "the old mapping never opens again"
    assert MailboxView.attach(path).gate(old) is GateState.STALE
    again.detach()


def test_another_capacity_replaces_the_file(path: Path):
    """A changed setting takes effect; gates of the old file see that it is gone."""
    MailboxWriter.create(path, capacity=64).detach()
    view = MailboxView.attach(path)
    writer = MailboxWriter.create(path, capacity=128)
    assert (writer.capacity, writer.free_count) == (128, 128)
    assert view.replaced()
    writer.detach()


def test_replaced_sees_a_removed_file(path: Path):
    """A clean end with remove leaves nothing behind, and readers notice."""
    writer = MailboxWriter.create(path)
    view = MailboxView.attach(path)
    assert not view.replaced()
    writer.detach(remove=True)
    assert not path.exists()
    assert view.replaced()


def test_detach_closes_every_gate(path: Path, lease):
    """A sidecar that ends cleanly takes the authority with it; reopened, refs are valid again."""
    writer = MailboxWriter.create(path)
    lease(writer)
    ref = writer.open(KEY, V1)
    view = MailboxView.attach(path)
    writer.detach()
    assert view.gate(ref) is GateState.LEASE_EXPIRED
    again = MailboxWriter.create(path)
    assert view.gate(ref) is GateState.LEASE_EXPIRED, "slots come back, the lease does not"
    lease(again)
    assert view.gate(ref) is GateState.OPEN
    again.detach()


@pytest.mark.parametrize("capacity", [0, -1, layout.CAPACITY_MAX + 1])
def test_a_senseless_capacity_is_refused(path: Path, capacity: int):
    """The message names the field and its range."""
    with pytest.raises(InvalidField, match="capacity must be an integer in 1..1048576"):
        MailboxWriter.create(path, capacity=capacity)
    assert not path.exists()


def test_a_full_file_system_is_a_clear_error(tmp_path: Path):
    """On a tmpfs of 256 KiB scopes are refused with the fix; those open go on (no SIGBUS)."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode and os.geteuid() != 0:
        pytest.skip("only root may mount the small file system that this test fills")
    assert mounted.returncode == 0, mounted.stderr
    try:
        writer = MailboxWriter.create(tmp_path / "mailbox")
        refs = []
        with pytest.raises(CapacityExceeded, match="no memory for 64 more scopes.*; enlarge"):
            for n in range(2000):
                refs.append(writer.open(ScopeKey("acme", f"s{n}"), V1))
        assert len(refs) >= 64
        assert len(refs) % 64 == 0
        writer.renew(time.monotonic_ns() + 10**12)
        moved = [writer.advance(ref.index, V2) for ref in refs]
        view = MailboxView.attach(tmp_path / "mailbox")
        assert all(view.check(ref.index, ref.stamp) for ref in moved)
        view.detach()
        del view
        writer.detach()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_of_many_sidecars_that_start_at_once_one_gets_the_mailbox(path: Path):
    """Eight processes create the same absent file together: one holds it, seven are refused."""
    code = (
        "import sys\n"
        "from retire.mailbox import MailboxWriter\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "writer = MailboxWriter.create(sys.argv[1])\n"
        "print('held', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    pipe = subprocess.PIPE
    starters = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(8)
    ]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("\n")
        starter.stdin.flush()
    said = [starter.stdout.readline() for starter in starters if starter.stdout]
    assert sorted(said) == [""] * 7 + ["held\n"]
    endings = [starter.communicate("\n", timeout=20)[1] for starter in starters]
    assert sum("is held by a running sidecar" in ending for ending in endings) == 7
    assert [file.name for file in path.parent.glob(f".{path.name}.*")] == [], "drafts are cleared"

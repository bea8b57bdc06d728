"""One child process with a log file, waited for and ended. Must never know what the process is."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# A child's parent, as far as its death signal goes, is the thread that made it: one that stays.
_STARTER: Final = ThreadPoolExecutor(1, "process-starter")
_TAIL_LINES: Final = 25
_POLL_S: Final = 0.05


class ProcessFailed(Exception):
    """A process did not do what it was started for; the end of its log is in the text."""


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


class Process:
    """A command that can be started again after it was stopped."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        # Nothing outlives whoever started it, however that ended.
        self._argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        self._env = env
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Without waiting for anything."""
        assert self._child is None, f"{self.name} runs already"
        self._child = _STARTER.submit(self._popen).result()

    def _popen(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if self._env is None else dict(self._env),
                start_new_session=True,  # an interrupt at the terminal is for the tests, not for it
            )

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._child is not None, f"{self.name} does not run"
        return self._child.pid

    @property
    def running(self) -> bool:
        """Started and not ended."""
        return self._child is not None and self._child.poll() is None

    def wait_until(self, ready: Callable[[], bool], limit_s: float) -> None:
        """Until ``ready()``; ProcessFailed when the process ends first, or the time does."""
        until = time.monotonic() + limit_s
        while not ready():
            if not self.running:
                raise ProcessFailed(f"{self.name} ended before it was ready\n{self.tail()}")
            if time.monotonic() > until:
                raise ProcessFailed(f"{self.name} not ready in {limit_s:.0f} s\n{self.tail()}")
            time.sleep(_POLL_S)

    def send(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, limit_s: float = 20.0) -> None:
        """End it: ``number``, and SIGKILL when that does not help. Nothing when it has ended."""
        if self._child is None:
            return
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"--- end of {self.log}", *lines])

"""``guard.py SUPERVISOR GRACE_S ARGV...``: runs a command of which nothing outlives its supervisor.

A script of its own (stdlib only, started with ``python -I -S``), because the kernel's parent-death
signal reaches one process and not its children: this process asks for it, adopts every orphan below
it (PR_SET_CHILD_SUBREAPER, prctl(2)) and ends them all. Must never import the rest of the package.

TERM or the supervisor's death: TERM to the command, KILL to all that is left after ``GRACE_S``.
Exit status: the command's, 128 + signal when a signal ended it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINGER_S = 1.0  # for what the command leaves behind when it ends by itself
POLL_S = 0.02
EXIT_NO_COMMAND = 127


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument; OSError when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def spawn(argv: list[str]) -> int:
    """Start the command in a process group of its own; it dies with this process."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpgid(0, 0)
        if os.getppid() == guard:
            os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
    os._exit(EXIT_NO_COMMAND)


def reap(command: int) -> int | None:
    """Collect every child that ended; the command's exit status when it is among them."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == command:
            code = os.waitstatus_to_exitcode(raw)
            status = code if code >= 0 else 128 - code


def processes() -> list[tuple[int, int, int]]:
    """(pid, parent, session) of every process, from /proc (proc_pid_stat(5))."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", encoding="latin-1") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue  # ended while we looked
            found.append((int(entry), int(fields[1]), int(fields[3])))
    return found


def descendants(root: int) -> list[int]:
    """Pids below ``root``."""
    below: dict[int, list[int]] = {}
    for pid, parent, _ in processes():
        below.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        children = below.get(queue.pop(), [])
        found += children
        queue += children
    return found


def session_members(session: int) -> list[int]:
    """Pids of a session, whoever their parent is now."""
    return [pid for pid, _, of in processes() if of == session]


def signal_all(pids: list[int], number: int) -> None:
    """Signal each pid that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def sweep(grace_s: float) -> None:
    """TERM to all that is left below this process, KILL after ``grace_s``; returns when none is."""
    deadline = time.monotonic() + grace_s
    signal_all(descendants(os.getpid()), signal.SIGTERM)
    while left := _living():
        if time.monotonic() >= deadline:
            signal_all(left, signal.SIGKILL)
        time.sleep(POLL_S)


def _living() -> list[int]:
    reap(0)
    return descendants(os.getpid())


def watch(command: int, grace_s: float) -> int:
    """Wait for the command's end or a TERM, then sweep; the command's exit status."""
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    deadline: float | None = None
    while True:
        status = reap(command)
        if status is not None:
            left_s = LINGER_S if deadline is None else max(0.0, deadline - time.monotonic())
            sweep(min(left_s, LINGER_S))
            return status
        if deadline is not None and time.monotonic() >= deadline:
            signal_all(descendants(os.getpid()), signal.SIGKILL)
        got = signal.sigtimedwait(signals, 1.0 if deadline is None else POLL_S)
        if got is not None and got.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + grace_s
            signal_all([command], signal.SIGTERM)


def main(argv: list[str]) -> int:
    """See the module's docstring."""
    supervisor, grace_s, command = int(argv[1]), float(argv[2]), argv[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != supervisor:
        return 128 + signal.SIGTERM  # it died before we could ask to be told
    return watch(spawn(command), grace_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv))

"""Runs one container: a process with namespaces (mount, PID, UTS) and a root of its own.

Started by the harness as ``python -S -m e2e.node.enter``; needs CAP_SYS_ADMIN and overlayfs. The
root is an overlay over the host's, thrown away with the container, so that the container sees the
host's software and can harm none of it. ``run SPEC`` starts it: the process is PID 1 as in a real
container, standard output tells ``pid N``, standard input takes ``signal N``, and its end kills the
container: nothing survives the harness. ``exec PID SPEC`` runs a command inside; ``pause`` holds a
pod's network namespace. Must never import anything but the standard library and
``e2e.node.mounts``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from typing import Any, Final, NoReturn

from e2e.node import mounts

_NEW_NAMESPACES: Final = 0x00020000 | 0x20000000 | 0x04000000  # mount, PID, UTS
_NETWORK: Final = 0x40000000  # made by the pod's pause process, shared by its containers
_PR_SET_NO_NEW_PRIVS: Final = 38
SETUP_FAILED: Final = 125  # as docker's: the container could not be created
NOT_FOUND: Final = 127
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> int:
    """Of ``run`` and ``exec`` the exit status is the command's, 128 + n for signal n."""
    spec = json.loads(argv[-1])
    if argv[0] == "pause":
        return pause()
    if argv[0] == "exec":
        return execute(int(argv[1]), spec)
    return run(spec)


def pause() -> int:
    """Hold a network namespace until standard input ends."""
    _call(_LIBC.unshare, _NETWORK)
    print("ready", flush=True)
    while os.read(0, 1):
        pass
    return 0


def run(spec: dict[str, Any]) -> int:
    """The container's life, seen from outside."""
    if spec["network"]:
        with open(spec["network"], "rb") as namespace:
            _call(_LIBC.setns, namespace.fileno(), _NETWORK)
    # Opened first: the container's root becomes that of everybody in its mount namespace.
    log = os.open(spec["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    _call(_LIBC.unshare, _NEW_NAMESPACES)
    told, tell = os.pipe()
    heard, say = os.pipe()
    os.fchown(say, spec["uid"], spec["gid"])  # /dev/stdout may be opened again inside
    child = os.fork()
    if child == 0:
        os.close(told)
        _become(spec, tell, say)
    os.close(tell)
    os.close(say)
    with os.fdopen(told) as pipe:
        error = pipe.read()  # ends at exec
    if error:
        os.waitpid(child, 0)
        print(f"error {error}", flush=True)
        return SETUP_FAILED
    print(f"pid {child}", flush=True)
    try:
        return _serve(child, heard, log)
    except BaseException:
        os.kill(child, signal.SIGKILL)  # never a container without its keeper
        raise


def _serve(child: int, heard: int, log: int) -> int:
    """Keep what the container says, pass signals on; end it when the harness goes away."""
    ended = os.pidfd_open(child)
    watched = [ended, heard, 0]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if heard in ready and not _copy(heard, log):
            watched.remove(heard)  # it closed its output, and lives on
        if ended in ready:
            break
        if 0 in ready and not _pass_on(child):
            watched.remove(0)
    os.set_blocking(heard, False)  # all who could write are gone with the first process
    with contextlib.suppress(BlockingIOError):
        while _copy(heard, log):
            pass
    return _status(os.waitpid(child, 0)[1])


def _copy(source: int, log: int) -> bool:
    """What was said, into the log; False at its end."""
    said = os.read(source, 65536)
    os.write(log, said)
    return bool(said)


def _pass_on(child: int) -> bool:
    """Signals that the harness asks for; SIGKILL and False when the harness is gone."""
    lines = os.read(0, 4096).decode().splitlines()
    for line in lines or ["signal 9"]:
        os.kill(child, int(line.split()[1]))
    return bool(lines)


def _become(spec: dict[str, Any], tell: int, say: int) -> NoReturn:
    """Inside: root file system, host name, user, then the command."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _call(_LIBC.sethostname, spec["hostname"].encode(), len(spec["hostname"]))
        mounts.enter_root(spec)
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (say, 1), (say, 2)):
            os.dup2(source, target)
        _command(spec)
    except OSError as error:
        os.write(tell, f"{error.strerror or error}: {spec['argv'][0]}".encode())
    os._exit(SETUP_FAILED)


def _command(spec: dict[str, Any]) -> NoReturn:
    """Become the user and the command."""
    os.chdir(spec["workdir"])
    os.setgroups(spec["groups"])
    os.setresgid(spec["gid"], spec["gid"], spec["gid"])
    os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    if spec["no_new_privileges"]:
        _call(_LIBC.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


def execute(pid: int, spec: dict[str, Any]) -> int:
    """A command beside PID ``pid`` of the host, with its files, users and processes."""
    target = os.pidfd_open(pid)
    _call(_LIBC.setns, target, _NEW_NAMESPACES | _NETWORK)
    child = os.fork()  # the PID namespace holds for children only
    if child == 0:
        try:
            _command(spec)
        except OSError as error:
            print(f"{error.strerror}: {error.filename or spec['argv'][0]}", file=sys.stderr)
        os._exit(NOT_FOUND)
    return _status(os.waitpid(child, 0)[1])


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function.__name__)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""One running container process, held by its ``e2e.node.enter``. asyncio.

Owns the process and its overlay folder. When the harness dies the box ends by itself. Must never
know why a container runs, nor restart it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from e2e.binaries import ROOT
from e2e.node.enter import SETUP_FAILED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Without site: it starts faster, and finds the standard library and this repository only.
_ENTER: Final = (sys.executable, "-S", "-m", "e2e.node.enter")
_LAYER: Final = ("upper", "work", "merged")
TIMED_OUT: Final = 124


class StartFailed(Exception):
    """The container could not be created."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host at a path of the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """Everything that ``e2e.node.enter`` is told."""

    argv: Sequence[str]
    env: Mapping[str, str]
    hostname: str
    log: str
    layer: str  # an absent folder on a tmpfs; it is removed with the container
    network: str = ""  # the network namespace to enter; empty: the host's
    mounts: Sequence[Mount] = ()
    software: Sequence[str] = ()
    uid: int = 0
    gid: int = 0
    groups: Sequence[int] = ()
    workdir: str = "/"
    read_only_root: bool = False
    no_new_privileges: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # shown by ps, used by nobody


class Box:
    """Made by ``start``; ``wait`` must be awaited, it removes the layer."""

    def __init__(self, spec: BoxSpec, process: asyncio.subprocess.Process, pid: int) -> None:
        self.spec = spec
        self.pid = pid  # of the container's PID 1, as the host counts
        self._process = process

    @classmethod
    async def start(cls, spec: BoxSpec) -> Self:
        """Returns when the command is being executed; StartFailed when it cannot be."""
        for part in _LAYER:
            Path(spec.layer, part).mkdir(parents=True)
        process = await asyncio.create_subprocess_exec(
            *(*_ENTER, "run", json.dumps(asdict(spec))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            word, _, rest = (await process.stdout.readline()).decode().strip().partition(" ")
            if word == "pid":
                return cls(spec, process, int(rest))
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            process.kill()  # its end is the container's
            await process.wait()
            remove_layer(spec.layer)
            raise
        remove_layer(spec.layer)
        raise StartFailed(rest or f"exit {process.returncode}: {errors.decode()[-500:]}")

    async def wait(self) -> int:
        """The exit status; 128 + n for signal n."""
        _, errors = await self._process.communicate()
        remove_layer(self.spec.layer)
        code = self._process.returncode
        assert code is not None
        if code == SETUP_FAILED and errors:
            return SETUP_FAILED
        return code

    def signal(self, number: int) -> None:
        """To PID 1 of the container; nothing when it has ended."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(f"signal {number}\n".encode())

    async def execute(self, argv: Sequence[str], limit_s: float) -> tuple[int, str]:
        """Run a command inside; its exit status (``TIMED_OUT`` after ``limit_s``) and output."""
        spec = json.dumps(asdict(replace(self.spec, argv=list(argv))))
        process = await asyncio.create_subprocess_exec(
            *(*_ENTER, "exec", str(self.pid), spec),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate()
        except TimeoutError:
            return TIMED_OUT, f"no answer in {limit_s:.0f} s"
        finally:
            if process.returncode is None:
                kill_tree(process.pid)
                await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace")

    def processes(self) -> dict[int, str]:
        """Host pid -> command line of everything that runs in the container."""
        return in_namespace(self.pid)


def in_namespace(pid: int) -> dict[int, str]:
    """Every process that shares a PID namespace with ``pid``."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                if os.readlink(folder / "ns" / "pid") == namespace:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(folder.name)] = line.strip()
    return found


def kill_tree(pid: int) -> None:
    """A process that was started in a session of its own, and its child in the container."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), 9)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


def remove_layer(layer: str) -> None:
    """What the container wrote outside its volumes. ``merged`` must be empty here: never walked."""
    for part in ("upper", "work"):
        shutil.rmtree(Path(layer, part), ignore_errors=True)
    for folder in (Path(layer, "merged"), Path(layer)):
        with contextlib.suppress(OSError):
            folder.rmdir()

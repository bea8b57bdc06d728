"""Several processes as one: started in order, watched, restarted or given up, stopped in reverse.

Owns the life of every child. Knows nothing of what they are (``children`` does) nor of the terminal
(``output`` does).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retire.cli.stack.guard import session_members, signal_all
from retire.cli.stack.output import SUPERVISOR, Tail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from retire.cli.stack.output import LineSink

GUARD: Final = Path(__file__).with_name("guard.py")
BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 5.0
STEADY_S: Final = 30.0  # a child up this long starts its backoff anew
START_FAILURES_MAX: Final = 3  # deaths before it was ever ready
PROBE_S: Final = 0.1
DRAIN_S: Final = 0.5  # for the last lines of a child that has ended
LINE_BYTES_MAX: Final = 1 << 20


class OnExit(Enum):
    """What the end of a child means."""

    RESTART = "restart"
    STOP_ALL = "stop_all"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process of the stack."""

    name: str
    argv: tuple[str, ...]
    probe: Callable[[], Awaitable[bool]]  # ready? Must answer within about a second
    env: Mapping[str, str] = field(default_factory=dict)  # on top of our own
    on_exit: OnExit = OnExit.RESTART
    grace_s: float = 2.0  # between TERM and KILL
    ready_timeout_s: float = 30.0


class ChildFailed(Exception):
    """A child ended for good, or never became ready."""

    def __init__(self, name: str, reason: str, code: int | None, tail: Sequence[str]) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.code = code  # its exit status; None: it was still running
        self.tail = tail


class Supervisor:
    """Start with :meth:`start`, then :meth:`wait`, and always :meth:`stop`."""

    def __init__(self, specs: Sequence[ChildSpec], log: LineSink) -> None:
        self._children = [_Child(spec, log, self._fail) for spec in specs]
        self._log = log
        self._stopping = asyncio.Event()
        self._failure: ChildFailed | None = None

    async def start(self, progress: Callable[[str], None] = lambda name: None) -> None:
        """Start each child once the one before is ready. ChildFailed; stopped early: returns."""
        for child in self._children:
            progress(child.spec.name)
            child.start()
            await self._first(child.ready.wait(), child.spec.ready_timeout_s, child)
            if self._stopping.is_set():
                break
        if self._failure is not None:
            raise self._failure

    async def wait(self) -> None:
        """Until :meth:`request_stop`, or raises ChildFailed when a child that must not end has."""
        await self._stopping.wait()
        if self._failure is not None:
            raise self._failure

    def request_stop(self) -> None:
        """End :meth:`wait` (or :meth:`start`); for signal handlers."""
        self._stopping.set()

    async def stop(self) -> None:
        """Stop every child, the last started first; returns when no process is left."""
        self._stopping.set()
        for child in reversed(self._children):
            await child.stop()

    @property
    def stopping(self) -> bool:
        """A stop was asked for, or a child failed."""
        return self._stopping.is_set()

    def pids(self) -> dict[str, int]:
        """Name -> pid of the guard of each running child."""
        return {child.spec.name: pid for child in self._children if (pid := child.pid) is not None}

    def _fail(self, failure: ChildFailed) -> None:
        if self._failure is None and not self._stopping.is_set():
            self._failure = failure
            self._stopping.set()

    async def _first(self, ready: Awaitable[bool], timeout_s: float, child: _Child) -> None:
        waits = [asyncio.ensure_future(ready), asyncio.ensure_future(self._stopping.wait())]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        if not done:
            reason = f"was not ready within {timeout_s:g} s"
            self._fail(ChildFailed(child.spec.name, reason, None, child.tail.lines()))


class _Child:
    """One child: its process, its output, its restarts."""

    def __init__(self, spec: ChildSpec, log: LineSink, fail: Callable[[ChildFailed], None]) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self.tail = Tail()
        self._log = log
        self._fail = fail
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the guard, while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        """Run the child until :meth:`stop`."""
        self._task = asyncio.create_task(self._run(), name=f"child {self.spec.name}")

    async def stop(self) -> None:
        """TERM, and KILL after the grace (the guard's work); returns when all of it has ended."""
        self._stopping = True
        if self._task is None:
            return
        if self._process is None or self._process.returncode is not None:
            self._task.cancel()  # it waits for its next start
        else:
            self._process.terminate()
        try:
            await asyncio.wait_for(self._task, self.spec.grace_s + 3.0)
        except (asyncio.CancelledError, TimeoutError):
            if self.pid is not None and self._process is not None:
                self._process.kill()  # the command dies with its guard
                await self._process.wait()

    async def _run(self) -> None:
        backoff_s, deaths = BACKOFF_MIN_S, 0
        while not self._stopping:
            started_s = time.monotonic()
            was_ready = self.ready.is_set()
            code = await self._once()
            if self._stopping:
                return
            deaths = 0 if self.ready.is_set() or was_ready else deaths + 1
            if self.spec.on_exit is OnExit.STOP_ALL or deaths >= START_FAILURES_MAX:
                self._fail(ChildFailed(self.spec.name, _ended(code), code, self.tail.lines()))
                return
            if time.monotonic() - started_s >= STEADY_S:
                backoff_s = BACKOFF_MIN_S
            self._log(SUPERVISOR, f"{self.spec.name} {_ended(code)}; again in {backoff_s:g} s")
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _once(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._argv(),
            env={**os.environ, **self.spec.env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is ours alone; we stop them in order
            limit=LINE_BYTES_MAX,
        )
        probing = asyncio.create_task(self._probe())
        pumping = asyncio.create_task(self._pump(process))
        try:
            code = await process.wait()
            signal_all(session_members(process.pid), signal.SIGKILL)  # were the guard killed itself
            await asyncio.wait((pumping,), timeout=DRAIN_S)
            return code
        finally:
            probing.cancel()
            pumping.cancel()

    def _argv(self) -> tuple[str, ...]:
        guard = (sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(self.spec.grace_s))
        return (*guard, *self.spec.argv)

    async def _probe(self) -> None:
        while not await self.spec.probe():
            await asyncio.sleep(PROBE_S)
        if self.ready.is_set():
            self._log(SUPERVISOR, f"{self.spec.name} is back")
        self.ready.set()

    async def _pump(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:  # a line beyond the limit: what fits was dropped by asyncio
                continue
            if not raw:
                return
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            self.tail.add(line)
            self._log(self.spec.name, line)


def _ended(code: int) -> str:
    if code > 128:
        return f"was ended by signal {code - 128}"
    return f"ended with exit status {code}"

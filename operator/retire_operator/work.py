"""A keyed work queue: one handling per key at a time, the newest wish wins, failures back off.

Knows nothing about what a key is. What is asked for while its key is handled is handled once more
afterwards: no wish is lost, and none is handled twice for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from retire.protocol.errors import RetireError
from retire.telemetry.logs import fields

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger("retire.operator")
_DOUBLINGS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed key waits: doubling from ``first_s`` to ``max_s``."""

    first_s: float = 0.1
    max_s: float = 10.0

    def after(self, failures: int) -> float:
        """Before the next attempt."""
        return min(self.max_s, self.first_s * 2 ** min(failures - 1, _DOUBLINGS_MAX))


class WorkQueue(Generic[K]):
    """``handle(key)`` returns after how many seconds to look again (None: when asked to)."""

    def __init__(
        self,
        handle: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 16,
        backoff: Backoff | None = None,
    ) -> None:
        self._handle = handle
        self._workers = workers
        self._backoff = backoff or Backoff()
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()  # in _ready
        self._running: set[K] = set()
        self._again: set[K] = set()  # asked for while running
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Handle ``key`` soon, or after a while unless it is asked for before."""
        if after_s > 0:
            self._later(key, after_s)
            return
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def forget(self, key: K) -> None:
        """The key is gone: no timer, no memory of failures."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._failures.pop(key, None)
        self._again.discard(key)

    def failures(self, key: K) -> int:
        """Failed attempts in a row."""
        return self._failures.get(key, 0)

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"worker {number}")

    def _later(self, key: K, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + after_s:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(after_s, self._due, key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                await self._once(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def _once(self, key: K) -> None:
        try:
            after_s = await self._handle(key)
        except RetireError as error:
            self._failed(key, error)
        except Exception:  # a bug in handling one object must not stop the others
            _log.exception("handling failed", extra=fields(key=key))
            self._failed(key, None)
        else:
            self._failures.pop(key, None)
            if after_s is not None:
                self.add(key, after_s)

    def _failed(self, key: K, error: RetireError | None) -> None:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        after_s = self._backoff.after(count)
        if error is not None:
            _log.warning(
                "try again", extra=fields(key=key, why=error, after_s=after_s, attempt=count)
            )
        self._later(key, after_s)

"""Work that runs beside the driver: held so that it is not lost, its failures logged.

Must never swallow an error silently.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from retire.protocol.errors import RetireError
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Coroutine

_log = logging.getLogger(names.LOGGER_SIDECAR)


class Tasks:
    """The running background tasks of one sidecar."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(
        self, work: Coroutine[Any, Any, Any], *, name: str, quiet: bool = False
    ) -> asyncio.Task[Any]:
        """Start ``work``; an error of the tree is a warning, any other a logged traceback.

        ``quiet``: whoever awaits the task reports its errors of the tree.
        """
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended_quietly if quiet else self._ended)
        return task

    async def close(self) -> None:
        """Cancel what runs and wait for it."""
        running = tuple(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended_quietly(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and isinstance(task.exception(), RetireError):
            self._tasks.discard(task)
        else:
            self._ended(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        what = task.get_name()
        if isinstance(error, RetireError):
            _log.warning("%s failed", what, extra=fields(code=error.code, error=error))
        else:
            _log.error("%s failed", what, exc_info=error)

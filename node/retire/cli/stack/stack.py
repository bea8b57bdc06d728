"""Starts and stops a whole stack: the asyncio shell that `retire serve` and the demo share."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from retire.cli.stack import children, device
from retire.cli.stack.layout import StateLock
from retire.cli.stack.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retire.cli.stack.children import StackOptions
    from retire.cli.stack.layout import Layout
    from retire.cli.stack.output import LineSink

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@asynccontextmanager
async def running(
    options: StackOptions, layout: Layout, *, log: LineSink, progress: Callable[[str], None]
) -> AsyncIterator[Supervisor]:
    """A started stack; stopped, with no process left, on the way out. ChildFailed, StateInUse.

    ``progress`` is told the name of each part before it starts. SIGINT, SIGTERM and SIGHUP end
    ``Supervisor.wait``, at once when they came while starting.
    """
    defaults = device.engine_defaults(device.machine(), options.engine_args, os.environ)
    layout.create()
    with StateLock(layout):
        supervisor = Supervisor(children.specs(options, layout, defaults), log)
        handled = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        for number in handled:  # one that is ignored stays ignored: nohup
            asyncio.get_running_loop().add_signal_handler(number, supervisor.request_stop)
        try:
            await supervisor.start(progress)
            yield supervisor
        finally:
            await asyncio.shield(supervisor.stop())
            shutil.rmtree(layout.run, ignore_errors=True)  # sockets and mailbox of this run
            for number in handled:
                asyncio.get_running_loop().remove_signal_handler(number)

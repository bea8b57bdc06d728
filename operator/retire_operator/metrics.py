"""The operator at /metrics: reconciliations as they end, everything else looked up at a scrape.

A listener of its own beside kopf's health endpoint, which answers nothing else. Must never change
anything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import RetireError
from retire.telemetry import names
from retire.telemetry.metrics import Metrics
from retire_operator import render

if TYPE_CHECKING:
    from retire.sidecar.pages import Pages
    from retire.telemetry.metrics import Reading
    from retire_operator.nodes import SidecarPool
    from retire_operator.registry_guard import RegistryGuard
    from retire_operator.resource import Ref
    from retire_operator.store import ScopeStore
    from retire_operator.work import WorkQueue

VARIABLE: Final = "RETIRE_METRICS_LISTEN"
_READY: Final = ("true", "false", "unknown")
Handle = Callable[["Ref"], Awaitable[float | None]]


class OperatorMetrics:
    """The metrics of one operator process."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._reconciles = self.metrics.counter(names.RECONCILES)
        self._seconds = self.metrics.histogram(names.RECONCILE_SECONDS)

    def timed(self, handle: Handle) -> Handle:
        """The same handling, counted: settled, waiting (looks again by itself), failed, error."""

        async def counted(ref: Ref) -> float | None:
            began_s, outcome = time.monotonic(), "error"
            try:
                after_s = await handle(ref)
                outcome = "settled" if after_s is None else "waiting"
            except RetireError:
                outcome = "failed"
                raise
            finally:
                self._reconciles.labels(outcome).inc()
                self._seconds.observe(time.monotonic() - began_s)
            return after_s

        return counted

    def watch(
        self, store: ScopeStore, pool: SidecarPool, guard: RegistryGuard, queue: WorkQueue[Ref]
    ) -> None:
        """Read these at every scrape."""
        self.metrics.read_by(lambda: _readings(store, pool, guard, queue))

    def pages(self, listen: str) -> Pages:
        """The listener."""
        # HTTP only where it is asked for.
        from retire.sidecar.pages import Pages, exposition  # noqa: PLC0415

        return Pages(listen, [exposition(self.metrics)], variable=VARIABLE)


def _readings(
    store: ScopeStore, pool: SidecarPool, guard: RegistryGuard, queue: WorkQueue[Ref]
) -> Iterator[Reading]:
    scopes = Counter(_ready(store, ref) for ref in store)
    nodes = Counter("true" if node.pod.ready else "false" for node in pool)
    for word in _READY:
        yield names.OPERATOR_SCOPES, scopes[word], (word,)
    for word in ("true", "false"):
        yield names.OPERATOR_NODES, nodes[word], (word,)
    state = guard.state
    yield names.OPERATOR_SYNCED, state.synced, ()
    yield names.OPERATOR_TERM, state.term, ()
    yield names.REBUILDS, guard.rebuilds, ()
    yield names.QUEUE, queue.depth, ()


def _ready(store: ScopeStore, ref: Ref) -> str:
    status, _ = render.ready_of((store.body(ref) or {}).get("status") or {})
    return status.lower() or "unknown"

"""How near the host stays to the device in an armed step: a layer is launched just in time.

Work that is launched cannot be taken back, so a stop costs what the device still has. The host
therefore launches a layer only ``LEAD_MS`` before the device would run dry, and looks at the
mailbox while it waits: a stop leaves between the lead and the lead plus one layer. When the device
reached a layer is seen on an event; how long a layer takes is the shortest of the last few.

The clock, the events and the look come in as arguments. Must never import vLLM or torch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LEAD_MS: Final = 1.0  # wake-up, the first kernels of a layer, and noise of the host
POLL_S: Final = 0.00005
AHEAD_MAX: Final = 4  # layers
LAYERS_KEPT: Final = 4
SURE: Final = 0.95


class Event(Protocol):
    """A mark in the device's queue (``torch.cuda.Event``)."""

    def record(self) -> None:
        """Put it behind what is launched."""

    def query(self) -> bool:
        """Whether the device has come to it."""
        ...


class Pace:
    """Holds the host back at each layer of the armed steps of one device."""

    def __init__(
        self,
        event: Callable[[], Event],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._event, self._clock_s, self._sleep = event, clock_s, sleep
        self._marks: deque[Event] = deque(maxlen=AHEAD_MAX + 1)
        self._launched = 0  # marks put behind work so far
        self._seen: tuple[int, float] | None = None  # a mark that the device was seen to reach, s
        self._layer_ms: deque[float] = deque(maxlen=LAYERS_KEPT)
        self._predicted_ms: float | None = None  # of a layer, before any was seen
        self.ahead = 1  # layers that the host is ahead of the device, at most

    def begin(self, layer_ms: float | None) -> None:
        """Before an armed step; ``layer_ms``: what one of its layers will take, None: unknown.

        Marks of the step before are kept: the device may not have come to them yet. Layers ahead
        make up the lead; their number stays for the step, as ranks that stop together rely on it.
        """
        self._predicted_ms = layer_ms
        self.ahead = max(1, min(AHEAD_MAX, math.ceil(LEAD_MS / layer_ms))) if layer_ms else 1
        self._layer_ms.clear()
        self._seen = None

    @property
    def layer_ms(self) -> float | None:
        """What a layer takes; None: unknown."""
        return min(self._layer_ms, default=self._predicted_ms)

    def left_ms(self) -> float | None:
        """What the device still has of what is launched; None: unknown."""
        layer_ms = self.layer_ms
        if layer_ms is None:
            return None
        if self._seen is None:
            return (self.ahead + 1) * layer_ms
        seen, at_s = self._seen
        return max(0.0, (self._launched - seen) * layer_ms - (self._clock_s() - at_s) * 1e3)

    def hold(self, look: Callable[[], None]) -> None:
        """Before a layer: return when it is time to launch it; ``look`` may raise meanwhile."""
        mark = self._event()
        mark.record()
        self._marks.append(mark)
        self._launched += 1
        if len(self._marks) <= self.ahead:
            return
        awaited = self._marks[-1 - self.ahead]
        if awaited.query():  # some time ago: the device may be about to run dry
            self._seen = None
            return
        while not awaited.query():
            look()
            self._sleep(POLL_S)
        self._reached(self._launched - self.ahead)
        while self._early_ms() > 0:
            look()
            self._sleep(POLL_S)

    def _reached(self, mark: int) -> None:
        now_s = self._clock_s()
        if self._seen is not None:
            before, at_s = self._seen
            self._layer_ms.append((now_s - at_s) * 1e3 / (mark - before))
        self._seen = mark, now_s

    def _early_ms(self) -> float:
        """How long the next layer can still wait.

        A little less than a layer seems to take: where the host was late, what it saw the device
        take holds its own lateness, which would otherwise stay.
        """
        layer_ms = self.layer_ms
        if self._seen is None or layer_ms is None:
            return 0.0
        since_ms = (self._clock_s() - self._seen[1]) * 1e3
        return SURE * self.ahead * layer_ms - LEAD_MS - since_ms

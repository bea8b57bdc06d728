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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LEAD_MS: Final = 1.0  # wake-up, the first kernels of a layer, and noise of the host
POLL_S: Final = 0.00005
AHEAD_MAX: Final = 4  # layers
LAYERS_KEPT: Final = 4
SURE: Final = 0.95  # of a layer's time: the next one may be shorter


class Event(Protocol):
    """A mark in the device's queue (``torch.cuda.Event``)."""

    def record(self) -> None:
        """Put it behind what is launched."""

    def query(self) -> bool:
        """Whether the device has come to it."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """A mark that the device has come to; ``exact``: at that time, not only at the earliest."""

    mark: int
    at_s: float
    exact: bool


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
        self._marks: deque[tuple[Event, float]] = deque(maxlen=AHEAD_MAX + 1)  # and when made, s
        self._launched = 0  # marks put behind work so far
        self._first = 1  # mark of the step
        self._seen: _Seen | None = None
        self._tokens = 0  # of the step
        self._measured_ms: deque[float] = deque(maxlen=LAYERS_KEPT)  # layers of the step
        self._known_ms: float | None = None  # a layer of the step before, by tokens
        self._predicted_ms: float | None = None
        self.ahead = 1  # layers that the host is ahead of the device, at most

    def begin(self, tokens: int, predicted_ms: float | None) -> None:
        """Before an armed step; ``predicted_ms``: what one of its layers may take, None: unknown.

        Marks of the step before are kept: the device may not have come to them yet. Layers ahead
        make up the lead. Their number stays for the step and comes from the prediction alone, which
        every rank has: ranks that stop together rely on it, and each measures something else.
        """
        known_ms = self._layer_ms
        self._known_ms = known_ms * tokens / self._tokens if known_ms and self._tokens else None
        self._tokens, self._predicted_ms = tokens, predicted_ms
        self.ahead = max(1, min(AHEAD_MAX, math.ceil(LEAD_MS / (predicted_ms or LEAD_MS))))
        self._measured_ms.clear()
        self._first, self._seen = self._launched + 1, None

    @property
    def _layer_ms(self) -> float | None:
        """What a layer takes, measured. A prediction is no reason to wait: it would come true."""
        return min(self._measured_ms, default=self._known_ms)

    def left_ms(self) -> float | None:
        """What the device still has of what is launched; None: unknown."""
        layer_ms = self._layer_ms or self._predicted_ms
        if layer_ms is None:
            return None
        if self._seen is None:
            return (self.ahead + 1) * layer_ms
        since_ms = (self._clock_s() - self._seen.at_s) * 1e3
        return max(0.0, (self._launched - self._seen.mark) * layer_ms - since_ms)

    def hold(self, look: Callable[[], None]) -> None:
        """Before a layer: return when it is time to launch it; ``look`` may raise meanwhile."""
        mark = self._event()
        mark.record()
        self._marks.append((mark, self._clock_s()))
        self._launched += 1
        if len(self._marks) <= self.ahead:
            return
        awaited, made_s = self._marks[-1 - self.ahead]
        number = self._launched - self.ahead
        if awaited.query():
            self._found_reached(number, made_s)
        else:
            while not awaited.query():
                look()
                self._sleep(POLL_S)
            self._reached(number)
        while self._early_ms() > 0:
            look()
            self._sleep(POLL_S)

    def _found_reached(self, mark: int, made_s: float) -> None:
        """When is not known, only that it was not before the mark was made.

        An idle device comes to the first mark of a step at once. Later on the host was late: it
        waited for more than a layer takes, and what it knew of that is no longer believed.
        """
        if mark == self._first:
            self._seen = _Seen(mark, made_s, exact=False)
            return
        self._seen = None
        if mark > self._first:
            self._known_ms = None
            self._measured_ms.clear()

    def _reached(self, mark: int) -> None:
        now, before = _Seen(mark, self._clock_s(), exact=True), self._seen
        if before is not None and before.exact and before.mark >= self._first:
            self._measured_ms.append((now.at_s - before.at_s) * 1e3 / (now.mark - before.mark))
        self._seen = now

    def _early_ms(self) -> float:
        """How long the next layer can still wait."""
        layer_ms = self._layer_ms
        if self._seen is None or layer_ms is None:
            return 0.0
        since_ms = (self._clock_s() - self._seen.at_s) * 1e3
        return SURE * self.ahead * layer_ms - LEAD_MS - since_ms

"""What waits until an armed step has ended: FENCEs, and the requests that would be aligned by them.

Under asynchronous scheduling calls reach the scheduler while a step runs. How far the old work of
an armed step comes is known only from its result, and a successor that is aligned before would
compute again what that step is about to finish. Nothing is scheduled meanwhile, so that waiting
costs nothing. Keeps the order of arrival. Must never import vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field


@dataclass(slots=True)
class Held:
    """Calls in order of arrival; one that adds a request carries its id."""

    _calls: list[tuple[str | None, Callable[[], None]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether any call waits."""
        return bool(self._calls)

    def hold(self, call: Callable[[], None], request_id: str | None = None) -> None:
        """Keep a call until :meth:`release`."""
        self._calls.append((request_id, call))

    def withdraw(self, request_ids: Container[str] | None) -> None:
        """The caller gave these requests up (None: all) before they were added."""
        self._calls = [
            (request_id, call)
            for request_id, call in self._calls
            if request_id is None or not (request_ids is None or request_id in request_ids)
        ]

    def release(self) -> None:
        """Make the calls."""
        calls, self._calls = self._calls, []
        for _, call in calls:
            call()

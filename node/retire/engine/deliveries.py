"""What was delivered: output tokens by request and choice, while a response runs and after.

Pure bookkeeping. Must never import vLLM, nor know gates, sockets or clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from retire.protocol.versions import ScopeKey, Version

COMPLETED_SCOPES_MAX: Final = 4096  # scopes whose completed requests are remembered for a receipt
COMPLETED_REQUESTS_MAX: Final = 16  # of each


class Deliveries:
    """Output tokens of one engine request: dequeued by the consumer, and surely handed over.

    A consumer that comes back for more has finished with what it took before, so that is settled.
    Where several prompts share a response the front end dequeues one item ahead, so there the
    settled count of one step earlier is the truth.
    """

    __slots__ = ("choices", "earlier", "recorded", "request_id", "settled", "taken")

    def __init__(self, request_id: str, choices: int = 1) -> None:
        self.request_id = request_id
        self.choices = choices
        self.taken = [0] * choices
        self.settled = self.taken
        self.earlier = self.taken
        self.recorded = self.taken  # as far as the history knows

    def take(self, choice: int, tokens: int, *, delta: bool) -> None:
        """``tokens`` of a choice were dequeued: new ones (``delta``) or all so far."""
        if self.taken is self.settled or self.taken is self.recorded:
            self.taken = self.taken.copy()
        self.taken[choice] = self.taken[choice] + tokens if delta else tokens

    def settle(self) -> None:
        """Everything taken so far was handed to the transport."""
        self.earlier = self.settled
        self.settled = self.taken

    def last_published(self, *, one_ahead: bool) -> dict[str, int]:
        """Engine request id -> index of its last published output token; absent: none was."""
        counts = self.earlier if one_ahead else self.settled
        return {self._engine_id(i): count - 1 for i, count in enumerate(counts) if count}

    def record(self) -> list[tuple[str, int]]:
        """What was taken since the last call: (engine request id, index of its newest token)."""
        if self.recorded is self.taken:
            return []
        before, self.recorded = self.recorded, self.taken
        news = enumerate(zip(before, self.taken, strict=True))
        return [(self._engine_id(i), new - 1) for i, (old, new) in news if new > old]

    def _engine_id(self, choice: int) -> str:
        """vLLM names the requests of n > 1 after their parent (``ParentRequest``)."""
        return self.request_id if self.choices == 1 else f"{choice}_{self.request_id}"


class Completed:
    """Last published indices of the latest completed requests of one scope version."""

    __slots__ = ("published", "version")

    def __init__(self, version: Version) -> None:
        self.version = version
        self.published: dict[str, int] = {}

    def add(self, published: dict[str, int]) -> None:
        """Remember one response's requests; the oldest are forgotten."""
        self.published |= published
        while len(self.published) > COMPLETED_REQUESTS_MAX:
            del self.published[next(iter(self.published))]


class CompletedRequests:
    """What completed responses published, until the receipt that retires their version."""

    def __init__(self) -> None:
        self._scopes: dict[ScopeKey, Completed] = {}

    def add(self, key: ScopeKey, version: Version, published: dict[str, int]) -> None:
        """A response of ``version`` is complete. Older versions than the newest are forgotten."""
        known = self._scopes.pop(key, None)
        if known is None or known.version < version:
            known = Completed(version)
        if known.version == version:
            known.add(published)
        self._scopes[key] = known
        while len(self._scopes) > COMPLETED_SCOPES_MAX:
            del self._scopes[next(iter(self._scopes))]

    def take(self, key: ScopeKey, *, below: Version) -> dict[str, int]:
        """What is known of versions below ``below``; it is told once."""
        known = self._scopes.get(key)
        if known is None or known.version >= below:
            return {}
        del self._scopes[key]
        return known.published

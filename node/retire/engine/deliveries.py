"""What was delivered: output tokens by request and choice, while a response runs and after.

Pure bookkeeping. Must never import vLLM, nor know gates, sockets or clocks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from retire.protocol.versions import ScopeKey, Version

COMPLETED_SCOPES_MAX: Final = 4096  # scopes whose completed requests are remembered for a receipt
COMPLETED_REQUESTS_MAX: Final = 16  # of each


class Deliveries:
    """Output tokens of one engine request, by choice: dequeued by the consumer, and written.

    A frame tells what was dequeued for its choice. Where several prompts share a response, the
    front end dequeues one item of each ahead of the one it writes
    (``vllm.utils.async_utils.merge_async_iterators``), and one frame comes of each item.
    """

    __slots__ = ("_waiting", "choices", "published", "recorded", "request_id", "taken")

    def __init__(self, request_id: str, choices: int = 1) -> None:
        self.request_id = request_id
        self.choices = choices
        self.taken = [0] * choices
        self.published = [0] * choices
        self.recorded = [0] * choices  # as far as the history knows
        # Tokens so far at the item that is being written, and at the one ahead of it.
        self._waiting: list[deque[int]] = [deque(maxlen=2) for _ in range(choices)]

    def take(self, choice: int, tokens: int, *, delta: bool) -> None:
        """``tokens`` of a choice were dequeued: new ones (``delta``) or all so far."""
        if tokens:
            self.taken[choice] = self.taken[choice] + tokens if delta else tokens
            self._waiting[choice].append(self.taken[choice])

    def wrote(self, choice: int, *, one_ahead: bool) -> None:
        """A frame of a choice was handed to the transport."""
        waiting = self._waiting[choice]
        if waiting:
            self.published[choice] = waiting.popleft() if one_ahead else waiting[-1]
        if not one_ahead:
            waiting.clear()

    def wrote_all(self) -> None:
        """Everything taken so far was handed to the transport."""
        for choice in range(self.choices):
            self.wrote(choice, one_ahead=False)

    def last_published(self) -> dict[str, int]:
        """Engine request id -> index of its last published output token; absent: none was."""
        return {self._engine_id(i): count - 1 for i, count in enumerate(self.published) if count}

    def record(self) -> list[tuple[str, int]]:
        """Published since the last call: (engine request id, index of its newest token)."""
        news = [i for i in range(self.choices) if self.published[i] > self.recorded[i]]
        for choice in news:
            self.recorded[choice] = self.published[choice]
        return [(self._engine_id(i), self.published[i] - 1) for i in news]

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

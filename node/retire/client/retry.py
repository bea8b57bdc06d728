"""When a call is sent again: pure arithmetic over attempts and Retry-After.

Must never sleep or import httpx; the clients do.
"""

from __future__ import annotations

from dataclasses import dataclass

from retire.client.errors import StreamInterrupted
from retire.protocol.errors import InvalidField, RetireError, Unavailable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries on 503 and lost connections: of reads, and of writes by their Idempotency-Key."""

    attempts: int = 5  # in all, the first included
    backoff_s: float = 0.1  # before the second attempt; doubles each time
    wait_max_s: float = 5.0  # the longest single wait; a longer Retry-After is cut to it

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidField("retries.attempts", self.attempts, "at least 1")
        if self.backoff_s < 0 or self.wait_max_s < 0:
            raise InvalidField("retries", (self.backoff_s, self.wait_max_s), "seconds, 0 or more")

    def wait_s(self, attempt: int, error: RetireError) -> float | None:
        """Seconds to wait after failed attempt number ``attempt`` (from 1); None: give up."""
        if not isinstance(error, Unavailable) or isinstance(error, StreamInterrupted):
            return None
        if attempt >= self.attempts:
            return None
        backoff = self.backoff_s * 2 ** (attempt - 1)
        stated = error.retry_after_s if "retry_after_s" in vars(error) else 0.0
        return min(max(backoff, stated), self.wait_max_s)

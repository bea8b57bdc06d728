"""What one HTTP response of a scope may still publish, and what it has published.

Owns :class:`Publication` (one tagged response: its tag, its gate, its end) and :class:`Publications`
(every live one of this process, by scope). Must never import vLLM, write to a socket or do IO: it
reads the mailbox, and tells the socket's guard (``asgi.py``) and the engine through callbacks.
Everything runs on one event loop; nothing here blocks it.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from retire.mailbox import GateState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from retire.engine.tag import Tag
    from retire.mailbox import SlotRef
    from retire.mailbox.layout import Current
    from retire.protocol.versions import ScopeKey, Version

HOLD_POLL_S: Final = 0.02  # how often a held stream looks whether its lease is back
VERDICT_WAIT_S: Final = 0.25  # how long a gate that closed first waits to be told why
COMPLETED_SCOPES_MAX: Final = 4096  # scopes whose completed requests are remembered for a receipt
COMPLETED_REQUESTS_MAX: Final = 16  # of each
_CANCELLED_FLAG: Final = 4  # mailbox layout, w2


class Mailbox(Protocol):
    """The part of ``mailbox.MailboxView`` that gates use."""

    def check(self, index: int, stamp: int) -> bool:
        """Whether this very instant a gate holding ``stamp`` may publish."""
        ...

    def gate(self, ref: SlotRef) -> GateState:
        """The same, with the reason."""
        ...

    def current(self, index: int, tenure: int) -> Current | None:
        """What the slot says now; None when it is closed or belongs to another scope."""
        ...


class Ended(Enum):
    """Why a response ended before its application did."""

    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    UNAVAILABLE = "lease_expired"  # the publish lease did not come back in time


class Waker(Protocol):
    """A consumer that waits for output and must look at its gate again."""

    request_id: str  # vLLM's internal id; of the parent when n > 1
    deliveries: Deliveries

    def wake(self) -> None:
        """Make a waiting ``get`` look at the gate."""
        ...


class Deliveries:
    """Output tokens of one engine request: dequeued by the consumer, and surely handed over.

    A consumer that comes back for more has finished with what it took before, so that is settled.
    Where several prompts share a response the front end dequeues one item ahead, so there the
    settled count of one step earlier is the truth.
    """

    __slots__ = ("choices", "earlier", "request_id", "settled", "taken")

    def __init__(self, request_id: str, choices: int = 1) -> None:
        self.request_id = request_id
        self.choices = choices
        self.taken = [0] * choices
        self.settled = self.taken
        self.earlier = self.taken

    def take(self, choice: int, tokens: int, *, delta: bool) -> None:
        """``tokens`` of a choice were dequeued: new ones (``delta``) or all so far."""
        if self.taken is self.settled:
            self.taken = self.taken.copy()
        self.taken[choice] = self.taken[choice] + tokens if delta else tokens

    def settle(self) -> None:
        """Everything taken so far was handed to the transport."""
        self.earlier = self.settled
        self.settled = self.taken

    def last_published(self, *, one_ahead: bool) -> dict[str, int]:
        """Engine request id -> index of its last published output token; absent: none was."""
        counts = self.earlier if one_ahead else self.settled
        prefix = (lambda i: "") if self.choices == 1 else (lambda i: f"{i}_")
        return {f"{prefix(i)}{self.request_id}": n - 1 for i, n in enumerate(counts) if n}


@dataclass(frozen=True, slots=True)
class End:
    """How a publication ended; ``current`` None: not known (the slot is gone)."""

    why: Ended
    current: Version | None


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


class Publication:
    """One HTTP response that may carry tokens of a scope.

    Without a tag (not admitted yet, or a route that carries no tokens) everything passes. With one,
    nothing passes once ``ended`` is set, and it is set by whoever sees the stale word first: a Switch
    of the sidecar or any gate. The rest follows from callbacks, once: the guard writes the terminal
    event, consumers wake up, the engine requests are aborted.
    """

    def __init__(self, owner: Publications) -> None:
        self.tag: Tag | None = None
        self.ended: End | None = None
        self.streaming = False  # the response is an event stream and its head was written
        self.expected_choices = 1  # n of the request that is being added (seams/tags.py)
        self.expected_id = ""  # its external id
        self.consumers: list[Waker] = []
        self.admitted = asyncio.Event()  # a request of this response reached the engine's client
        self.preamble = asyncio.Event()  # what must precede even a terminal event was written
        self.preamble.set()
        self.extra: dict[str, Any] = {}  # what a terminal JSON must hold besides (a receipt)
        self.on_end: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._owner = owner
        self._mailbox: Mailbox | None = None
        self._told = asyncio.Event()
        self._held_since: float | None = None

    def bind(self, tag: Tag, mailbox: Mailbox) -> None:
        """From now on this response publishes for ``tag``."""
        assert self.tag is None, "a response has one authority"
        self.tag, self._mailbox = tag, mailbox
        self._owner.add(self)

    def unbind(self) -> None:
        """This response will carry no token after all (its successor was given up)."""
        self._owner.remove(self)
        self.tag = self._mailbox = None

    def attach(self, consumer: Waker) -> None:
        """A consumer of engine output belongs to this response."""
        self.consumers.append(consumer)
        self.admitted.set()

    def gate(self) -> GateState:
        """May this instant's frame go out? Finding the word stale ends the publication."""
        if self.ended is not None:
            return GateState.STALE
        if self.tag is None or self._mailbox is None:
            return GateState.OPEN
        slot = self.tag.slot
        if self._mailbox.check(slot.index, slot.stamp):
            self._held_since = None
            return GateState.OPEN
        state = self._mailbox.gate(slot)
        if state is GateState.STALE:
            self._end_stale()
        return state

    async def held(self) -> bool:
        """Wait a little for an expired lease; False: it stayed away too long and this has ended."""
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        if now - self._held_since >= self._owner.hold_s:
            self.end(Ended.UNAVAILABLE, self.tag.version if self.tag else None)
            return False
        await asyncio.sleep(HOLD_POLL_S)
        return self.ended is None

    def end(self, why: Ended, current: Version | None, *, told: bool = True) -> None:
        """End now, without blocking. Only the first end acts; a later one may name the true reason."""
        first = self.ended is None
        if first or (told and not self._told.is_set()):
            self.ended = End(why, current)
        if told:
            self._told.set()
        if first:
            self._close()

    async def end_reason(self) -> End:
        """The end, after a short wait for the sidecar's word on it."""
        assert self.ended is not None
        try:
            await asyncio.wait_for(self._told.wait(), VERDICT_WAIT_S)
        except TimeoutError:
            self._told.set()  # from here on the reason is fixed
        return self.ended

    def settle(self) -> None:
        """Everything dequeued so far was handed to the transport (the response is complete)."""
        for consumer in self.consumers:
            consumer.deliveries.settle()

    def last_published(self) -> dict[str, int]:
        """Engine request id -> index of the last output token handed to the transport."""
        one_ahead = len(self.consumers) > 1
        published: dict[str, int] = {}
        for consumer in self.consumers:
            published |= consumer.deliveries.last_published(one_ahead=one_ahead)
        return published

    def discard(self) -> None:
        """The application is done with this response."""
        self._owner.remove(self)

    def _end_stale(self) -> None:
        assert self.tag is not None and self._mailbox is not None
        now = self._mailbox.current(self.tag.slot.index, self.tag.slot.tenure)
        cancelled = now is not None and bool(now.flags & _CANCELLED_FLAG)
        why = Ended.CANCELLED if cancelled else Ended.SUPERSEDED
        self.end(why, now.version if now else None, told=cancelled)

    def _close(self) -> None:
        for consumer in self.consumers:
            consumer.wake()
        ids = [consumer.request_id for consumer in self.consumers]
        if ids:
            self._owner.spawn(self._owner.abort(ids))
        if self.on_end is not None:
            self._owner.spawn(self.on_end())


class Publications:
    """Every live publication of this process, by scope.

    ``abort`` is told vLLM's internal request ids of a response that has ended.
    """

    def __init__(self, *, hold_s: float, abort: Callable[[list[str]], Awaitable[None]]) -> None:
        self.hold_s = hold_s
        self._abort = abort
        self._live: dict[ScopeKey, set[Publication]] = {}
        self._completed: dict[ScopeKey, Completed] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> Publication:
        """A publication without authority yet."""
        return Publication(self)

    def add(self, publication: Publication) -> None:
        """It has a tag now."""
        assert publication.tag is not None
        self._live.setdefault(publication.tag.key, set()).add(publication)

    def remove(self, publication: Publication) -> None:
        """Its response is complete."""
        if publication.tag is None:
            return
        key = publication.tag.key
        live = self._live.get(key)
        if live is None or publication not in live:
            return
        live.discard(publication)
        if not live:
            del self._live[key]
        self._remember(publication)

    def switch(self, key: ScopeKey, to: Version, why: Ended) -> dict[str, int]:
        """End every publication of the scope below ``to``: request id -> last published index.

        When this returns, no frame of a lower version is between its check and the transport, or
        ever will be: a guard checks the word and writes without an await in between (``asgi.py``),
        this runs on the same event loop, so every frame that had passed its check is already in the
        transport, and every later one meets ``ended``. Hence acking a Switch after this call *is*
        the barrier through the event loop that UNPUBLISHABLE needs (design, section 6.2).
        """
        completed = self._completed.pop(key, None)
        published = completed.published if completed is not None and completed.version < to else {}
        for publication in tuple(self._live.get(key, ())):
            assert publication.tag is not None
            if publication.tag.version < to:
                publication.end(why, to)
                published |= publication.last_published()
        return published

    def _remember(self, publication: Publication) -> None:
        """Keep what a completed response published, for the receipt that retires its version."""
        assert publication.tag is not None
        key, version = publication.tag.key, publication.tag.version
        known = self._completed.pop(key, None)
        if known is None or known.version < version:
            known = Completed(version)
        if known.version == version:
            known.add(publication.last_published())
        self._completed[key] = known
        while len(self._completed) > COMPLETED_SCOPES_MAX:
            del self._completed[next(iter(self._completed))]

    def scopes(self) -> tuple[ScopeKey, ...]:
        """Scopes with live responses here."""
        return tuple(self._live)

    def live(self, key: ScopeKey) -> Iterable[Publication]:
        """Live publications of one scope."""
        return tuple(self._live.get(key, ()))

    async def abort(self, ids: list[str]) -> None:
        """Abort engine requests by internal id."""
        await self._abort(ids)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside the caller; kept alive until done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


CURRENT: Final[ContextVar[Publication | None]] = ContextVar("retire_publication", default=None)
"""The publication on whose behalf the running task works (None: plain vLLM)."""

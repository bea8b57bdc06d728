"""What one HTTP response of a scope may still publish, and what it has published.

Owns :class:`Publication` (one tagged response: tag, gate, end) and :class:`Publications` (all live
ones of this process, by scope). Must never import vLLM, write to a socket or do IO: it reads the
mailbox, and tells the socket's guard (``asgi.py``) and the engine through callbacks.
Everything runs on one event loop; nothing here blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from retire.engine import tracing
from retire.engine.deliveries import CompletedRequests
from retire.engine.frames import choices_in
from retire.mailbox import GateState
from retire.telemetry.spans import NOTHING, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from retire.engine.deliveries import Deliveries
    from retire.engine.inputs import Work
    from retire.engine.tag import Tag
    from retire.mailbox import SlotRef
    from retire.mailbox.layout import Current
    from retire.protocol.versions import ScopeKey, Version

_log = logging.getLogger("retire.engine")

HOLD_POLL_S: Final = 0.02  # how often a held stream looks whether its lease is back
VERDICT_WAIT_S: Final = 0.25  # how long a gate that closed first waits to be told why
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
    place: int  # of its prompt among those of one completion call
    deliveries: Deliveries
    prompt_tokens: int
    cached_tokens: int  # of the prompt: inherited, or found in the prefix cache

    def wake(self) -> None:
        """Make a waiting ``get`` look at the gate."""
        ...


@dataclass(frozen=True, slots=True)
class End:
    """How a publication ended; ``current`` None: not known (the slot is gone)."""

    why: Ended
    current: Version | None


class Publication:
    """One HTTP response that may carry tokens of a scope.

    Without a tag (not admitted yet, or a route that carries no tokens) everything passes. With one,
    nothing passes once ``ended`` is set, by whoever sees the stale word first: a Switch of the
    sidecar or any gate. The rest follows from callbacks, once: the guard writes the terminal event,
    consumers wake up, the engine requests are aborted.
    """

    def __init__(self, owner: Publications) -> None:
        self.tag: Tag | None = None
        self.caller: str | None = None  # the tenant of the call's token; None: none is asked for
        self.work: Work | None = None  # counts for the scope's policy until this ends
        self.ended: End | None = None
        self.streaming = False  # the response is an event stream and its head was written
        self.expected_choices = 1  # n of the request that is being added (seams/tags.py)
        self.expected_id = ""  # its external id
        self.consumers: list[Waker] = []
        self.admitted = asyncio.Event()  # a request of this response reached the engine's client
        self.preamble = asyncio.Event()  # what must precede even a terminal event was written
        self.preamble.set()
        self.body: Callable[[], bytes] = bytes  # of the call, as its application has read it
        self.extra: dict[str, Any] = {}  # what a terminal JSON must hold besides (a receipt)
        self.span: Span = NOTHING  # of its inference
        self.operation = ""  # what that is called
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
        self._rest()
        self._owner.remove(self)
        self.tag = self._mailbox = None

    def attach(self, consumer: Waker) -> None:
        """A consumer of engine output belongs to this response."""
        self.consumers.append(consumer)
        self.admitted.set()
        if self.ended is not None:  # retired between admission and the engine
            self._owner.spawn(self._owner.abort([consumer.request_id]))

    @property
    def engine_request_id(self) -> str:
        """vLLM's internal id of this response's first request; of its first choice if n > 1."""
        first = self.consumers[0]
        return f"0_{first.request_id}" if first.deliveries.choices > 1 else first.request_id

    def give_up(self) -> None:
        """Abort what runs for this response; what its caller is told comes otherwise."""
        ids = [consumer.request_id for consumer in self.consumers]
        if ids:
            self._owner.spawn(self._owner.abort(ids))

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
        """End now, without blocking. The first end acts; a later one may name the true reason."""
        first = self.ended is None
        if first or (told and not self._told.is_set()):
            self.ended = End(why, current)
        if told:
            self._told.set()
        if first:
            self._owner.on_ended(why)
            self._close()

    async def end_reason(self) -> End:
        """The end, after a short wait for the sidecar's word on it."""
        assert self.ended is not None
        try:
            await asyncio.wait_for(self._told.wait(), VERDICT_WAIT_S)
        except TimeoutError:
            self._told.set()  # from here on the reason is fixed
        return self.ended

    def wrote(self, body: bytes, *, complete: bool) -> None:
        """A gated part of the body is in the transport; ``complete``: it was the last one."""
        late = self.tag is not None and self._owner.is_late(self.tag)
        before = self._tokens() if late else 0
        told = choices_in(body) if self.streaming and not complete else None
        if self.streaming or complete:
            self._count(told)
        if late:
            self._owner.on_late(self._tokens() - before)
        if self._owner.record is not None and self.tag is not None:
            for consumer in self.consumers:
                for request_id, index in consumer.deliveries.record():
                    self._owner.record(self.tag, request_id, index)

    def _count(self, told: tuple[int, ...] | None) -> None:
        if told is None:
            for consumer in self.consumers:
                consumer.deliveries.wrote_all()
            return
        one_ahead = len(self.consumers) > 1
        for index in told:
            for consumer in self.consumers:
                choice = index - consumer.place * consumer.deliveries.choices
                if 0 <= choice < consumer.deliveries.choices:
                    consumer.deliveries.wrote(choice, one_ahead=one_ahead)

    def _tokens(self) -> int:
        return sum(sum(consumer.deliveries.published) for consumer in self.consumers)

    def last_published(self) -> dict[str, int]:
        """Engine request id -> index of the last output token handed to the transport."""
        published: dict[str, int] = {}
        for consumer in self.consumers:
            published |= consumer.deliveries.last_published()
        return published

    def usage(self) -> dict[str, int]:
        """OpenAI's usage of what was handed to the transport, and of nothing else."""
        prompt = sum(consumer.prompt_tokens for consumer in self.consumers)
        completion = sum(index + 1 for index in self.last_published().values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def discard(self) -> None:
        """The application is done with this response."""
        self._rest()
        self._owner.remove(self)

    def _rest(self) -> None:
        if self.span.on:
            tracing.inferred(self)
        if self.work is not None:
            self.work.end()

    def _end_stale(self) -> None:
        assert self.tag is not None and self._mailbox is not None
        now = self._mailbox.current(self.tag.slot.index, self.tag.slot.tenure)
        cancelled = now is not None and bool(now.flags & _CANCELLED_FLAG)
        why = Ended.CANCELLED if cancelled else Ended.SUPERSEDED
        self.end(why, now.version if now else None, told=cancelled)

    def _close(self) -> None:
        self._rest()
        for consumer in self.consumers:
            consumer.wake()
        self.give_up()
        if self.on_end is not None:
            self._owner.spawn(self.on_end())


class Publications:
    """Every live publication of this process, by scope.

    ``abort`` is told vLLM's internal request ids of a response that has ended; ``record`` (None: no
    history is kept) each token that went out: its tag, engine request id and index.
    """

    def __init__(
        self,
        *,
        hold_s: float,
        abort: Callable[[list[str]], Coroutine[Any, Any, None]],
        record: Callable[[Tag, str, int], None] | None = None,
    ) -> None:
        self.hold_s = hold_s
        self.abort = abort
        self.record = record
        self.is_late: Callable[[Tag], bool] = lambda _: False  # measures.py; asked at every frame
        self.on_late: Callable[[int], None] = lambda _: None
        self.on_ended: Callable[[Ended], None] = lambda _: None
        self._live: dict[ScopeKey, set[Publication]] = {}
        self._completed = CompletedRequests()
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
        self._completed.add(key, publication.tag.version, publication.last_published())

    def switch(self, key: ScopeKey, to: Version, why: Ended) -> dict[str, int]:
        """End every publication of the scope below ``to``: request id -> last published index.

        When this returns, no frame of a lower version is between its check and the transport, or
        ever will be: a guard checks the word and writes without an await in between (``asgi.py``),
        this runs on the same event loop, so every frame that had passed its check is already in the
        transport, and every later one meets ``ended``. Hence acking a Switch after this call *is*
        the barrier through the event loop that UNPUBLISHABLE needs (design, section 6.2).
        """
        published = self._completed.take(key, below=to)
        for publication in tuple(self._live.get(key, ())):
            assert publication.tag is not None
            if publication.tag.version < to:
                publication.end(why, to)
                published |= publication.last_published()
        return published

    def scopes(self) -> tuple[ScopeKey, ...]:
        """Scopes with live responses here."""
        return tuple(self._live)

    def live(self, key: ScopeKey) -> Iterable[Publication]:
        """Live publications of one scope."""
        return tuple(self._live.get(key, ()))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside the caller; kept alive until done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of a publication failed", exc_info=error)


CURRENT: Final[ContextVar[Publication | None]] = ContextVar("retire_publication", default=None)
"""The publication on whose behalf the running task works (None: plain vLLM)."""

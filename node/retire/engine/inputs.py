"""What becomes of a new input: let in, queued, refused, or let in by superseding what runs.

Owns the wait of an input before it acts. The decision is the protocol's (``policy.decide_input``);
who works and who waits is counted in ``turns.py``, under a lock that also makes the decision and
its consequence one. Must never import vLLM, touch a socket or commit a version.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from retire.engine.turns import Place, Turns
from retire.mailbox import GateState, SlotFlags
from retire.protocol.contract import Contract, Policy
from retire.protocol.errors import PolicyRefused, QueueFull, ScopeClosed, Unavailable
from retire.protocol.events import Admission
from retire.protocol.policy import InputAction, InputDecision, decide_input

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from retire.engine.headers import Claim
    from retire.engine.tag import Tag
    from retire.mailbox import MailboxView, SlotRef
    from retire.protocol.versions import ScopeKey, Version

# Another process's work ends without a word to this one: look again, less often with time.
LOOK_AGAIN_S: Final = (0.05, 0.1, 0.25)


class Current(Protocol):
    """The part of ``admissions.Admissions`` that inputs use."""

    async def admit(self, claim: Claim) -> Tag:
        """The scope's current tag."""
        ...

    def policy(self, key: ScopeKey) -> Policy | None:
        """The scope's own policy, as last heard."""
        ...


class Work:
    """One input that was let in, until it ends. ``end`` twice is once."""

    def __init__(self, inputs: Inputs, key: ScopeKey, turns: Turns, slot: SlotRef) -> None:
        self._inputs = inputs
        self._key = key
        self._turns = turns
        self._slot = slot
        self._ended = False

    def end(self) -> None:
        """It does not run any more: delivered, superseded, or its caller left."""
        if self._ended:
            return
        self._ended = True
        self._inputs.change(self._key, self._turns, self._slot, Place.rest)


@dataclass(frozen=True, slots=True)
class Entry:
    """An input that may act now: under ``tag``; or, with a contract, by superseding it first."""

    tag: Tag
    work: Work
    supersede: Contract | None = None


class CallerLeft(Exception):
    """Whoever sent the input does not wait for it any more."""


class Input:
    """One new input and its place in the line. ``left`` returns when its caller goes away."""

    def __init__(self, claim: Claim, left: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.claim = claim
        self.left = left
        self.ticket = time.monotonic_ns()
        self.line: tuple[Turns, SlotRef] | None = None  # where it waits
        self.why = f"scope {claim.key.scope!r} is changing its version"  # what it waits for

    def as_part_of(self, version: Version) -> Input:
        """The same input, known to belong to ``version``: no policy is asked about it."""
        return Input(replace(self.claim, version=version), self.left)


class Inputs:
    """Every new input of this process. ``mailbox`` is this host's; ``spawn`` runs a coroutine."""

    def __init__(
        self,
        current: Current,
        mailbox: Callable[[], MailboxView],
        *,
        wait_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._current = current
        self._mailbox = mailbox
        self._wait_s = wait_s
        self._turns: tuple[str, Turns] | None = None
        self._changes: WeakValueDictionary[ScopeKey, asyncio.Event] = WeakValueDictionary()
        self.spawn = spawn

    async def enter(self, one: Input) -> Entry:
        """Wait until the input may act. Its caller's going away cancels this, and it leaves.

        Raises what the scope's policy says, VersionConflict, ScopeClosed, QueueFull, Unavailable,
        CallerLeft.
        """
        entry = await self._step(one)
        if entry is not None:
            return entry
        waited_until_s = time.monotonic() + self._wait_s
        leaving = asyncio.create_task(one.left())
        pauses = itertools.chain(LOOK_AGAIN_S, itertools.repeat(LOOK_AGAIN_S[-1]))
        try:
            while entry is None:  # nothing may be awaited between an entry and our return
                left_s = waited_until_s - time.monotonic()
                if left_s <= 0:
                    raise Unavailable(f"{one.why}: this input waited {self._wait_s:g} s; retry")
                await self._change(one.claim.key, leaving, at_most_s=min(left_s, next(pauses)))
                entry = await self._step(one)
        finally:
            leaving.cancel()
            self._leave(one)
        return entry

    async def begin(self, tag: Tag) -> Work:
        """Count work that needs no leave: a SUPERSEDE's own successor."""
        turns = self._open()
        async with turns.at(tag.slot) as place:
            place.work()
        return Work(self, tag.key, turns, tag.slot)

    def changed(self, key: ScopeKey) -> None:
        """Something of the scope has moved: those who wait look again."""
        event = self._changes.pop(key, None)
        if event is not None:
            event.set()

    def change(
        self, key: ScopeKey, turns: Turns, slot: SlotRef, action: Callable[[Place], None]
    ) -> None:
        """Change a slot's record at once; beside the caller while another process has it."""

        async def later() -> None:
            async with turns.at(slot) as place:
                action(place)
            self.changed(key)

        with turns.now(slot) as place:
            if place is not None:
                action(place)
        if place is None:
            self.spawn(later())
        self.changed(key)

    async def _step(self, one: Input) -> Entry | None:
        """Decide once. None: not yet."""
        tag = await self._current.admit(one.claim)
        turns = self._open()
        self._leave(one, unless=tag.slot)
        async with turns.at(tag.slot) as place:
            if self._mailbox().gate(tag.slot) is GateState.STALE:
                return None  # it has moved on meanwhile
            decision = self._decide(one, tag, place)
            match decision.action:
                case InputAction.CLOSED:
                    raise ScopeClosed(tag.key, tag.version)
                case InputAction.REFUSE:
                    raise _refused(one, place)
                case InputAction.QUEUE:
                    self._queue(one, tag, place)
                    return None
            place.work()
            work = Work(self, tag.key, turns, tag.slot)
            if decision.action is InputAction.ADMIT:
                return Entry(tag, work)
            return Entry(tag, work, decision.contract)

    def _decide(self, one: Input, tag: Tag, place: Place) -> InputDecision:
        policy = self._policy(one.claim)
        running = place.working > 0
        if policy is Policy.ENQUEUE:
            running = running or any(ticket < one.ticket for ticket in place.waiting)
        decision = decide_input(
            policy,
            admission=admission_of(self._mailbox(), tag.slot),
            running=running,
            contract=Contract(),
        )
        acts = decision.action in (InputAction.ADMIT, InputAction.SUPERSEDE)
        if acts and policy in (Policy.INTERRUPT, Policy.ROLLBACK):
            if place.newest > one.ticket:
                raise _overtaken(one)
            place.overtake(one.ticket)
        return decision

    def _policy(self, claim: Claim) -> Policy | None:
        """The scope's own policy goes first. A call that names its version is no new input."""
        if claim.version is not None:
            return None
        return self._current.policy(claim.key) or claim.policy

    def _queue(self, one: Input, tag: Tag, place: Place) -> None:
        if not place.join(one.ticket):
            raise QueueFull(
                f"scope {tag.key.scope!r}: {len(place.waiting)} inputs wait already; "
                "wait for an answer, or supersede"
            )
        one.line = self._open(), tag.slot
        paused = admission_of(self._mailbox(), tag.slot) is Admission.PAUSED
        state = "is paused" if paused else f"has {place.working} running requests"
        one.why = f"scope {tag.key.scope!r} {state}"

    async def _change(
        self, key: ScopeKey, leaving: asyncio.Task[None], *, at_most_s: float
    ) -> None:
        event = self._changes.setdefault(key, asyncio.Event())
        changed = asyncio.create_task(event.wait())
        try:
            await asyncio.wait(
                (changed, leaving), timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()
        if leaving.done():
            raise CallerLeft

    def _leave(self, one: Input, *, unless: SlotRef | None = None) -> None:
        """Out of the line, unless it is the one of this slot."""
        if one.line is None:
            return
        turns, slot = one.line
        if unless is not None and (slot.index, slot.tenure) == (unless.index, unless.tenure):
            return
        one.line = None
        self.change(one.claim.key, turns, slot, lambda place: place.leave(one.ticket))

    def _open(self) -> Turns:
        """The counts beside the current mailbox; another mailbox file has others."""
        view = self._mailbox()
        if self._turns is None or self._turns[0] != view.boot_id:
            path = Path(view.path)
            for old in path.parent.glob(f"{path.name}.turns-*"):
                if not old.name.endswith(view.boot_id):
                    old.unlink(missing_ok=True)
            self._turns = view.boot_id, Turns(path.with_name(f"{path.name}.turns-{view.boot_id}"))
        return self._turns[1]


def admission_of(mailbox: MailboxView, slot: SlotRef) -> Admission:
    """Whether the scope takes work, by its mailbox word: no RPC."""
    now = mailbox.current(slot.index, slot.tenure)
    if now is None or not now.flags & (SlotFlags.PAUSED | SlotFlags.CANCELLED):
        return Admission.OPEN
    return Admission.CANCELLED if now.flags & SlotFlags.CANCELLED else Admission.PAUSED


def _refused(one: Input, place: Place) -> PolicyRefused:
    return PolicyRefused(
        f"scope {one.claim.key.scope!r}: {place.working} running requests, and its policy for new "
        "input is reject; wait for them, cancel the scope, or supersede"
    )


def _overtaken(one: Input) -> PolicyRefused:
    return PolicyRefused(
        f"scope {one.claim.key.scope!r}: a newer input has taken the place that this one would have"
    )

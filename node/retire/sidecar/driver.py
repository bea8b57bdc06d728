"""Runs transitions: feeds facts to ``transitions.step`` and executes the effects it orders.

The shell around the protocol (design, section 3): it never decides. Every fact enters through
:meth:`Driver.apply`; effects are executed at once and in order (``gates.py``, ``answers.py``). What
takes time runs beside it and comes back as another fact. Must never talk gRPC itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from retire.protocol import effects as fx
from retire.protocol import events as ev
from retire.protocol.errors import (
    IdempotencyConflict,
    IllegalTransition,
    NeedRegister,
    RetireError,
    ScopeClosed,
    TermMismatch,
    VersionConflict,
)
from retire.protocol.history import CommitMade
from retire.protocol.transitions import step
from retire.registry.interface import CommitKind
from retire.sidecar.answers import Answers
from retire.sidecar.author import Author
from retire.sidecar.gates import GateEffects
from retire.sidecar.tracks import Group
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.protocol.contract import Contract
    from retire.protocol.versions import ScopeKey, Version
    from retire.registry.interface import Commit
    from retire.sidecar.calls import Call
    from retire.sidecar.ports import Ports
    from retire.sidecar.scopes import Entry

_log = logging.getLogger(names.LOGGER_SIDECAR)

_REFUSALS: Final[tuple[tuple[type[RetireError], ev.Refusal], ...]] = (
    (VersionConflict, ev.Refusal.VERSION_CONFLICT),
    (ScopeClosed, ev.Refusal.CLOSED),
    (IdempotencyConflict, ev.Refusal.IDEMPOTENCY),
    (NeedRegister, ev.Refusal.NEED_REGISTER),
    (TermMismatch, ev.Refusal.TERM_MISMATCH),
    (RetireError, ev.Refusal.UNAVAILABLE),
)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a commit did to the descendants of its scope."""

    change: ev.Change
    sequence: int
    contract: Contract
    children: tuple[tuple[ScopeKey, Version], ...]
    traceparent: str = ""  # of another node's commit


class Driver:
    """The transitions of one node."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._facts: deque[tuple[ScopeKey, ev.Event]] = deque()
        self._stepping = False
        self.gates = GateEffects(ports, self.apply)
        self.answers = Answers(ports, self.apply)
        self._execute: dict[type, Callable[..., None]] = {
            fx.CommitToRegistry: self._commit_to_registry,
            **self.gates.handlers,
            **self.answers.handlers,
        }

    def start(self, call: Call) -> None:
        """Begin a call on a joined scope; its answers arrive in ``call.events()``."""
        self.answers.calls[call.name] = call
        self.apply(
            call.key,
            ev.ChangeRequested(
                call.name,
                call.change,
                call.expected,
                call.idempotency_key,
                call.body_digest,
                call.contract,
            ),
        )

    async def answered(self, call: str, *, wait_s: float) -> None:
        """Until the registry has answered the named call, or there is no such call here."""
        waiting = self.answers.calls.get(call)
        if waiting is not None and not waiting.answered.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting.answered.wait(), wait_s)

    def apply(self, key: ScopeKey, event: ev.Event) -> None:
        """Feed one fact. Facts that effects produce are fed after the effects before them."""
        self._facts.append((key, event))
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._facts:
                self._step(*self._facts.popleft())
        finally:
            self._stepping = False

    def observe(
        self,
        key: ScopeKey,
        event: ev.VersionObserved,
        group: Group | None = None,
        *,
        own: bool = False,
        traceparent: str = "",
    ) -> None:
        """A commit from the stream, or a descendant's part of one, applied to a joined scope.

        ``own``: made by a call of this node that still waits for the registry's answer.
        ``traceparent``: of another node's commit.
        """
        entry = self._ports.scopes.find(key)
        if entry is None or entry.state.version is None:
            return
        if event.change.moves_version and event.version > entry.state.version:
            track = self._ports.tracks.open(key, event.version, self._ports.clock())
            track.group = group
            track.mine = track.sole = own
            if traceparent:
                track.span = self._ports.stages.follow(key, event, traceparent)
        self.apply(key, event)

    def _step(self, key: ScopeKey, event: ev.Event) -> None:
        entry = self._ports.scopes.find(key)
        if entry is None:  # its slot was freed meanwhile: nothing of it can publish here
            return
        try:
            stepped = step(entry.state, event)
        except IllegalTransition as error:
            _log.error("a fact does not fit", extra=fields(scope=key, error=error))
            return
        admission = entry.state.admission
        entry.state = stepped.state
        if stepped.state.admission is not admission:
            self._ports.scopes.store_admission(entry)
        for effect in stepped.effects:
            self._execute[type(effect)](entry, effect)
        self._ports.tracks.prune(key, {t.to_version for t in stepped.state.transitions})

    def _commit_to_registry(self, entry: Entry, effect: fx.CommitToRegistry) -> None:
        call = self.answers.calls[effect.call]
        self._ports.tasks.spawn(self._commit(call), name=f"{call.change.value} of {call.key}")

    async def _commit(self, call: Call) -> None:
        own, stages = self._ports.identity, self._ports.stages
        span = stages.commit(call)
        try:
            commit = await self._ports.registry.commit(
                CommitKind(call.change.value),
                call.key,
                term=own.term,
                expected=call.expected,
                idempotency_key=call.idempotency_key,
                body_digest=call.body_digest,
                by=Author(own.node, call.name, call.contract, span.traceparent).encode(),
            )
        except RetireError as error:
            call.answered.set()
            call.error = error
            stages.refused(span, error)
            refusal = next(r for kind, r in _REFUSALS if isinstance(error, kind))
            current = error.current if isinstance(error, (VersionConflict, ScopeClosed)) else None
            self.apply(call.key, ev.CommitRefused(call.name, refusal, current))
            return
        stages.committed(call, span, commit)
        self._committed(call, commit)
        call.answered.set()

    def _committed(self, call: Call, commit: Commit) -> None:
        """COMMIT is durable. Descendants first: this host is behind it when all of them are."""
        if self._ports.history.on and not commit.replayed:
            self._record(call, commit)
        remote = self.gates.remote(commit)
        stored = (
            self._ports.scopes.receipt(call.key, commit.to_version) if commit.replayed else None
        )
        call.stored_receipt = (stored.json if stored else commit.receipt_json) or ""
        if call.change.moves_version:
            track = self._ports.tracks.open(call.key, commit.to_version, call.started_s)
            track.mine, track.sole, track.span = True, not remote, call.span
            call.children = commit.children
            for child, to in commit.children:
                if self._is_behind(child, to):
                    moved = self._ports.tracks.open(child, to, call.started_s)
                    moved.moved_by, moved.span = call, call.span
            track.group = self.observe_children(
                commit.key,
                commit.to_version,
                Moved(call.change, commit.sequence, call.contract, commit.children),
            )
        self.apply(
            call.key,
            ev.Committed(
                call=call.name,
                change=call.change,
                from_version=commit.from_version,
                to_version=commit.to_version,
                sequence=commit.sequence,
                generation=commit.generation,
                gates=self.gates.local() + remote,
                replayed=commit.replayed,
            ),
        )
        if remote:
            self.gates.say_ack(call.key, commit.to_version)

    def observe_children(self, key: ScopeKey, version: Version, moved: Moved) -> Group | None:
        """Apply a commit to the descendants joined here; the group they form with the scope
        itself.
        """
        ahead = [(child, to) for child, to in moved.children if self._is_behind(child, to)]
        if not ahead:
            return None
        group = Group(key, version, {child for child, _ in ahead})
        for child, to in ahead:
            entry = self._ports.scopes.get(child)
            self.observe(
                child,
                ev.VersionObserved(
                    moved.change,
                    to,
                    moved.sequence,
                    generation=entry.state.generation,
                    gates=self.gates.local(),
                    contract=moved.contract,
                ),
                group,
                traceparent=moved.traceparent,
            )
        return group

    def _record(self, call: Call, commit: Commit) -> None:
        """One commit, a line for each scope that it moved."""
        at_ns, write = time.monotonic_ns(), self._ports.history.write
        name = call.idempotency_key
        before, after = commit.from_version, commit.to_version
        write(CommitMade(at_ns, call.key, call.change, before, after, name, commit.generation))
        for child, to in commit.children:
            before = replace(to, epoch=to.epoch - 1)  # commit.lua: each by one
            write(CommitMade(at_ns, child, call.change, before, to, name))

    def _is_behind(self, key: ScopeKey, version: Version) -> bool:
        entry = self._ports.scopes.find(key)
        return (
            entry is not None and entry.state.version is not None and entry.state.version < version
        )

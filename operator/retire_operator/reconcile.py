"""One ServingScope brought to what its object says: gather, decide, apply, until nothing is left.

Level-triggered: it looks at what is, never at what changed, so it may be called too often, too
late, or by two operators at once. Must never hold a lock, nor remember anything between calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import (
    InvalidField,
    RetireError,
    ScopeClosed,
    Unavailable,
    VersionConflict,
)
from retire.telemetry.logs import fields
from retire_operator import actions as do
from retire_operator import events, render
from retire_operator.errors import ObjectMissing, WriteConflict
from retire_operator.facts import Facts, Failure, Seen
from retire_operator.resource import Ref, parse

if TYPE_CHECKING:
    from retire_operator.apply import Executor
    from retire_operator.events import Recorder
    from retire_operator.observe import Observer
    from retire_operator.resource import Desired
    from retire_operator.store import ScopeStore
    from retire_operator.verdicts import Plan

_log = logging.getLogger("retire.operator")
STEPS_MAX: Final = 64  # transitions in one go; a longer burst goes on after a status
# The facts were stale: gather again at once, nothing failed.
_STALE: Final = (VersionConflict, ScopeClosed)


class Reconciler:
    """Brings one object at a time up to date; the queue sees to it that it is one."""

    def __init__(
        self,
        store: ScopeStore,
        observer: Observer,
        executor: Executor,
        recorder: Recorder,
        *,
        wall_s: Callable[[], float],
        fetch: Callable[[Ref], Any],
    ) -> None:
        self._store = store
        self._observer = observer
        self._executor = executor
        self._recorder = recorder
        self._wall_s = wall_s
        self._fetch = fetch  # the object as the API server has it now

    async def __call__(self, ref: Ref) -> float | None:
        """Seconds until to look again, None: when something changes. Raises what is to be tried
        again."""
        try:
            return await self._once(ref)
        except WriteConflict:  # somebody was faster: read what they wrote, decide again
            await self._refresh(ref)
            return await self._once(ref)

    async def _refresh(self, ref: Ref) -> None:
        try:
            self._store.put(await self._fetch(ref))
        except ObjectMissing:
            self._store.remove(ref)

    async def _once(self, ref: Ref) -> float | None:
        for _ in range(STEPS_MAX):
            body = self._store.body(ref)
            if body is None:
                return None
            try:
                desired = parse(body)
            except InvalidField as error:
                await self._say_invalid(ref, body, error)
                return None
            facts = await self._observer.gather(desired, body.get("status") or {})
            plan = render.decide(facts, self._wall_s())
            if plan.settled or isinstance(plan.actions[0], do.Warm):
                return await self._settle(facts)
            failure = await self._act(facts, plan)
            if failure is not None:
                await self._settle(facts, failure[0])
                raise failure[1]
            if any(isinstance(action, do.RemoveFinalizer) for action in plan.actions):
                return None
        return 0.01

    async def _act(self, facts: Facts, plan: Plan) -> tuple[Failure, RetireError] | None:
        """Do what was decided; a failure is told in the status and tried again by the queue."""
        for action in plan.actions:
            try:
                await self._executor.act(facts, action)
            except WriteConflict:
                raise
            except _STALE as error:
                _log.info("facts were stale", extra=fields(scope=facts.desired.key, why=error))
            except RetireError as error:
                kind = type(action).__name__
                return Failure(kind, _reason(kind, error), str(error)), error
            if isinstance(action, do.TellGuard):
                failure = Failure("TellGuard", "RegistryBehind", action.why)
                return failure, Unavailable(action.why)
        return None

    async def _settle(self, facts: Facts, failure: Failure | None = None) -> float | None:
        """Nothing to move: look at the details, warm, write the status."""
        facts = await self._observer.detail(facts, failure)
        plan = render.decide(facts, self._wall_s())
        error: RetireError | None = None
        if failure is None and plan.actions and isinstance(plan.actions[0], do.Warm):
            facts, error = await self._warm(facts, plan.actions[0])
            plan = render.decide(facts, self._wall_s())
        await self._write(facts.desired, plan)
        if error is not None:
            raise error
        waits = [action.after_s for action in plan.actions if isinstance(action, do.Requeue)]
        return min(waits, default=None)

    async def _warm(self, facts: Facts, action: do.Warm) -> tuple[Facts, RetireError | None]:
        try:
            added = await self._executor.act(facts, action)
        except RetireError as error:
            failure = Failure("Warm", _reason("Warm", error), str(error))
            return replace(facts, failure=failure), error
        return replace(facts, seen=Seen({**facts.seen.raw, **added})), None

    async def _write(self, desired: Desired, plan: Plan) -> None:
        body = self._store.body(desired.ref)
        if body is None or body["metadata"]["uid"] != desired.uid:
            return
        if desired.deleted_at_s is not None and not desired.has_finalizer:
            return  # it goes; nobody reads it any more
        before = render.ready_of(body.get("status") or {})
        if await self._executor.write_status(desired.ref, plan.status):
            note = events.of_verdict(plan.verdict, before=before)
            if note is not None:
                self._recorder.record(desired, note)

    async def _say_invalid(self, ref: Ref, body: dict[str, Any], error: InvalidField) -> None:
        generation = int(body["metadata"].get("generation") or 0)
        plan = render.invalid(
            error, body.get("status") or {}, generation=generation, now_s=self._wall_s()
        )
        await self._executor.write_status(ref, plan.status)


def _reason(kind: str, error: RetireError) -> str:
    """``SupersedeFailed``, or the error's own code where that says more."""
    if error.code in ("error", "unavailable"):
        return f"{kind}Failed"
    return "".join(part.capitalize() for part in error.code.split("_"))

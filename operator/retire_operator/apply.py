"""Executes what was decided: calls to sidecars and the registry, finalizers, the status.

The only module that changes anything. Each action is safe to repeat: compare-and-set, idempotency
keys, resourceVersions. Must never decide what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from retire.protocol.errors import RetireError, Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.client import Mutation
from retire.telemetry import names
from retire.telemetry.logs import fields
from retire.telemetry.spans import Span, context_of, trace_id
from retire.telemetry.tracing import OFF, Tracer
from retire_operator import actions as do
from retire_operator import events, receipts
from retire_operator.errors import ObjectMissing
from retire_operator.receipts import Line
from retire_operator.resource import FINALIZER, Desired, Ref

if TYPE_CHECKING:
    from retire.sidecar.pb import node_pb2 as pb
    from retire_operator.events import Recorder
    from retire_operator.facts import Facts
    from retire_operator.mirror import Mirror
    from retire_operator.nodes import SidecarPool
    from retire_operator.ports import Guard, Node, Registry
    from retire_operator.store import ScopeStore

_log = logging.getLogger("retire.operator")
WARM_S: Final = 60.0  # the prefill of a long context


class Writes(Protocol):
    """What is written to the API server (kube.Kube)."""

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], *, version: str) -> Any:
        """See kube.py."""
        ...

    async def patch_finalizers(self, ref: Ref, names: list[str], *, version: str) -> Any:
        """See kube.py."""
        ...


@dataclass(frozen=True, slots=True)
class Targets:
    """Everybody who is called."""

    writes: Writes
    registry: Registry
    pool: SidecarPool
    guard: Guard
    store: ScopeStore
    mirror: Mirror
    recorder: Recorder


class Executor:
    """``wall_s``: Unix time, for receipts. ``new_id(n)``: n random bytes in hexadecimal."""

    def __init__(
        self,
        targets: Targets,
        *,
        wall_s: Callable[[], float],
        new_id: Callable[[int], str] = secrets.token_hex,
        tracer: Tracer = OFF,
    ) -> None:
        self._to = targets
        self._wall_s = wall_s
        self._new_id = new_id
        self._tracer = tracer

    async def act(self, facts: Facts, action: do.Action) -> dict[str, Any]:
        """Do one action; returns what it adds to the status. Errors of the tree."""
        match action:
            case do.AddFinalizer():
                await self._finalizers(facts.desired, present=True)
            case do.RemoveFinalizer():
                await self._release(facts.desired, action)
            case do.Register():
                await self._register(facts.desired, action)
            case do.Configure():
                await self._to.registry.configure(
                    facts.desired.key, term=action.term, policy=action.policy, parent=action.parent
                )
            case do.Supersede():
                await self._supersede(facts, action)
            case do.Cancel() | do.Pause() | do.Resume():
                await self._change(facts, action)
            case do.Warm():
                return await self._warm(facts, action)
            case do.TellGuard():
                self._to.guard.suspect(action.why)
            case do.Requeue():
                pass
            case _:
                raise AssertionError(f"unknown action {action}")
        return {}

    async def write_status(self, ref: Ref, status: Mapping[str, Any]) -> bool:
        """Write what differs from the status in the store; whether anything did. WriteConflict when
        the object is not the one in the store any more."""
        body = self._to.store.body(ref)
        if body is None:
            return False
        patch = difference(body.get("status") or {}, status)
        if not patch:
            return False
        version = body["metadata"]["resourceVersion"]
        try:
            written = await self._to.writes.patch_status(ref, patch, version=version)
        except ObjectMissing:
            return False
        self._to.store.put(written)
        return True

    async def _finalizers(self, desired: Desired, *, present: bool) -> None:
        body = self._to.store.body(desired.ref)
        if body is None:
            return
        meta = body["metadata"]
        others = [name for name in meta.get("finalizers") or () if name != FINALIZER]
        names = [*others, FINALIZER] if present else others
        version = meta["resourceVersion"]
        try:
            written = await self._to.writes.patch_finalizers(desired.ref, names, version=version)
        except ObjectMissing:
            return
        self._to.store.put(written)

    async def _release(self, desired: Desired, action: do.RemoveFinalizer) -> None:
        if action.warning:
            note = events.Note("Warning", "DeletedUnfinished", action.warning)
            self._to.recorder.record(desired, note)
        await self._finalizers(desired, present=False)

    async def _register(self, desired: Desired, action: do.Register) -> None:
        await self._to.guard.open_tenant(desired.key.tenant)
        record = await self._to.registry.register(
            desired.key,
            term=action.term,
            epoch=action.epoch,
            policy=action.policy,
            parent=action.parent,
        )
        verb = "registered" if record.created else "adopted"
        _log.info(verb, extra=fields(scope=desired.key, version=record.version))
        note = events.Note("Normal", verb.capitalize(), f"{desired.key} at {record.version}", verb)
        self._to.recorder.record(desired, note)

    async def _supersede(self, facts: Facts, action: do.Supersede) -> None:
        key, answers = facts.desired.key, list[Any]()
        span = self._begin(facts.desired, "supersede")
        mutation, line = self._mutation(facts.desired, action, "supersede", span)

        async def work(node: Node) -> None:
            answers.clear()
            stream = node.supersede(key, mutation, contract=action.contract)
            async for event in stream:
                answers.append(event)
            if not any(event.WhichOneof("event") == "unpublishable" for event in answers):
                raise Unavailable("the stream ended before UNPUBLISHABLE")

        with _ending(span):
            await self._to.pool.call(facts.desired.pool, work, prefer=_prefer(facts))
        self._made(facts.desired, receipts.from_events(line, answers))

    async def _change(self, facts: Facts, action: do.Cancel | do.Pause | do.Resume) -> None:
        kind = type(action).__name__.lower()
        span = self._begin(facts.desired, kind)
        mutation, line = self._mutation(facts.desired, action, kind, span)

        async def work(node: Node) -> pb.TransitionReply:
            return await getattr(node, kind)(facts.desired.key, mutation)

        with _ending(span):
            _, reply = await self._to.pool.call(facts.desired.pool, work, prefer=_prefer(facts))
        self._made(facts.desired, _answered(line, reply))

    def _begin(self, desired: Desired, kind: str) -> Span:
        """The span of a change, below the trace that the object's annotation names."""
        return self._tracer.start(
            f"{names.SPAN_TRANSITION.name}.{kind}",
            {
                names.A_TENANT.name: desired.key.tenant,
                names.A_SCOPE.name: desired.key.scope,
                names.A_CHANGE.name: kind,
                names.A_OBJECT.name: desired.uid,
            },
            parent=self._traceparent(desired, fresh=not self._tracer.on),
        )

    def _mutation(
        self,
        desired: Desired,
        action: do.Supersede | do.Cancel | do.Pause | do.Resume,
        kind: str,
        span: Span,
    ) -> tuple[Mutation, Line]:
        name = action.idempotency_key
        if kind in receipts.HOLDING:  # the version stays, so the same change may come again
            name = f"{name}/{self._new_id(8)}"
        line = Line(
            kind=kind,
            to_version=action.expected.next_epoch() if kind in receipts.MOVING else action.expected,
            by=receipts.REVISION,
            at=receipts.rfc3339(self._wall_s()),
            trace_id=trace_id(span.traceparent),
            idempotency_key=name,
        )
        # The key alone says what is asked: an operator that saw another contract or expected
        # version under the same key means the same transition, and gets its answer.
        digest = hashlib.sha256(name.encode()).digest()
        return Mutation(action.expected, name, digest, span.traceparent), line

    def _traceparent(self, desired: Desired, *, fresh: bool = True) -> str:
        """The annotation's; ``fresh``: else a new one, so that a receipt can be found by it."""
        if context_of(desired.traceparent) is not None:
            return desired.traceparent
        if not fresh:
            return ""
        return f"00-{self._new_id(16)}-{self._new_id(8)}-01"

    def _made(self, desired: Desired, line: Line) -> None:
        self._to.mirror.add(desired.key, line)
        self._to.recorder.record(desired, events.of_transition(line))
        _log.info(
            line.kind,
            extra=fields(
                scope=desired.key,
                to=line.to_version,
                unpublishable_ms=line.unpublishable_ms,
                trace=line.trace_id,
            ),
        )

    async def _warm(self, facts: Facts, action: do.Warm) -> dict[str, Any]:
        key: ScopeKey = facts.desired.key
        body, trace = action.request_json.encode("utf-8", "surrogatepass"), facts.desired

        async def work(node: Node) -> pb.WarmReply:
            return await node.warm(
                key, action.version, request_json=body, traceparent=self._traceparent(trace)
            )

        name, reply = await self._to.pool.call(
            facts.desired.pool, work, prefer=(action.node,), timeout_s=WARM_S
        )
        return {
            "prewarm": {
                "version": str(action.version),
                "digest": action.digest,
                "node": reply.node or name,
                "promptTokens": reply.prompt_tokens,
                "cachedTokens": reply.cached_tokens,
            }
        }


@contextlib.contextmanager
def _ending(span: Span) -> Iterator[None]:
    try:
        yield
    except RetireError as error:
        span.fail(error.code, str(error))
        raise
    finally:
        span.end()


def _answered(line: Line, reply: pb.TransitionReply) -> Line:
    before, after = getattr(reply, "from"), reply.to
    line = replace(
        line,
        from_version=Version(before.term, before.epoch),
        to_version=Version(after.term, after.epoch),
    )
    return receipts.with_receipt(line, reply.receipt_json)


def _prefer(facts: Facts) -> tuple[str, ...]:
    """Nodes that hold the scope, the one with most of its KV first."""
    holders = sorted(
        (node for node in facts.nodes if node.holds),
        key=lambda node: (-node.pinned_blocks, -node.requests, node.name),
    )
    return tuple(node.name for node in holders)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch of the top level: what changed, and null for what is gone."""
    patch = {name: value for name, value in new.items() if old.get(name) != value}
    patch |= {name: None for name in old if name not in new}
    for name, value in patch.items():  # a merge patch would keep what is not named inside an object
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            patch[name] = {**{key: None for key in before if key not in value}, **value}
    return patch

"""Tells the stages of a transition to whoever watches: spans of its trace, one log line a stage.

Observes, never decides; whatever it does must not change what a transition comes to.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from retire.telemetry import names
from retire.telemetry.logs import fields
from retire.telemetry.spans import NOTHING, Kind, Link, Period, Span, context_of, trace_id

if TYPE_CHECKING:
    from retire.protocol.errors import RetireError
    from retire.protocol.events import VersionObserved
    from retire.protocol.versions import ScopeKey, Version
    from retire.registry.interface import Commit
    from retire.sidecar.calls import Call
    from retire.sidecar.pb import node_pb2 as pb
    from retire.sidecar.tracks import Track
    from retire.telemetry.tracing import Tracer

_log = logging.getLogger(names.LOGGER_STAGES)
_NS_PER_MS = 1e6


class Stages:
    """Those of one node."""

    def __init__(self, tracer: Tracer, *, node: str) -> None:
        self._tracer = tracer
        self._node = node

    def begin(self, call: Call) -> None:
        """A call has come in. From here on its context is this span's."""
        call.span = self._tracer.start(
            f"{names.SPAN_NODE.name}.{call.change.value}",
            {
                names.A_TENANT.name: call.key.tenant,
                names.A_SCOPE.name: call.key.scope,
                names.A_CHANGE.name: call.change.value,
                names.A_EXPECTED.name: str(call.expected),
                names.A_KEY.name: call.idempotency_key,
                names.A_NODE.name: self._node,
            },
            parent=call.traceparent,
            kind=Kind.SERVER,
        )
        call.traceparent = call.span.traceparent

    def commit(self, call: Call) -> Span:
        """The registry is asked; its event carries the context of this span to other nodes."""
        return call.span.child(
            names.SPAN_COMMIT.name,
            {names.A_DB.name: "redis", names.A_DB_OPERATION.name: "commit"},
            kind=Kind.CLIENT,
        )

    def committed(self, call: Call, span: Span, commit: Commit) -> None:
        """ADVANCE is durable."""
        moved = {
            names.A_FROM.name: str(commit.from_version),
            names.A_TO.name: str(commit.to_version),
            names.A_GENERATION.name: commit.generation,
        }
        span.set(moved | {names.A_OUTCOME.name: "replayed" if commit.replayed else "committed"})
        span.end()
        call.span.set(moved | {names.A_REPLAYED.name: commit.replayed})

    def refused(self, span: Span, error: RetireError) -> None:
        """Nothing was committed."""
        span.set({names.A_OUTCOME.name: error.code})
        span.fail(error.code, str(error))
        span.end()

    def advanced(self, call: Call, answer: pb.Committed) -> None:
        """The call knows of its commit."""
        self._say(call, "advance", answer.ms, change=call.change.value)

    def unpublishable(self, call: Call, answer: pb.Unpublishable) -> None:
        """Every gate is accounted for."""
        commit_ms = call.committed.ms if call.committed else 0.0
        began_ns = time.time_ns() - int(answer.ms * _NS_PER_MS)
        if call.span.on:
            told = call.span.child(
                names.SPAN_PROPAGATE.name,
                period=Period(began_ns + int(commit_ms * _NS_PER_MS)),
            )
            for gate in answer.gates:
                told.event(
                    names.EVENT_ACK.name,
                    {
                        names.A_GATE.name: gate.gate,
                        names.A_GATE_OUTCOME.name: gate.outcome,
                        names.A_GATE_MS.name: gate.ms,
                    },
                    at_ns=began_ns + int(gate.ms * _NS_PER_MS),
                )
            told.set({names.A_GATES.name: len(answer.gates)})
            told.end()
        self._say(call, "unpublishable", answer.ms, gates=len(answer.gates))

    def fenced(self, call: Call, answer: pb.Fenced) -> None:
        """No writer of the old version is left, as far as was told in time."""
        residual = answer.residual_ms if answer.HasField("residual_ms") else None
        self._say(
            call, "fence", answer.ms, residual_ms=residual, missing=",".join(answer.missing) or None
        )

    def end(self, call: Call, error: RetireError | None) -> None:
        """The call is over."""
        if error is not None:
            call.span.fail(error.code, str(error))
        call.span.end()

    def follow(self, key: ScopeKey, event: VersionObserved, traceparent: str) -> Span:
        """Another node's commit reached this one."""
        return self._tracer.start(
            names.SPAN_FOLLOW.name,
            {
                names.A_TENANT.name: key.tenant,
                names.A_SCOPE.name: key.scope,
                names.A_CHANGE.name: event.change.value,
                names.A_TO.name: str(event.version),
                names.A_NODE.name: self._node,
            },
            parent=traceparent,
            kind=Kind.CONSUMER,
        )

    def successor(self, key: ScopeKey, version: Version, *, tokens: int, trace: str | None) -> None:
        """ALIGN and RESUME, as the driver reported them."""
        common = {"tenant": key.tenant, "scope": key.scope, "version": version, "trace_id": trace}
        _log.debug("align", extra=fields(stage="align", certified_tokens=tokens, **common))
        _log.debug("resume", extra=fields(stage="resume", **common))

    def reclaimed(self, key: ScopeKey, version: Version, node: str, track: Track | None) -> None:
        """What the old version held on ``node`` may go."""
        span = NOTHING if track is None else track.span
        context = context_of(span.traceparent)
        if track is not None and context is not None and context.sampled:
            attributes = {
                names.A_TENANT.name: key.tenant,
                names.A_SCOPE.name: key.scope,
                names.A_TO.name: str(version),
                names.A_NODE.name: node,
            }
            now_ns = time.time_ns()
            self._tracer.start(
                names.SPAN_RECLAIM.name,
                attributes,
                links=(Link(span.traceparent, "reclaims"),),
                period=Period(track.fenced_ns or now_ns, now_ns),
            )
        if _log.isEnabledFor(logging.DEBUG):
            common = {"tenant": key.tenant, "scope": key.scope, "version": version}
            trace = context.trace_id if context is not None else None
            _log.debug(
                "reclaim", extra=fields(stage="reclaim", node=node, trace_id=trace, **common)
            )

    def close(self) -> None:
        """Export what is left."""
        self._tracer.close()

    def _say(self, call: Call, stage: str, ms: float, **more: object) -> None:
        if not _log.isEnabledFor(logging.DEBUG) or call.committed is None:
            return
        to = call.committed.to
        _log.debug(
            stage,
            extra=fields(
                stage=stage,
                tenant=call.key.tenant,
                scope=call.key.scope,
                version=f"{to.term}.{to.epoch}",
                generation=call.committed.generation,
                ms=round(ms, 3),
                trace_id=trace_id(call.traceparent),
                **{name: value for name, value in more.items() if value is not None},
            ),
        )

"""The spans that an API process begins: changes, the stages it drives, inference of tagged calls.

Off unless ``OTEL_*`` says otherwise (``telemetry/tracing.py``). An untagged call has no span of
ours: vLLM has its own (``--otlp-traces-endpoint``). Must never decide anything, nor import vLLM.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import RetireError
from retire.telemetry import names
from retire.telemetry.spans import Kind, Link, Period, Span
from retire.telemetry.tracing import OFF, Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retire.engine.handoff import Order
    from retire.engine.publication import Publication
    from retire.protocol.versions import ScopeKey
    from retire.sidecar.client import Mutation
    from retire.sidecar.pb import node_pb2 as pb

CHAT: Final = "chat"
TEXT: Final = "text_completion"


@dataclass(frozen=True, slots=True)
class Tracers:
    """Of the API process, and of the engine on whose behalf it tells the engine's spans."""

    api: Tracer = OFF
    engine: Tracer = OFF

    @classmethod
    def from_env(cls) -> Tracers:
        """Read ``OTEL_*``."""
        return cls(Tracer.from_env(names.SERVICE_API), Tracer.from_env(names.SERVICE_ENGINE))


def begin(tracer: Tracer, change: str, key: ScopeKey, mutation: Mutation) -> tuple[Span, Mutation]:
    """A change has come in; the mutation hands its span's context on."""
    span = tracer.start(
        f"{names.SPAN_TRANSITION.name}.{change}",
        {
            names.A_TENANT.name: key.tenant,
            names.A_SCOPE.name: key.scope,
            names.A_CHANGE.name: change,
            names.A_EXPECTED.name: str(mutation.expected),
            names.A_KEY.name: mutation.idempotency_key,
        },
        parent=mutation.traceparent,
        kind=Kind.SERVER,
    )
    return span, replace(mutation, traceparent=span.traceparent)


@contextlib.contextmanager
def change(tracer: Tracer, verb: str, key: ScopeKey, mutation: Mutation) -> Iterator[Mutation]:
    """A change that the sidecar alone carries out, until its answer or its error."""
    span, traced = begin(tracer, verb, key, mutation)
    try:
        yield traced
    except RetireError as error:
        span.fail(error.code, str(error))
        raise
    finally:
        span.end()


def begin_order(tracer: Tracer, order: Order) -> Order:
    """The same for a SUPERSEDE that this process drives: its receipt names the trace."""
    span, mutation = begin(tracer, "supersede", order.key, order.mutation)
    span.set({names.A_INHERIT.name: order.contract.inherit.value})
    return replace(order, span=span, mutation=mutation)


def certified(tracer: Tracer, parent: str, certificate: dict[str, Any], since_ns: int) -> None:
    """ALIGN has answered; ``since_ns``: COMMIT, Unix time."""
    span = tracer.start(
        names.SPAN_CERTIFY.name,
        {
            names.A_FRONTIER.name: certificate.get("frontier_tokens"),
            names.A_INHERITABLE.name: certificate.get("inheritable_tokens"),
            names.A_CERTIFIED.name: certificate.get("certified_tokens"),
            names.A_STOP.name: certificate.get("stop_reason"),
            names.A_REQUEST.name: certificate.get("request_id"),
        },
        parent=parent,
        period=Period(since_ns, now := time.time_ns()),
    )
    pin = certificate.get("pin")
    if pin is not None:
        kept = {
            names.A_BLOCKS.name: pin["blocks"],
            names.A_TIER.name: pin["tier"],
            names.A_LEASE.name: pin["expires_s"],
            names.A_QUOTA.name: pin["quota_left"],
        }
        span.child(names.SPAN_PIN.name, kept, period=Period(now, now))


def admitted(span: Span, request_id: str, successor: str, since_ns: int) -> None:
    """RESUME: the successor is in the engine; ``successor``: context of its inference span."""
    span.child(
        names.SPAN_ADMIT.name,
        {names.A_REQUEST.name: request_id},
        links=(Link(successor, "successor"),) if successor else (),
        period=Period(since_ns, time.time_ns()),
    )


def quiesced(tracer: Tracer, command: pb.Fence, fenced: pb.Fenced, node: str) -> None:
    """FENCE: the engine has answered."""
    residual = fenced.residual_ms if fenced.HasField("residual_ms") else None
    predicted = fenced.predicted_ms if fenced.HasField("predicted_ms") else None
    frontier = max((part.frontier_tokens for part in fenced.participants), default=0)
    tracer.start(
        names.SPAN_QUIESCE.name,
        {
            names.A_NODE.name: node,
            names.A_TO.name: f"{command.to.term}.{command.to.epoch}",
            names.A_BRANCH.name: fenced.branch or None,
            names.A_RESIDUAL.name: residual,
            names.A_PREDICTED.name: predicted,
            names.A_REQUESTS.name: len(fenced.requests),
            names.A_FRONTIER.name: frontier,
            names.A_BLOCKS.name: fenced.pinned_blocks,
            names.A_TIER.name: fenced.tier or None,
        },
        parent=command.traceparent,
        period=Period.since(fenced.ms),
    )


def operation_of(path: str) -> str:
    """The GenAI operation that a route of OpenAI's API is."""
    return CHAT if "chat" in path or path.endswith(("/responses", "/messages")) else TEXT


def infer(tracer: Tracer, publication: Publication, parent: str, operation: str) -> None:
    """A tagged call may act: its inference begins. Its end is :func:`inferred`."""
    tag = publication.tag
    if not tracer.on or tag is None:  # nothing is collected for a span that is not recorded
        return
    publication.span = tracer.start(
        operation,
        {
            names.A_OPERATION.name: operation,
            names.A_PROVIDER.name: "vllm",
            names.A_CONVERSATION.name: tag.key.scope,
            names.A_TENANT.name: tag.key.tenant,
            names.A_SCOPE.name: tag.key.scope,
            names.A_VERSION.name: str(tag.version),
            names.A_GENERATION.name: tag.authority.generation,
        },
        parent=parent,
        kind=Kind.SERVER,
    )
    publication.operation = operation


def inferred(publication: Publication) -> None:
    """It is over: by itself, or at the fence; only the first counts."""
    span = publication.span
    if not span.on:
        return
    usage = publication.usage()
    model = _model(publication.body())
    first = publication.consumers[0].request_id if publication.consumers else None
    span.set(
        {
            names.A_MODEL.name: model,
            names.A_REQUEST.name: first,
            names.A_INPUT.name: usage["prompt_tokens"],
            names.A_OUTPUT.name: usage["completion_tokens"],
            names.A_CACHED.name: sum(c.cached_tokens for c in publication.consumers),
            names.A_LAST.name: max(publication.last_published().values(), default=None),
        }
    )
    if model:
        span.rename(f"{publication.operation} {model}")
    if publication.ended is not None:
        span.set({names.A_FINISH.name: ["abort"]})
        span.fail(publication.ended.why.value)
    span.end()


def _model(body: bytes) -> str | None:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return None
    model = found.get("model") if isinstance(found, dict) else None
    return model if isinstance(model, str) else None

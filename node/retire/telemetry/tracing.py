"""Tracing of one process: off unless a standard ``OTEL_*`` variable says where spans go.

The only importer of the OpenTelemetry SDK. On when ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or its
``_TRACES_`` form) is set, or ``OTEL_TRACES_EXPORTER=otlp``; sampler, batching, headers, timeouts,
resource are the SDK's own variables. Each process has a provider of its own: vLLM's
``--otlp-traces-endpoint`` and an agent's tracing stay theirs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import InvalidField
from retire.telemetry.spans import (
    NOTHING,
    Attributes,
    Kind,
    Link,
    Passing,
    Period,
    Span,
    context_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SCOPE: Final = "retire"  # the instrumentation scope of every span of ours


class Tracer:
    """Begins the spans of one service. ``provider`` None: tracing is off."""

    __slots__ = ("_provider", "_tracer", "on")

    def __init__(self, provider: Any = None) -> None:
        self.on = provider is not None
        self._provider = provider
        self._tracer = provider.get_tracer(_SCOPE) if provider is not None else None

    @classmethod
    def from_env(cls, service: str) -> Tracer:
        """Read ``OTEL_*``, as the SDK does. InvalidField for an exporter that we do not have."""
        return cls(_provider(service, os.environ) if wanted(os.environ) else None)

    def start(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        parent: str = "",
        kind: Kind = Kind.INTERNAL,
        links: Sequence[Link] = (),
        period: Period | None = None,
    ) -> Span:
        """Begin a span below ``parent`` (a ``traceparent``; none: a new trace); ``period``: when it
        began, and ended where it has."""
        if not self.on:
            return Passing(parent) if parent else NOTHING
        return Recording.begin(
            self._tracer, name, attributes, parent=parent, kind=kind, links=links, period=period
        )

    def close(self) -> None:
        """Export what is left."""
        if self._provider is not None:
            self._provider.shutdown()


OFF: Final = Tracer()


def install(service: str) -> None:
    """For a program of ours that is an agent itself: its spans, its libraries' too, go where
    ``OTEL_*`` says."""
    if wanted(os.environ):
        from opentelemetry.trace import set_tracer_provider  # noqa: PLC0415 - only where it is on

        set_tracer_provider(_provider(service, os.environ))


class Recording:
    """A span of the SDK; not sampled, it records nothing and hands its context on all the same."""

    __slots__ = ("_ended", "_span", "_tracer")

    def __init__(self, tracer: Any, span: Any) -> None:
        self._tracer, self._span = tracer, span
        self._ended = False

    @classmethod
    def begin(
        cls,
        tracer: Any,
        name: str,
        attributes: Attributes | None,
        *,
        parent: str,
        kind: Kind,
        links: Sequence[Link],
        period: Period | None,
    ) -> Recording:
        """See :meth:`Tracer.start`."""
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - only where tracing is on

        span = tracer.start_span(
            name,
            context=_remote(parent),
            kind=SpanKind[kind.value],
            attributes=_known(attributes),
            links=_links(links),
            start_time=period.start_ns if period is not None else None,
        )
        made = cls(tracer, span)
        if period is not None and period.end_ns is not None:
            made._ended = True
            span.end(period.end_ns)
        return made

    @property
    def on(self) -> bool:
        """Whether it is sampled and not over."""
        return self._span.is_recording()

    @property
    def traceparent(self) -> str:
        """The W3C context of this span."""
        context = self._span.get_span_context()
        ids = f"{context.trace_id:032x}-{context.span_id:016x}"
        return f"00-{ids}-{int(context.trace_flags):02x}"

    def child(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: Kind = Kind.INTERNAL,
        links: Sequence[Link] = (),
        period: Period | None = None,
    ) -> Span:
        """See Span.child."""
        return Recording.begin(
            self._tracer,
            name,
            attributes,
            parent=self.traceparent,
            kind=kind,
            links=links,
            period=period,
        )

    def set(self, attributes: Attributes) -> None:
        """See Span.set."""
        if self.on:
            self._span.set_attributes(_known(attributes))

    def rename(self, name: str) -> None:
        """See Span.rename."""
        self._span.update_name(name)

    def event(
        self, name: str, attributes: Attributes | None = None, *, at_ns: int | None = None
    ) -> None:
        """See Span.event."""
        if self.on:
            self._span.add_event(name, _known(attributes), at_ns)

    def fail(self, kind: str, message: str = "") -> None:
        """See Span.fail."""
        if self.on:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - the same

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, message or kind))

    def end(self) -> None:
        """See Span.end."""
        if not self._ended:
            self._ended = True
            self._span.end()


def wanted(env: Mapping[str, str]) -> bool:
    """Whether the environment asks for spans."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = env.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter in ("none", "otlp"):
        return exporter == "otlp"
    if exporter:
        raise InvalidField("OTEL_TRACES_EXPORTER", exporter, "otlp, none or absent")
    return any(env.get(name, "").strip() for name in _ENDPOINTS)


def _provider(service: str, env: Mapping[str, str]) -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 - the same
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

    named = env.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: named}))
    provider.add_span_processor(BatchSpanProcessor(_exporter(env)))
    return provider


def _exporter(env: Mapping[str, str]) -> Any:
    protocol = next((env[name] for name in _PROTOCOLS if env.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise InvalidField("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "http/protobuf, or absent")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - the same
        OTLPSpanExporter,
    )

    return OTLPSpanExporter()


def _remote(traceparent: str) -> Any:
    """The SDK's context of a parent; an empty one begins a new trace, whatever else runs here."""
    from opentelemetry.context import Context as Empty  # noqa: PLC0415 - the same
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context  # noqa: PLC0415 - the same

    parent = _span_context(traceparent)
    return Empty() if parent is None else set_span_in_context(NonRecordingSpan(parent), Empty())


def _span_context(traceparent: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - the same

    found = context_of(traceparent)
    if found is None:
        return None
    ids = int(found.trace_id, 16), int(found.span_id, 16)
    return SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(int(found.sampled)))


def _links(links: Sequence[Link]) -> list[Any]:
    from opentelemetry.trace import Link as SdkLink  # noqa: PLC0415 - the same

    found = [(_span_context(link.traceparent), link.kind) for link in links]
    return [SdkLink(context, {"link.type": kind}) for context, kind in found if context is not None]


def _known(attributes: Attributes | None) -> dict[str, Any]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}

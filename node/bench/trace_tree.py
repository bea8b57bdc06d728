"""A trace as Jaeger's API gives it, as a tree; the walk that says which hop is missing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from retire.telemetry import names

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """One span."""

    id: str
    trace_id: str
    name: str
    service: str
    parent: str | None  # id; None: a root
    links: tuple[tuple[str, str], ...]  # (trace id, span id)
    start_us: int  # Unix time
    duration_us: int
    tags: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]

    @property
    def end_us(self) -> int:
        """Unix time."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Trace:
    """Its spans by id."""

    spans: Mapping[str, Told]

    def __len__(self) -> int:
        return len(self.spans)

    def named(self, name: str, service: str = "") -> list[Told]:
        """Spans by name, oldest first; of one service."""
        found = (s for s in self.spans.values() if s.name == name and service in ("", s.service))
        return sorted(found, key=lambda span: span.start_us)

    def children(self, of: str | None) -> list[Told]:
        """Those below a span, oldest first; None: the roots, and those whose parent is missing."""
        if of is None:
            found = [s for s in self.spans.values() if s.parent not in self.spans]
        else:
            found = [s for s in self.spans.values() if s.parent == of]
        return sorted(found, key=lambda span: span.start_us)

    def lines(self) -> Iterator[tuple[int, Told]]:
        """Depth first: how deep, and the span."""
        stack = [(0, span) for span in reversed(self.children(None))]
        while stack:
            depth, span = stack.pop()
            yield depth, span
            stack += [(depth + 1, child) for child in reversed(self.children(span.id))]

    def without(self, drop: Callable[[Told], bool]) -> Trace:
        """The same trace as if some spans had never come."""
        return Trace({key: span for key, span in self.spans.items() if not drop(span)})


def trace_of(data: Sequence[Json]) -> Trace:
    """Read the ``data`` of ``GET /api/traces...``."""
    return Trace({told.id: told for trace in data for told in _spans(trace)})


def _spans(trace: Json) -> Iterator[Told]:
    services = {key: one["serviceName"] for key, one in trace["processes"].items()}
    for span in trace["spans"]:
        references = span["references"]
        parents = [r["spanID"] for r in references if r["refType"] == "CHILD_OF"]
        links = [r for r in references if r["refType"] == "FOLLOWS_FROM"]
        yield Told(
            id=span["spanID"],
            trace_id=span["traceID"],
            name=span["operationName"],
            service=services[span["processID"]],
            parent=parents[0] if parents else None,
            links=tuple((r["traceID"], r["spanID"]) for r in links),
            start_us=span["startTime"],
            duration_us=span["duration"],
            tags={tag["key"]: tag["value"] for tag in span["tags"]},
            events=tuple({f["key"]: f["value"] for f in e["fields"]} for e in span["logs"]),
        )


@dataclass(frozen=True, slots=True)
class Hop:
    """What a complete trace holds: a span, and the one that it must be below."""

    name: str
    service: str
    below: str | None  # name of its parent


_SUPERSEDE: Final = f"{names.SPAN_TRANSITION.name}.supersede"
_NODE: Final = f"{names.SPAN_NODE.name}.supersede"
_CLIENT: Final = f"{names.SPAN_CLIENT.name} supersede"
NODE_HOPS: Final = (
    Hop(names.SPAN_COMMIT.name, names.SERVICE_SIDECAR, _NODE),  # the registry's
    Hop(names.SPAN_PROPAGATE.name, names.SERVICE_SIDECAR, _NODE),
    Hop(names.SPAN_QUIESCE.name, names.SERVICE_ENGINE, _NODE),
)
# Of a SUPERSEDE that a client of ours asks for, with its successor, of work that was running.
HOPS: Final = (
    Hop(_CLIENT, names.SERVICE_CLIENT, None),
    Hop(_SUPERSEDE, names.SERVICE_API, _CLIENT),
    Hop(_NODE, names.SERVICE_SIDECAR, _SUPERSEDE),
    *NODE_HOPS,
    Hop(names.SPAN_CERTIFY.name, names.SERVICE_ENGINE, _SUPERSEDE),
    Hop(names.SPAN_PIN.name, names.SERVICE_ENGINE, names.SPAN_CERTIFY.name),
    Hop(names.SPAN_ADMIT.name, names.SERVICE_API, _SUPERSEDE),
)
# Of one that an operator makes: the object's annotation has the parent.
OPERATOR_HOPS: Final = (
    Hop(_SUPERSEDE, names.SERVICE_OPERATOR, None),
    Hop(_NODE, names.SERVICE_SIDECAR, _SUPERSEDE),
    *NODE_HOPS,
)


def missing(trace: Trace, hops: Sequence[Hop] = HOPS) -> list[str]:
    """Walk the tree: what is not there, or not below what it belongs to; empty: it is whole."""
    return [why for hop in hops if (why := _missing(trace, hop))]


def _missing(trace: Trace, hop: Hop) -> str:
    found = trace.named(hop.name, hop.service)
    if not found:
        return f"no {hop.name} of {hop.service}"
    if hop.below is None:
        return ""
    parents = [trace.spans.get(span.parent or "") for span in found]
    if any(parent is not None and parent.name == hop.below for parent in parents):
        return ""
    return f"{hop.name} is not below {hop.below}"

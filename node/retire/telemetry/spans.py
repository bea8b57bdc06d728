"""A span as callers see it: began, told facts, ended; and the W3C context it hands on.

Nobody asks whether tracing is on: :data:`NOTHING`, and any :class:`Passing` span, does nothing and
hands on the context that came in, so that a process that traces nothing breaks no trace. Must never
import the OpenTelemetry SDK: ``tracing.py`` does, where it is on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, Self

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]  # None: not known, left out
_W3C = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


class Kind(Enum):
    """OpenTelemetry's SpanKind, by name."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    CONSUMER = "CONSUMER"


@dataclass(frozen=True, slots=True)
class Context:
    """What a W3C ``traceparent`` names (Trace Context, section 3.2)."""

    trace_id: str  # 32 hexadecimal digits, not all 0
    span_id: str  # 16
    sampled: bool


def context_of(traceparent: str) -> Context | None:
    """Read a ``traceparent``; None when it is absent or no valid one, which starts a new trace."""
    match = _W3C.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    known = version == "00" and more is None
    if not known and (version in ("00", "ff")):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return Context(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def trace_id(traceparent: str) -> str | None:
    """The trace that a ``traceparent`` names; None: none."""
    context = context_of(traceparent)
    return context.trace_id if context is not None else None


@dataclass(frozen=True, slots=True)
class Link:
    """Another span that has to do with this one, and how (attribute ``link.type``)."""

    traceparent: str
    kind: str


@dataclass(frozen=True, slots=True)
class Period:
    """Unix nanoseconds, for a span that is told afterwards."""

    start_ns: int
    end_ns: int | None = None  # None: it goes on

    @classmethod
    def since(cls, ms: float, *, end_ns: int | None = None) -> Self:
        """The last ``ms`` milliseconds before ``end_ns`` (now)."""
        end = time.time_ns() if end_ns is None else end_ns
        return cls(end - int(ms * 1e6), end)


class Span(Protocol):
    """One span. Every method may be called whether or not anything is recorded."""

    @property
    def on(self) -> bool:
        """Whether it is recorded; where it is not, facts need not be collected."""
        ...

    @property
    def traceparent(self) -> str:
        """The context to hand on; empty: there is no trace."""
        ...

    def child(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: Kind = Kind.INTERNAL,
        links: Sequence[Link] = (),
        period: Period | None = None,
    ) -> Span:
        """Begin a span below this one; ``period``: when it began, and ended where it has."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Add facts."""
        ...

    def rename(self, name: str) -> None:
        """Its name is known only now."""
        ...

    def event(
        self, name: str, attributes: Attributes | None = None, *, at_ns: int | None = None
    ) -> None:
        """Something happened within it, now or at ``at_ns`` (Unix)."""
        ...

    def fail(self, kind: str, message: str = "") -> None:
        """It came to an error; ``kind`` becomes ``error.type``."""
        ...

    def end(self) -> None:
        """It is over; what comes later is ignored."""
        ...


@dataclass(frozen=True, slots=True)
class Passing:
    """No span of this process: the caller's context goes on as it came."""

    traceparent: str = ""
    on = False

    def child(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: Kind = Kind.INTERNAL,
        links: Sequence[Link] = (),
        period: Period | None = None,
    ) -> Span:
        """Itself."""
        del name, attributes, kind, links, period
        return self

    def set(self, attributes: Attributes) -> None:
        """Nothing."""

    def rename(self, name: str) -> None:
        """Nothing."""

    def event(
        self, name: str, attributes: Attributes | None = None, *, at_ns: int | None = None
    ) -> None:
        """Nothing."""

    def fail(self, kind: str, message: str = "") -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


NOTHING: Final = Passing()

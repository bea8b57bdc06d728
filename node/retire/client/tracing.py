"""The agent's trace goes on into the server: W3C headers, and a CLIENT span for each change.

Uses the agent's own OpenTelemetry, through its API alone and only where the agent has imported it:
without that nothing is sent and nothing costs. Must never import the SDK.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from retire.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from retire.client.calls import Call

_SCOPE = "retire"


def headers() -> Mapping[str, str]:
    """The running span's context, as the agent's propagators write it; empty: there is none."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate  # noqa: PLC0415 - loaded already, or not there

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def spanning(call: Call) -> AbstractContextManager[Any]:
    """The span of a change, repetitions included; of any other call nothing of ours."""
    if not call.change or "opentelemetry.trace" not in sys.modules:
        return contextlib.nullcontext()
    from opentelemetry import trace  # noqa: PLC0415 - the same

    return trace.get_tracer(_SCOPE).start_as_current_span(
        f"{names.SPAN_CLIENT.name} {call.change}",
        kind=trace.SpanKind.CLIENT,
        attributes={
            names.A_SCOPE.name: call.scope,
            names.A_CHANGE.name: call.change,
            names.A_KEY.name: call.headers.get("idempotency-key", ""),
        },
    )

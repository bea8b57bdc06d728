"""Tracing that is off, or goes nowhere, is in nobody's way; what cannot be is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import timeit

import pytest

from bench.observatory import free_port
from retire.protocol.errors import InvalidField
from retire.telemetry import names
from retire.telemetry.tracing import OFF, Tracer

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EXPORTING = ("opentelemetry.sdk.trace.export", "opentelemetry.exporter.otlp.proto.http")
SPAN = names.SPAN_COMMIT.name


def nowhere(**more: str) -> dict[str, str]:
    """An environment that sends spans to a port where nobody listens."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1", **more}


def tracer_of(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Tracer:
    """The tracer of a process in which these are set."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Tracer.from_env(names.SERVICE_SIDECAR)


def test_off_it_imports_nothing_and_hands_the_context_on() -> None:
    """No part of the SDK that exports is loaded in a sidecar without ``OTEL_*``; control: with it.

    redis-py loads the API, and some of the SDK, by itself.
    """
    script = (
        "import sys, retire.sidecar.main; from retire.telemetry.tracing import Tracer\n"
        f"Tracer.from_env('x').start({SPAN!r}).end()\n"
        f"print(sum(name in sys.modules for name in {EXPORTING!r}))"
    )
    loaded = []
    for env in ({}, nowhere()):
        told = subprocess.check_output(
            [sys.executable, "-c", script], env={**os.environ, **env}, text=True
        )
        loaded.append(int(told))
    assert loaded == [0, len(EXPORTING)]
    assert OFF.start(SPAN, parent=PARENT).traceparent == PARENT
    assert OFF.start(SPAN).traceparent == ""


def test_off_a_span_costs_next_to_nothing() -> None:
    """Below what can be measured of a transition (milliseconds): a few microseconds."""

    def span() -> None:
        told = OFF.start(SPAN, {"a": 1}, parent=PARENT)
        told.set({"b": 2})
        told.end()

    assert min(timeit.repeat(span, number=1000, repeat=5)) / 1000 < 10e-6


def test_without_a_collector_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans begin and end at once, are exported behind, dropped in the end; closing is bounded."""
    tracer = tracer_of(monkeypatch, nowhere())
    began_s = time.perf_counter()
    for _ in range(500):
        tracer.start(SPAN, {"a": 1}, parent=PARENT).end()
    assert (time.perf_counter() - began_s) / 500 < 2e-3
    began_s = time.perf_counter()
    tracer.close()
    assert time.perf_counter() - began_s < 20


def test_a_context_that_is_not_sampled_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed on as it came, flag included."""
    tracer = tracer_of(monkeypatch, nowhere())
    span = tracer.start(SPAN, parent=PARENT[:-2] + "00")
    assert span.traceparent.split("-")[1] == PARENT.split("-")[1]
    assert span.traceparent.endswith("-00")
    span.end()
    tracer.close()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
)
def test_what_we_do_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """By the variable's name."""
    with pytest.raises(InvalidField, match=variable):
        tracer_of(monkeypatch, nowhere(**{variable: value}))

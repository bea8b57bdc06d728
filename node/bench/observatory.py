"""A real path for telemetry: an OTLP collector (rotel) that hands spans to Jaeger, on free ports.

For tests and ``make observe``. Jaeger's binary is built from source by ``scripts/observe-tools``.
Owns the two processes and what is asked of Jaeger's API; must never look into our own processes.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from bench.trace_tree import Trace, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

JAEGER: Final = Path(__file__).parents[2] / ".cache" / "observe" / "bin" / "jaeger"
START_S: Final = 120.0
LOCAL: Final = "127.0.0.1"
_JAEGER_PORTS: Final = (
    "admin.http.host-port",
    "collector.grpc-server.host-port",
    "collector.http-server.host-port",
    "collector.otlp.http.host-port",
    "query.grpc-server.host-port",
)


class NotStarted(Exception):
    """A process did not come up; the end of its output is in the text."""


class Observatory:
    """Collector and Jaeger; use ``with``. Their output goes to a folder that ends with them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="retire-observe-")
        self.dir = Path(self._folder.name)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._otlp = free_port()  # of the collector
        self._intake = free_port()  # of Jaeger
        self.jaeger = f"http://{LOCAL}:{free_port()}"
        self.http = httpx.Client(base_url=self.jaeger, timeout=30.0)

    @property
    def env(self) -> dict[str, str]:
        """What sends a process's spans here; batches leave soon, so that a reader need not wait."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{LOCAL}:{self._otlp}",
            "OTEL_BSP_SCHEDULE_DELAY": "300",
        }

    def __enter__(self) -> Self:
        try:
            self._start_jaeger()
            self._start_collector()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End both, the collector first."""
        for process in reversed(self._processes.values()):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
            if process.poll() is None:
                process.kill()
                process.wait()
        self.http.close()
        self._folder.cleanup()

    def trace(self, trace_id: str) -> Trace:
        """What Jaeger has of a trace, as a tree; empty when it has nothing."""
        answer = self.http.get(f"/api/traces/{trace_id}")
        return trace_of(answer.json().get("data") or [])

    def linked(self, service: str, operation: str, trace_id: str) -> Trace:
        """Spans of other traces that are linked to this one."""
        asked = {"service": service, "operation": operation, "lookback": "1h", "limit": "100"}
        found = self.http.get("/api/traces", params=asked).json().get("data") or []
        return trace_of([one for one in found if _links_to(one, trace_id)])

    def until(
        self, trace_id: str, enough: Callable[[Trace], object], timeout_s: float = 60.0
    ) -> Trace:
        """The trace once it is ``enough``, or as it is when the time is over: spans come in
        batches of their processes."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            trace = self.trace(trace_id)
            if enough(trace) or time.monotonic() > deadline_s:
                return trace
            time.sleep(0.3)

    def _start_jaeger(self) -> None:
        if not JAEGER.exists():
            raise NotStarted(f"{JAEGER} is not built: run scripts/observe-tools")
        ports = [f"--{name}={LOCAL}:{free_port()}" for name in _JAEGER_PORTS]
        query = self.jaeger.removeprefix("http://")
        self._run(
            "jaeger",
            [
                str(JAEGER),
                *ports,
                f"--collector.otlp.grpc.host-port={LOCAL}:{self._intake}",
                f"--query.http-server.host-port={query}",
                "--memory.max-traces=5000",
                "--log-level=warn",
            ],
        )
        self._wait("jaeger", lambda: self.http.get("/api/services").is_success)

    def _start_collector(self) -> None:
        self._run(
            "collector",
            [
                str(resources.files("rotel") / "rotel-agent"),
                *("start", "--otlp-http-endpoint", f"{LOCAL}:{self._otlp}"),
                *("--otlp-grpc-endpoint", f"{LOCAL}:{free_port()}"),
                *("--exporter", "otlp", "--otlp-exporter-protocol", "grpc"),
                *("--otlp-exporter-endpoint", f"http://{LOCAL}:{self._intake}"),
                *("--log-file", str(self.dir / "rotel.log")),
                *("--pid-file", str(self.dir / "rotel.pid")),
            ],
        )
        self._wait("collector", lambda: is_open(self._otlp))

    def _run(self, name: str, argv: list[str]) -> None:
        with (self.dir / f"{name}.out").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_S
        while self._processes[name].poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(httpx.HTTPError):
                if ready():
                    return
            time.sleep(0.1)
        tail = (self.dir / f"{name}.out").read_text(errors="replace")[-2000:]
        raise NotStarted(f"{name} did not start: {tail}")


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOCAL, port)) == 0


def _links_to(trace: dict[str, Any], trace_id: str) -> bool:
    references = [r for span in trace["spans"] for r in span["references"]]
    return any(r["traceID"] == trace_id for r in references)

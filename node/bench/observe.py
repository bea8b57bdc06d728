"""``make observe``: a stack that sends its traces and metrics somewhere, and where to look at them.

The demo's model in a stack, a collector, Jaeger and Prometheus, all on loopback; an agent changes
its mind every few seconds, with a successor, so that there is something to see. Prints the links
and the newest receipt with its trace. Until Ctrl-C, or for ``--seconds``. Jaeger's web page is
there where ``RETIRE_JAEGER_UI`` names a build of it; its API always is.

Usage: python -m bench.observe [--model NAME|PATH] [--seconds N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from bench.observatory import LOCAL, Observatory, free_port
from bench.prometheus import Prometheus
from bench.stack import Stack, StackSettings
from bench.stack_streams import Agent
from retire.cli.demo import model as demo_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PLAN: Final = "You are a coding agent. Plan the change, file by file, and say why. "
PAUSE_S: Final = 3.0  # between two changes of mind
SPOKEN: Final = 12  # tokens that a plan has said when it is given up


@dataclass(frozen=True, slots=True)
class Running:
    """What ``make observe`` started."""

    stack: Stack
    observatory: Observatory
    prometheus: Prometheus
    page: str  # URL of the live page

    def links(self) -> list[tuple[str, str]]:
        """What to open, and where."""
        return [
            ("live page", self.page),
            ("in a terminal", f"retire top --page {self.page}"),
            ("traces (Jaeger)", f"{self.observatory.jaeger}/api/services"),
            ("metrics (Prometheus)", f"{self.prometheus.url}/graph"),
            ("alerts", f"{self.prometheus.url}/api/v1/rules?type=alert"),
            ("metrics of the sidecar", f"{self.page.rstrip('/')}/metrics"),
            ("metrics of vLLM and engine", f"{self.stack.url}/metrics"),
            ("API", f"{self.stack.url}/v1"),
        ]

    def trace_url(self, trace_id: str) -> str:
        """One transition's trace, as JSON."""
        return f"{self.observatory.jaeger}/api/traces/{trace_id}"


@contextlib.contextmanager
def running(model: str, folder: Path) -> Iterator[Running]:
    """All of it. NotStarted or StackFailed says what did not come up."""
    with Observatory() as observatory:
        page = free_port()
        env = {
            **observatory.env,
            "RETIRE_LEASE_S": "10",
            "RETIRE_TRACE_URL": f"{observatory.jaeger}/trace/{{trace_id}}",
        }
        settings = StackSettings(model=model, serve_args=("--page-port", str(page)), env=env)
        with Stack(settings) as stack:
            node = {"namespace": "laptop", "pod": "node"}
            targets = {
                stack.url.removeprefix("http://"): {**node, "endpoint": "http"},
                f"{LOCAL}:{page}": {**node, "endpoint": "health"},
            }
            with Prometheus(folder, targets) as prometheus:
                yield Running(stack, observatory, prometheus, f"http://{LOCAL}:{page}/")


def change_mind(agent: Agent, number: int) -> dict[str, Any]:
    """Abandon a plan while it is told; the receipt of its successor."""
    prompt = PLAN * 12 + f"Task {number}: "
    plan = agent.stream(prompt, max_tokens=400).tokens_at_least(SPOKEN)
    request = agent.stack.body(prompt + "no, the other way round.", max_tokens=24)
    receipt = agent.supersede(agent.version, request["prompt"], max_tokens=24)["receipt"]
    plan.ended()
    return receipt


def told(receipt: dict[str, Any]) -> str:
    """One line of a receipt."""
    stages = receipt["stages_ms"]
    return (
        f"{receipt['from_version']} -> {receipt['to_version']}: unpublishable after "
        f"{stages['unpublishable']:.1f} ms, {receipt['certified_tokens']} tokens inherited"
    )


def watch(made: Running, seconds: float, console: Console) -> int:
    """Links, then a change of mind again and again; how many there were."""
    for what, where in made.links():
        console.print(f"{what:>28}  {where}", highlight=False, soft_wrap=True)
    agent, ends_s = Agent.new(made.stack, "agent"), time.monotonic() + seconds
    for number in count(1):
        receipt = change_mind(agent, number)
        trace = made.trace_url(receipt["trace_id"])
        console.print(f"{told(receipt)}\n  trace {trace}", highlight=False, soft_wrap=True)
        if time.monotonic() > ends_s:
            return number
        time.sleep(PAUSE_S)
    raise AssertionError  # count() has no end


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.observe", description=__doc__)
    parser.add_argument("--model", help="a tiny model's name, or a path; default: the demo's")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start, watch, end."""
    given, console = _options(arguments), Console()
    cache = demo_model.cache_dir(os.environ)
    model = given.model or str(demo_model.ensure(cache, console))
    console.print("starting collector, Jaeger, registry, sidecar, vLLM and Prometheus ...")
    with (
        contextlib.suppress(KeyboardInterrupt),
        TemporaryDirectory() as folder,
        running(model, Path(folder)) as made,
    ):
        watch(made, given.seconds, console)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

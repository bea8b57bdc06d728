"""One real run to be scraped: a stack with a tiny model, an operator with a node of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.prometheus import Prometheus, until
from bench.stack import Stack, StackSettings
from bench.stack_streams import Agent
from e2e.cluster import ExistingCluster
from e2e.installation import Lab
from e2e.processes import free_port

QUOTA_BLOCKS = 8
BLOCK = 32  # tokens
IN_STEPS = 6
SUPERSEDES = 2 * (3 + IN_STEPS)  # of both rounds
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SMALL = [7] * (6 * BLOCK)  # its prefix fits into the quota
LARGE = [9] * (12 * BLOCK)  # its prefix does not


def listen() -> str:
    """An address for a listener."""
    return f"127.0.0.1:{free_port()}"


def settings(sidecar: str, **more: Any) -> StackSettings:
    """A stack whose sidecar shows its metrics, with a small pin quota."""
    return StackSettings(
        serve_args=("--tenant-quota", str(QUOTA_BLOCKS), "--page-port", sidecar.split(":")[1]),
        env={"RETIRE_LEASE_S": "20"},
        **more,
    )


def revise(agent: Agent, old: list[int], new: list[int]) -> dict[str, Any]:
    """SUPERSEDE a running answer by another prompt; the receipt."""
    running = agent.stream(old, max_tokens=400).tokens_at_least(2)
    request = agent.stack.body(new, max_tokens=4)
    body = {"expected_version": agent.version, "stream": False, "request": request}
    trace = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    answer = agent.post("supersede", body, trace)
    assert answer.status_code == 200, answer.text
    running.ended()
    return answer.json()["receipt"]


def revise_everything(stack: Stack) -> None:
    """Every kind of transition once."""
    agent = Agent.new(stack, "reviser")
    first = revise(agent, SMALL, SMALL[:-1] + [3] * BLOCK)
    assert first["certified_tokens"] > 0, first
    revise(Agent.new(stack, "large"), LARGE, LARGE[:-1] + [3] * BLOCK)
    for _ in range(IN_STEPS):  # some come while a step runs, and leave residual work
        revise(Agent.new(stack, "running"), SMALL, SMALL[:-1] + [3] * BLOCK)
    stale = agent.post("supersede", {"expected_version": "1.0", "stream": False})
    assert stale.status_code == 409, stale.text
    for verb in ("pause", "resume", "cancel"):
        agent.post(verb, {"expected_version": agent.version}).raise_for_status()
    kept = Agent.new(stack, "kept")
    running = kept.stream(SMALL, max_tokens=400).tokens_at_least(2)
    kept.supersede(kept.version)  # no successor yet: its prefix stays pinned
    running.ended()


async def operate(lab: Lab, listener: str) -> None:
    """An operator, a node, and a scope that is declared."""
    lab.operator(RETIRE_METRICS_LISTEN=listener)
    await lab.node()
    await asyncio.to_thread(lab.apply, "plan", epoch=1)
    await lab.until_ready("plan", "1.1")


@contextmanager
def scraped_run(folder: Path, cluster: ExistingCluster) -> Iterator[Prometheus]:
    """Prometheus after a run that it scraped; queries look at the last moment of what ran."""
    sidecar, operator = listen(), listen()
    with Stack(settings(sidecar)) as stack:
        node = {"namespace": "serving", "pod": "retire-node-0"}
        targets = {
            stack.url.removeprefix("http://"): {**node, "endpoint": "http"},
            sidecar: {**node, "endpoint": "health"},
            operator: {"namespace": "serving", "pod": "retire-operator-0"},
        }
        with Prometheus(folder, targets) as prometheus:
            asyncio.run(_run(stack, prometheus, cluster, operator))
            yield prometheus


async def _run(
    stack: Stack, prometheus: Prometheus, cluster: ExistingCluster, operator: str
) -> None:
    async with Lab(cluster, cluster.create_namespace("metrics")) as lab:
        await operate(lab, operator)
        await asyncio.to_thread(until, lambda: _answers(operator), 60.0, lambda: operator)
        for _ in range(2):  # a counter's first value says nothing of its rate
            await asyncio.to_thread(revise_everything, stack)
            await asyncio.to_thread(prometheus.rounds, 3)
        prometheus.freeze()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=5).status_code == 200
    except httpx.TransportError:
        return False

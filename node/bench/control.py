"""``make bench-control``: SUPERSEDE call to UNPUBLISHABLE without an engine, 1 and 64 gates.

Everything real but the engine: Valkey with ``appendfsync always``, the sidecar as its own
process, each
gate attached over the Unix socket with the product's client on uvloop, as in vLLM's API server
(64 gates in four processes). A call is
timed at its caller, from the request to the UNPUBLISHABLE event. Baselines in the same run: a bare
compare-and-set over the same Valkey socket, and one gRPC ping to the same sidecar. The calls are a
closed loop with a pause between two of them. Writes ``results/cpu/control.json``.

Usage: python -m bench.control [--calls N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import redis.asyncio
import uvloop
from rich.console import Console

from bench.report import Baseline, Row, measured, p50, p99, write
from retire.protocol.codec import receipt_to_dict
from retire.protocol.contract import Receipt, StopReason
from retire.protocol.versions import ScopeKey, Version
from retire.registry.embedded import EmbeddedServer
from retire.sidecar.client import Mutation, NodeClient
from retire.sidecar.pb import node_pb2 as pb

CALLS: Final = 400
WARM_UP: Final = 40
PAUSE_S: Final = 0.004
PROCESSES: Final = {1: 1, 64: 4}  # gates -> processes that hold them
CAS: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2]) return 1
"""
Samples = dict[str, list[float]]


class AckingGate:
    """A gate without streams: it has nothing to end, so its barrier is over when it is asked."""

    async def switch(self, command: pb.Switch) -> dict[str, int]:
        """Ack."""
        del command
        return {}

    async def fence(self, command: pb.Fence) -> pb.Fenced:
        """No engine, no work."""
        del command
        return pb.Fenced()

    async def inspect(self, command: pb.Inspect) -> pb.InspectReply:
        """Nothing lives here."""
        del command
        return pb.InspectReply()

    async def warm(self, command: pb.Warm) -> pb.WarmDone:
        """Nothing is computed here."""
        del command
        return pb.WarmDone()

    def quota(self, command: pb.Quota) -> None:
        """Nothing is pinned here."""


async def hold_gates(socket: str, first: int, count: int) -> None:
    """The body of a gate process: ``count`` gates, each with a connection of its own."""

    def hello(name: str) -> Callable[[], pb.Hello]:
        return lambda: pb.Hello(gate=name, pid=os.getpid(), engine_boot_id="none")

    clients = [NodeClient(f"unix:{socket}") for _ in range(count)]
    await asyncio.gather(
        *(
            client.attach(hello(f"g{first + n}"), AckingGate(), on_welcome=lambda _: None)
            for n, client in enumerate(clients)
        )
    )


@contextlib.contextmanager
def sidecar(folder: Path, url: str) -> Iterator[Path]:
    """A sidecar process on ``url``; yields its socket."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RETIRE_")}
    env |= {
        "RETIRE_NODE": "bench",
        "RETIRE_REGISTRY_URL": url,
        "RETIRE_RUN_DIR": str(folder / "run"),
        "RETIRE_TERM_FILE": str(folder / "term"),
        "RETIRE_SLOTS": "64",
    }
    with running("retire.sidecar.main", env=env):
        yield folder / "run" / "node.sock"


@contextlib.contextmanager
def gates(socket: Path, count: int) -> Iterator[None]:
    """``count`` attached gates in PROCESSES[count] processes."""
    each = count // PROCESSES[count]
    with contextlib.ExitStack() as stack:
        for first in range(0, count, each):
            arguments = ("--hold", str(socket), str(first), str(each))
            stack.enter_context(running("bench.control", *arguments))
        yield


@contextlib.contextmanager
def running(module: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[None]:
    """``python -m module`` while the block runs."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


async def ready(client: NodeClient, count: int) -> None:
    """Until the lease is held and ``count`` gates are attached."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Exception):
                status = await client.status()
                if status.ready and status.gates == count:
                    return
            await asyncio.sleep(0.05)


async def unpublishable_ms(client: NodeClient, key: ScopeKey, calls: int) -> list[float]:
    """Time of each of ``calls`` supersedes of one scope, ms from the call to UNPUBLISHABLE."""
    version = (await client.join(key)).version
    samples: list[float] = []
    for n in range(calls + WARM_UP):
        took = await supersede(client, key, Mutation(version, f"{key.scope}-{n}"))
        await report(client, key, version)
        version = version.next_epoch()
        if n >= WARM_UP:
            samples.append(took)
        await asyncio.sleep(PAUSE_S)
    return samples


async def supersede(client: NodeClient, key: ScopeKey, mutation: Mutation) -> float:
    """One call, read to its end; milliseconds to UNPUBLISHABLE."""
    start, took = time.perf_counter(), 0.0
    async for event in client.supersede(key, mutation, driver=True):
        if event.WhichOneof("event") == "unpublishable":
            took = (time.perf_counter() - start) * 1e3
            outcomes = [gate.outcome for gate in event.unpublishable.gates]
            assert outcomes, "a supersede was acknowledged without a gate"
            assert "lease_ended" not in outcomes, f"a gate did not ack in {took:.0f} ms"
    return took


async def report(client: NodeClient, key: ScopeKey, old: Version) -> None:
    """The API process admitted a successor: the transition is over."""
    new = old.next_epoch()
    reason = StopReason.NO_PREDECESSOR
    receipt = Receipt(key, old, new, {}, stop_reason=reason, successor_request_id="none")
    text = json.dumps(receipt_to_dict(receipt))
    await client.report(key, new, receipt_json=text, idempotency_key="")


async def timed(step: Callable[[int], object], calls: int) -> AsyncIterator[float]:
    """Milliseconds of each awaited ``step(n)``, after a warm-up."""
    for n in range(calls + WARM_UP):
        start = time.perf_counter()
        await step(n)  # pyright: ignore[reportGeneralTypeIssues]
        took = (time.perf_counter() - start) * 1e3
        if n >= WARM_UP:
            yield took
        await asyncio.sleep(PAUSE_S)


async def compare_and_set_ms(server: EmbeddedServer, calls: int) -> list[float]:
    """A bare compare-and-set, durable before it is answered, over the same socket."""
    client = redis.asyncio.Redis.from_url(server.url, decode_responses=True)
    script = client.register_script(CAS)
    await client.set("bench", "0")

    async def step(n: int) -> None:
        assert await script(keys=["bench"], args=[str(n), str(n + 1)]) == 1

    try:
        return [took async for took in timed(step, calls)]
    finally:
        await client.aclose()


async def ping_ms(client: NodeClient, calls: int) -> list[float]:
    """One unary gRPC call to the sidecar."""
    return [took async for took in timed(lambda _: client.status(), calls)]


async def measure(folder: Path, server: EmbeddedServer, calls: int) -> Samples:
    """Every series, the baselines between the two of ours."""
    samples: Samples = {}
    with sidecar(folder, server.url) as socket:
        async with NodeClient(f"unix:{socket}") as client:
            for count, name in ((1, "unpublishable_ms"), (64, "unpublishable64_ms")):
                with gates(socket, count):
                    await ready(client, count)
                    key = ScopeKey("bench", f"gates-{count}")
                    samples[name] = await unpublishable_ms(client, key, calls)
                    if count == 1:
                        samples["cas_ms"] = await compare_and_set_ms(server, calls)
                        samples["ping_ms"] = await ping_ms(client, calls)
    return samples


def rows(samples: Samples) -> list[Row]:
    """Ours against the bare compare-and-set; the ping stands beside it."""
    cas = Baseline("bare Redis compare-and-set, same socket", samples["cas_ms"])
    found: list[Row] = []
    for name in ("unpublishable_ms", "unpublishable64_ms"):
        for label, rank in (("p50", p50), ("p99", p99)):
            found.append(
                measured(
                    f"control.{name}.{label}",
                    samples[name],
                    statistic=rank,
                    baseline=cas,
                    unit="ms",
                )
            )
    for name in ("cas_ms", "ping_ms"):
        for label, rank in (("p50", p50), ("p99", p99)):
            found.append(
                measured(f"control.{name}.{label}", samples[name], statistic=rank, unit="ms")
            )
    return found


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="SUPERSEDE to UNPUBLISHABLE")
    parser.add_argument(
        "--calls", type=int, default=CALLS, help="timed calls of each kind (>= 300)"
    )
    parser.add_argument("--hold", nargs=3, metavar=("SOCKET", "FIRST", "COUNT"), help="internal")
    options = parser.parse_args()
    if options.hold:
        socket, first, count = options.hold
        uvloop.run(hold_gates(socket, int(first), int(count)))
        return 0
    with tempfile.TemporaryDirectory(prefix="rc-") as name:
        folder = Path(name)
        with EmbeddedServer(folder / "registry") as server:
            samples = uvloop.run(measure(folder, server, options.calls))
    console = Console()
    found = rows(samples)
    for row in found:
        goal = f"  goal {row.goal}: {'met' if row.met else 'missed'}" if row.goal else ""
        console.print(f"{row.metric:36} {row.ours:8.3f} {row.unit}{goal}", highlight=False)
    path = write("control", found, device="cpu", samples=samples)
    console.print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

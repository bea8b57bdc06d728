"""``make bench-kube``: ``kubectl apply`` to UNPUBLISHABLE, and an operator with 500 scopes.

Real etcd, kube-apiserver, kube-controller-manager, Valkey, operator processes and, for two nodes,
sidecar processes under mutual TLS with the term Lease. Only the kubelet and the engine are not
there: the pods are objects, and each node has a gate on the link of an API process.

``kube.apply_to_unpublishable_ms`` runs from the moment at which a client that runs already sends
its server-side apply; ``kube.kubectl_to_unpublishable_ms`` from the start of the process ``kubectl
apply``, which is dearer than all that follows. Both end when the last of the two gates gives its
ack, after it saw the mailbox refuse the old tag. Baselines in the same rounds: a bare PATCH, the
event at a bare watcher, a SUPERSEDE at run time without Kubernetes. etcd runs without fsync.
Writes ``results/kube/kube.json``.

Usage: python -m bench.kube [--rounds N] [--scopes N] [--quick] [--root DIR]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import kube_many, kube_series
from bench.kube_gates import faults
from bench.kube_rows import Seen, rows_of
from bench.kube_world import World, install_crd, resident_mb
from bench.report import ROOT, Row, write
from bench.scoreboard import Result, table
from e2e.cluster import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.cluster import ExistingCluster

NAMESPACE: Final = "bench-kube"
BARE_NAMESPACE: Final = "bench-kube-bare"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int = 100
    calls: int = 300
    scopes: int = 500


FULL: Final = Size()
QUICK: Final = Size(rounds=4, calls=20, scopes=20)


class Steps:
    """What is being done, with its progress."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    @contextmanager
    def __call__(self, text: str, total: int = 1) -> Iterator[Callable[[], object]]:
        """One line; the value counts one thing done."""
        if not self._bar.console.is_terminal:  # a log shows a bar only once all is over
            self._bar.console.print(text, highlight=False)
        task = self._bar.add_task(text, total=total)
        yield lambda: self._bar.advance(task)
        self._bar.update(task, completed=total)


async def measure(cluster: ExistingCluster, size: Size, steps: Steps) -> Seen:
    """Everything, on a cluster with the CRD."""
    async with World(cluster, NAMESPACE) as world:
        with steps("start a registry, an operator and two nodes"):
            await world.populate()
        idle_mb = resident_mb(world.running[0].pid)
        with steps("open scopes"):
            await world.open([kube_series.API_SCOPE])
            await world.open([kube_series.KUBECTL_SCOPE], by_kubectl=True)
        samples = await latencies(world, size, steps)
        many = [f"scope-{number:03}" for number in range(size.scopes)]
        with steps(f"open {size.scopes} scopes"):
            await world.open(many)
        with steps(f"revise {size.scopes} scopes in one go"):
            revised_s, told_s = await kube_many.revised_at_once(world, many)
            rss_mb = resident_mb(world.running[0].pid)
        with steps(f"restart the operator over {size.scopes} scopes"):
            restart = await kube_many.restarted(world, many)
        with steps("negative control: no operator"):
            switched = await control_without_operator(world)
        return Seen(
            samples=samples,
            scopes=size.scopes,
            rss_mb=(idle_mb, rss_mb),
            restart=restart,
            revised_s=revised_s,
            told_s=told_s,
            without_operator=switched,
            faults=faults(world.gates, world.epochs),
            wrong_final=await wrong_final(world),
            revisions=sum(world.epochs.values()),
        )


async def latencies(world: World, size: Size, steps: Steps) -> kube_series.Samples:
    """Rounds with one operator, calls at run time, rounds with two."""
    bare = kube_series.BareWatch(world, BARE_NAMESPACE)
    with steps("revisions: API, kubectl, bare PATCH", size.rounds) as advance:
        samples = await kube_series.rounds(world, size.rounds, bare, advance=advance)
    with steps("SUPERSEDE at run time over two nodes"):
        samples["runtime_ms"], samples["cas_ms"] = await kube_series.runtime(world, size.calls)
    with steps("revisions with two operators", size.rounds) as advance:
        await world.until_knows(world.operator(), scopes=len(world.epochs) - 1)
        samples["two_operators_ms"] = await kube_series.two_operators(
            world, size.rounds, advance=advance
        )
    return samples


async def control_without_operator(world: World) -> int:
    """The control; afterwards an operator makes up for what was asked meanwhile."""
    switched = await kube_series.without_operator(world)
    world.operator()
    scope = kube_series.API_SCOPE
    await world.until_switched(scope, world.epochs[scope])
    await world.until_settled([scope])
    return switched


async def wrong_final(world: World) -> int:
    """Objects whose version is not what was asked for last."""
    scopes = [scope for scope in world.epochs if scope != kube_series.RUNTIME_SCOPE]
    bodies = await world.objects(scopes)
    return sum(bodies[s]["status"]["version"] != f"1.{world.epochs[s]}" for s in scopes)


def run(size: Size, console: Console) -> Seen:
    """Start the cluster, measure, end it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        steps = Steps(bar)
        with steps("start etcd, kube-apiserver and kube-controller-manager"):
            cluster = connect()
            cluster.__enter__()
        try:
            install_crd(cluster)
            for name in (NAMESPACE, BARE_NAMESPACE):
                cluster.create_namespace(name)
            return uvloop.run(measure(cluster, size, steps))
        finally:
            cluster.stop()


def show(rows: list[Row], console: Console) -> None:
    """The table."""
    results = sorted((Result("kube", row) for row in rows), key=lambda result: result.order)
    Console(width=max(console.width, 150)).print(table(results))


def main() -> int:
    """Measure, print, write; 1 when a revision was lost or a control failed."""
    parser = argparse.ArgumentParser(description="kubectl apply to UNPUBLISHABLE")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="revisions of each kind")
    parser.add_argument("--scopes", type=int, default=FULL.scopes, help="of the operator's restart")
    parser.add_argument("--quick", action="store_true", help="a few of everything")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    options = parser.parse_args()
    size = QUICK if options.quick else Size(rounds=options.rounds, scopes=options.scopes)
    console = Console()
    seen = run(size, console)
    rows = rows_of(seen)
    show(rows, console)
    path = write("kube", rows, device="kube", samples=seen.samples, root=options.root)
    console.print(f"written to {path}")
    wrong = any(seen.faults.values()) or seen.wrong_final or seen.without_operator
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

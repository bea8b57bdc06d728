"""``make bench-cost``: what the plugin costs where nothing is revised (the paper's Table 11).

Three arms: vLLM without the plugin; with it, calls that name no scope ("unarmed"); with it, calls
that do, so that their steps can be stopped ("armed"). Two servers run side by side and take turns:
in each group every workload runs once an arm, in rotating order; a group's change is against its
own absent arm. All over HTTP, as a client sees it. Writes ``results/<device>/cost.json``.

Usage: python -m bench.cost [--model NAME|PATH] [--groups N] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_cost, turns
from bench.cost_load import Server, Span, Workload, run
from bench.cost_servers import CPU_ARGS, CUDA_ARGS, both
from bench.dominance_engine import on_cuda
from bench.goals import Better
from bench.report import ROOT, Baseline, Row, bootstrap_ci95, measured, value, write

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UPS: Final = 2


class Arm(Enum):
    """How much of the plugin takes part."""

    ABSENT = "vLLM without the plugin"
    UNARMED = "plugin, no scope"
    ARMED = "plugin, every call in a scope"


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    groups: int
    workloads: tuple[Workload, ...]
    cuda: bool
    root: Path = ROOT


@dataclass(slots=True)
class Campaign:
    """Milliseconds by workload and arm; the n-th of each arm belong together."""

    ms: dict[tuple[str, Arm], list[float]] = field(default_factory=dict)

    def add(self, workload: str, arm: Arm, ms: float) -> None:
        """Take in one load."""
        self.ms.setdefault((workload, arm), []).append(ms)

    def change_pct(self, workload: str, arm: Arm) -> list[float]:
        """How much longer than without the plugin, group by group."""
        pairs = zip(self.ms[workload, arm], self.ms[workload, Arm.ABSENT], strict=True)
        return [100 * (ours / absent - 1) for ours, absent in pairs]


def workloads(*, prompt: int, out: int, streams: int) -> tuple[Workload, ...]:
    """The paper's: decode and a prefill alone, eight mixed requests; and many streams."""
    mixed = tuple(prompt * (n % 4 + 1) // 32 for n in range(8))
    return (
        Workload("decode", (16,), out, Span.DECODE),
        Workload("prefill4k", (prompt,), 1, Span.FIRST),
        Workload("mixed8", mixed, out // 3, Span.ALL),
        Workload("http64", (32,) * streams, 2 * out // 3, Span.ALL),
    )


async def measure(absent: Server, present: Server, options: Options, console: Console) -> Campaign:
    """Every group, arms in rotating order; what warms up is thrown away."""
    servers = {
        Arm.ABSENT: absent,
        Arm.UNARMED: present,
        Arm.ARMED: replace(present, scoped=True),
    }
    campaign, warming = Campaign(), Campaign()
    for number in range(-WARM_UPS, options.groups):
        into = warming if number < 0 else campaign
        for turn, workload in enumerate(options.workloads):
            arms = list(Arm)
            shift = (number + turn) % len(arms)
            for arm in (*arms[shift:], *arms[:shift]):
                seconds = await run(servers[arm], workload, f"{number}-{arm.name}")
                into.add(workload.name, arm, seconds * 1e3)
        console.print(f"group {number + 1} of {options.groups}", highlight=False)
    return campaign


def rows(campaign: Campaign, options: Options) -> list[Row]:
    """The goals' metrics are the armed arm's: the most that the plugin can cost."""
    made: list[Row] = []
    for workload in options.workloads:
        name = f"norev.{workload.name}"
        for arm, suffix in ((Arm.ARMED, ""), (Arm.UNARMED, "_unarmed")):
            change = campaign.change_pct(workload.name, arm)
            made.append(
                value(
                    f"{name}_pct" if not suffix else f"{name}{suffix}_pct",
                    statistics.median(change),
                    n=len(change),
                    ci95=bootstrap_ci95(change),
                    unit="%",
                )
            )
        absent = Baseline(Arm.ABSENT.value, campaign.ms[workload.name, Arm.ABSENT])
        ours = campaign.ms[workload.name, Arm.ARMED]
        made.append(measured(f"{name}_ms", ours, baseline=absent, unit="ms"))
    http = next(one for one in options.workloads if one.name == "http64")
    made.append(_throughput(campaign, http))
    return made


def _throughput(campaign: Campaign, http: Workload) -> Row:
    tokens = len(http.prompts) * http.out

    def rates(arm: Arm) -> list[float]:
        return [tokens / ms * 1e3 for ms in campaign.ms[http.name, arm]]

    absent = Baseline(Arm.ABSENT.value, rates(Arm.ABSENT))
    return measured(
        "norev.http64_tokens", rates(Arm.ARMED), baseline=absent, unit="tokens/s",
        better=Better.HIGHER,
    )  # fmt: skip


def run_all(options: Options, console: Console) -> Path:
    """Start both servers, measure, print, write; the path of the result."""
    console.print(f"starting two servers on {options.model} ...")
    args = CUDA_ARGS if options.cuda else CPU_ARGS
    with both(options.model, args) as (absent, present):
        with turns.turn():
            campaign = asyncio.run(measure(absent, present, options, console))
        return _save(campaign, options, console)  # before the servers end, which takes a while


def _save(campaign: Campaign, options: Options, console: Console) -> Path:
    made = rows(campaign, options)
    for row in made:
        goal = f"  goal {row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
        low, high = row.ci95 or (float("nan"), float("nan"))
        console.print(
            f"{row.metric:28} {row.ours:10.3f} {row.unit:9} [{low:.3f}, {high:.3f}]{goal}",
            highlight=False,
        )
    samples = {f"{name} {arm.name.lower()} ms": ms for (name, arm), ms in campaign.ms.items()}
    device = "h200" if options.cuda else "cpu"
    path = write("cost", made, device=device, samples=samples, root=options.root)
    console.print(f"written: {path}")
    changes = {
        (one.name, arm.name.lower()): campaign.change_pct(one.name, arm)
        for one in options.workloads
        for arm in (Arm.UNARMED, Arm.ARMED)
    }
    note = f"{Path(options.model).name}; n = {options.groups} groups, arms in rotating order"
    console.print(f"drawn: {plots_cost.draw(changes, path.with_suffix('.svg'), note=note)}")
    return path


def quick(root: Path) -> Options:
    """Seconds, on a tiny model: few streams, few tokens."""
    found = workloads(prompt=512, out=12, streams=8)
    return Options("qwen3-tiny", 1, found, cuda=False, root=root)


def _options(arguments: Sequence[str] | None) -> Options:
    cuda = on_cuda()
    parser = argparse.ArgumentParser(prog="bench.cost", description=__doc__)
    parser.add_argument("--model", default="qwen3-tiny", help="name of a tiny model, or a path")
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--out", type=int, default=128, help="tokens decoded by one request")
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if given.quick:
        return quick(given.root)
    found = workloads(prompt=4096 if cuda else 2048, out=given.out, streams=64)
    return Options(given.model, given.groups, found, cuda, given.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the status does not depend on the times."""
    run_all(_options(arguments), Console())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

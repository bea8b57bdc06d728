"""``make bench-churn``: what is left of a context after others have churned through the cache.

The paper's Table 12 and Figure 5: an 8192-token predecessor is superseded without a successor,
unique prompts worth 0.5 to 1.1 of the KV capacity follow, then a successor that shares 7168 tokens.
Arms, paired in rotating order: native cold, native + prefix caching, Retire with HBM retention and
with the DRAM tier (left out, with the reason, where the engine has none). Writes
``results/<device>/churn.json`` and ``churn.svg``.

Usage: python -m bench.churn [--model PATH] [--device cpu|cuda] [--quick] [--quartets N]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_churn, turns
from bench.churn_engine import Arm, Shape, Subject
from bench.churn_rows import IDLE, Campaign, faults, rows, table
from bench.dominance_engine import on_cuda
from bench.report import ROOT, value, write

if TYPE_CHECKING:
    from collections.abc import Sequence

PRESSURES: Final = (0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1)


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    shape: Shape
    quartets: int
    pressures: tuple[float, ...] = PRESSURES
    root: Path = ROOT


def paper_shape(*, block: int) -> Shape:
    """8192 tokens, 7168 of them common, a cache of twice that."""
    return Shape(8192, 7168, 1024, capacity=16384, churn=1024, quantum=2048, block=block)


def quick(root: Path) -> Options:
    """Seconds: a tenth of the size, two points."""
    shape = Shape(768, 640, 128, capacity=1536, churn=128, quantum=256, block=32)
    return Options("qwen3-tiny", shape, 1, (0.5, 1.0), root)


def measure(subject: Subject, options: Options, arms: list[Arm], console: Console) -> Campaign:
    """Every pressure and the idle engine, arms in rotating order; the first round warms up."""
    campaign = Campaign()
    for arm in arms:
        subject.trial(arm, options.pressures[-1], seed=0)
    for number in range(options.quartets):
        began_s = time.perf_counter()
        for turn, pressure in enumerate((IDLE, *options.pressures)):
            shift = (number + turn) % len(arms)
            seed = 1000 * number + turn + 1
            for arm in (*arms[shift:], *arms[:shift]):
                campaign.add(pressure, arm, subject.trial(arm, pressure, seed))
        took_s = time.perf_counter() - began_s
        console.print(f"round {number + 1} of {options.quartets}: {took_s:.0f} s", highlight=False)
    return campaign


def run(options: Options, console: Console) -> tuple[Path, list[str]]:
    """Measure, print, draw, write; the path of the result and the promises broken."""
    console.print(f"starting the engine on {options.model} ...")
    subject = Subject(options.model, options.shape)
    try:
        missing = subject.without_dram()
        arms = [arm for arm in Arm if arm is not Arm.DRAM or missing is None]
        with turns.turn():
            clean = subject.clean_run()
            campaign = measure(subject, options, arms, console)
    finally:
        subject.close()
    made = rows(campaign, clean)
    if missing is not None:
        console.print(f"no DRAM arm: {missing}", style="bold")
        made.append(value(f"churn.dram_left_out ({missing})", 1, n=1, unit="arms"))
    for line in table(campaign):
        console.print(line, highlight=False)
    for row in made:
        goal = f"  goal {row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
        ratio = "" if row.ratio is None else f"{row.ratio:6.2f}x"
        console.print(
            f"{row.metric:32} {row.ours:9.2f} {row.unit:10} {ratio}{goal}", highlight=False
        )
    for line in faults(made):
        console.print(f"FAULT: {line}", style="bold red")
    device = "h200" if subject.on_device else "cpu"
    path = write("churn", made, device=device, samples=_samples(campaign), root=options.root)
    picture = plots_churn.draw(campaign, path.with_suffix(".svg"), note=_note(options, subject))
    console.print(f"drawn: {picture}\nwritten: {path}")
    return path, faults(made)


def _note(options: Options, subject: Subject) -> str:
    shape = options.shape
    clock = "wall clock" if subject.on_device else "CPU time of the engine's process"
    return (
        f"{Path(options.model).name}; predecessor {shape.predecessor}, common prefix "
        f"{shape.common}, capacity {subject.capacity} tokens; {clock}; medians of "
        f"n = {options.quartets} paired rounds, whiskers span them"
    )


def _samples(campaign: Campaign) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for (pressure, arm), trials in campaign.trials.items():
        name = f"{arm.name.lower()} at {pressure:g}"
        found[f"{name}: recovery ms"] = [trial.recovery_ms for trial in trials]
        found[f"{name}: recovery wall ms"] = [trial.recovery_wall_ms for trial in trials]
        found[f"{name}: interval ms"] = [trial.interval_ms for trial in trials]
        found[f"{name}: kept tokens"] = [float(trial.kept) for trial in trials]
    return found


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="bench.churn", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--model", default="qwen3-long", help="name of a tiny model, or a path")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    parser.add_argument("--quartets", type=int, default=4 if cuda else 3)
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if (given.device == "cuda") is not cuda:
        parser.error(f"--device {given.device}: this machine {'has' if cuda else 'has no'} CUDA")
    if given.quick:
        return quick(given.root)
    shape = paper_shape(block=16 if cuda else 32)
    return Options(given.model, shape, given.quartets, root=given.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when a promise was broken, whatever the times."""
    _, broken = run(_options(arguments), Console())
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

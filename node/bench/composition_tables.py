"""Fence, composition and dominance in one engine: a large model takes long to start.

Each table is what its own command makes, and is written to its own file as soon as it is there.

Usage: python -m bench.composition_tables --model PATH [--pairs N] [--sweep-s SECONDS]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from bench import composition, dominance, fence, fence_engine, turns
from bench.dominance_engine import Subject as Revisions
from bench.exactness_weights import sharpen
from bench.fence_engine import on_cuda, on_device_args
from bench.report import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lab import Lab

SPARE: Final = 64  # tokens of a step, so that a bystander fits beside a chunk
OVERLAPS: Final = (0.0, 0.5, 0.9, 1.0)
Table = tuple[int, Callable[[], None]]  # broken promises, and what draws it
INSTANTS: Final = (0.1, 0.5, 0.7, 0.9)


def run(given: argparse.Namespace, console: Console) -> int:
    """All three; how many promises were broken. Plots come last: they may lack their library."""
    began_s = time.perf_counter()
    lab = _lab(given.model, given.prompt)
    console.print(f"engine ready after {time.perf_counter() - began_s:.0f} s")
    broken, drawings = 0, []
    for table in (_fence, _composition, _dominance):
        with turns.turn():
            began_s = time.perf_counter()
            wrong, drawing = table(lab, given, console)
        broken += wrong
        drawings.append(drawing)
        console.print(f"{table.__name__[1:]}: {time.perf_counter() - began_s:.0f} s")
    lab.close()
    for drawing in drawings:
        drawing()
    return broken


def _fence(lab: Lab, given: argparse.Namespace, console: Console) -> Table:
    units = (given.prompt // 4, given.prompt // 2, given.prompt)
    options = fence_engine.Options(
        given.model, fence.PATHS["fence"], units, given.prompt, given.pairs, 5.0, True
    )
    found = fence.measure(fence_engine.Subject(options, lab), console)
    path = fence.save("fence", found, root=given.root)
    return 0, lambda: fence.draw(found, options, path)


def _composition(lab: Lab, given: argparse.Namespace, console: Console) -> Table:
    options = composition.Options(given.model, given.prompt, given.pairs, root=given.root)
    table = composition.measure(_revisions(lab, given), given.pairs)
    composition.report(table, console)
    path = composition.save(table, options)
    return table.wrong, lambda: composition.draw(table, options, path)


def _dominance(lab: Lab, given: argparse.Namespace, console: Console) -> Table:
    options = dominance.Options(
        given.model, given.prompt, _quanta(given), given.sweep_pairs, OVERLAPS, INSTANTS,
        root=given.root, seconds=given.sweep_s,
    )  # fmt: skip
    _, faults = dominance.run(options, console, _revisions(lab, given))
    return len(faults), lambda: None


def _revisions(lab: Lab, given: argparse.Namespace) -> Revisions:
    return Revisions(
        given.model, prompt=given.prompt, quanta=_quanta(given), asynchronous=True, lab=lab
    )


def _quanta(given: argparse.Namespace) -> tuple[int, ...]:
    return (given.prompt // 8, given.prompt // 4, given.prompt // 2)


def _lab(model: str, prompt: int) -> Lab:
    from bench.lab import Lab

    args: dict[str, Any] = {
        "max_num_batched_tokens": prompt + SPARE,
        "max_model_len": 2 * prompt,
    }
    if on_cuda():
        args |= on_device_args(asynchronous=True)
    lab = Lab(model, quantum=prompt, **args)
    sharpen(lab)
    return lab


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="bench.composition_tables", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--model", default="qwen3-tiny", help="name of a tiny model, or a path")
    parser.add_argument("--prompt", type=int, default=8192 if cuda else 1024, help="tokens")
    parser.add_argument("--pairs", type=int, default=10 if cuda else 2)
    parser.add_argument("--sweep-pairs", type=int, default=5 if cuda else 1)
    parser.add_argument("--sweep-s", type=float, help="start no repetition that would end later")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; 1 when a promise was broken."""
    return 1 if run(options(arguments), Console()) else 0


if __name__ == "__main__":
    raise SystemExit(main())

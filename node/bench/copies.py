"""``make bench-copies``: the DRAM tier's transfers against plain copies of the same size.

Ours is the tier's own copier on a KV cache of the given shape: scattered pages gathered layer by
layer, digests taken (offload) or compared with what is in place (restore), from the order to the
answer. The baseline is one contiguous copy between the device and the same kind of host memory.
Both in one run, in alternating order.

Usage: python -m bench.copies [--layers N] [--page BYTES] [--pages N] [--rounds N]
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_copies, turns
from bench.report import ROOT, p50, value, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from bench.report import Row
    from retire.engine.tier.orders import Done, Offload, Restore

PLAIN: Final = "one contiguous copy"
SPARE: Final = 2  # times as many pages in the cache as are copied, so that they are scattered


@dataclass(frozen=True, slots=True)
class Options:
    """The shape of what is copied: ``pages`` blocks of ``layers`` pairs of ``page`` bytes."""

    layers: int
    page: int  # bytes of one block's keys, or values, in one layer
    pages: int
    rounds: int
    root: Path = ROOT

    @property
    def size(self) -> int:
        """Bytes of one transfer."""
        return 2 * self.layers * self.page * self.pages


@dataclass(slots=True)
class Samples:
    """Seconds of each transfer."""

    out: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    plain_out: list[float] = field(default_factory=list)
    plain_back: list[float] = field(default_factory=list)


class Subject:
    """A KV cache, the tier's copier on it, and the same bytes in one piece."""

    def __init__(self, options: Options) -> None:
        import torch

        from retire.engine.tier.copier import Copier
        from retire.engine.tier.devices import pages_on

        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        blocks = SPARE * options.pages
        self.views = [
            torch.randint(-128, 128, (blocks, options.page), dtype=torch.int8, device=self.device)
            for _ in range(2 * options.layers)
        ]
        self.devices = pages_on(self.device)
        self.copier = Copier(self.views, self.devices, options.size)
        self.plain = torch.zeros(options.size, dtype=torch.int8, device=self.device)
        self.host = self.devices.host_memory(options.size).zero_()
        self._draw = random.Random(0)
        self._job = 0

    def round(self, samples: Samples) -> None:
        """Out and back once, ours and plain; what came back must be what went out."""
        ids = tuple(self._draw.sample(range(SPARE * self.options.pages), self.options.pages))
        samples.plain_out.append(self._copy(self.host, self.plain))
        out_s, out = self._run(self._offload(ids))
        samples.out.append(out_s)
        samples.plain_back.append(self._copy(self.plain, self.host))
        back_s, back = self._run(self._restore(out.job, ids))
        samples.back.append(back_s)
        if out.error or out.tags != back.tags:
            raise RuntimeError(f"what came back differs: {out.error or back.error}")
        self._drop(out.job)

    def close(self) -> None:
        """End the threads."""
        self.copier.close()

    def _offload(self, ids: tuple[int, ...]) -> Offload:
        from retire.engine.tier.orders import Offload

        self._job += 1
        return Offload(self._job, ids)

    def _restore(self, copy: int, ids: tuple[int, ...]) -> Restore:
        from retire.engine.tier.orders import Restore

        self._job += 1
        return Restore(self._job, copy, tuple(range(len(ids))), ids)

    def _run(self, order: Offload | Restore) -> tuple[float, Done]:
        from retire.engine.tier.orders import Orders

        self._idle()
        began_s = time.perf_counter()
        (done,) = self.copier.exchange(Orders(begin=[order])) + self.copier.wait()
        return time.perf_counter() - began_s, done

    def _drop(self, copy: int) -> None:
        from retire.engine.tier.orders import Orders

        self.copier.exchange(Orders(drop=[copy]))

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> float:
        self._idle()
        began_s = time.perf_counter()
        to.copy_(source, non_blocking=True)
        self._idle()
        return time.perf_counter() - began_s

    def _idle(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize()


def measure(subject: Subject, console: Console) -> Samples:
    """Every round; the first one makes the memory and is not counted."""
    subject.round(Samples())
    samples = Samples()
    for _ in range(subject.options.rounds):
        subject.round(samples)
    for name, ours, plain in _directions(samples):
        rate = subject.options.size / p50(ours) / 1e9
        limit = subject.options.size / p50(plain) / 1e9
        console.print(f"{name}: {rate:.2f} GB/s of {limit:.2f} GB/s", highlight=False)
    return samples


def _directions(samples: Samples) -> list[tuple[str, list[float], list[float]]]:
    return [
        ("copy.d2h", samples.out, samples.plain_out),
        ("copy.h2d", samples.back, samples.plain_back),
    ]


def rows(samples: Samples, size: int) -> list[Row]:
    """The share of the plain rate, and both rates."""
    made: list[Row] = []
    for name, ours, plain in _directions(samples):
        shares = sorted(p / o for p, o in zip(plain, ours, strict=True))
        last = len(shares) - 1
        interval = (shares[int(0.025 * last)], shares[-int(0.025 * last) - 1])
        made.append(value(name, p50(plain) / p50(ours), n=len(ours), ci95=interval))
        rates = (size / p50(ours) / 1e9, size / p50(plain) / 1e9)
        made.append(
            value(f"{name}_rate", rates[0], n=len(ours), baseline=(PLAIN, rates[1]), unit="GB/s")
        )
    return made


def _options(arguments: Sequence[str] | None) -> Options:
    import torch

    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="bench.copies", description=__doc__)
    parser.add_argument("--layers", type=int, default=64 if cuda else 8)
    parser.add_argument("--page", type=int, default=32768)
    parser.add_argument("--pages", type=int, default=448 if cuda else 64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    return Options(given.layers, given.page, given.pages, given.rounds, given.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = _options(arguments)
    console = Console()
    subject = Subject(options)
    console.print(f"{options.pages} pages, {options.size / 1e6:.0f} MB, on {subject.device}")
    with turns.turn():
        samples = measure(subject, console)
    subject.close()
    device = "h200" if subject.device.type == "cuda" else "cpu"
    series = {
        f"{name}_s": getattr(samples, name) for name in ("out", "back", "plain_out", "plain_back")
    }
    made = rows(samples, options.size)
    path = write("copies", made, device=device, samples=series, root=options.root)
    note = f"{options.size / 1e6:.0f} MB in {options.pages} pages; medians of n = {options.rounds}"
    console.print(f"written: {path}")
    console.print(f"drawn: {plots_copies.draw(made, path.with_suffix('.svg'), note=note)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

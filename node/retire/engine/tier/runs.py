"""Which rows of a slab are free: runs, merged as they come back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FreeRuns:
    """Free rows of one slab, as ascending runs ``(first, rows)`` that do not touch."""

    rows: int
    runs: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = [(0, self.rows)] if self.rows else []

    @property
    def free(self) -> int:
        """Rows free in all."""
        return sum(count for _, count in self.runs)

    def take(self, wanted: int) -> tuple[int, int] | None:
        """Up to ``wanted`` rows in one run: the first that suffices, or the longest."""
        fitting = next((run for run in self.runs if run[1] >= wanted), None)
        run = fitting or max(self.runs, key=lambda run: run[1], default=None)
        if run is None or wanted < 1:
            return None
        first, count = run
        taken = min(wanted, count)
        at = self.runs.index(run)
        self.runs[at : at + 1] = [(first + taken, count - taken)] if count > taken else []
        return first, taken

    def give(self, first: int, count: int) -> None:
        """Rows come back."""
        self.runs.append((first, count))
        self.runs.sort()
        merged: list[tuple[int, int]] = []
        for start, size in self.runs:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                assert not merged or sum(merged[-1]) < start, f"row {start} came back twice"
                merged.append((start, size))
        self.runs = merged

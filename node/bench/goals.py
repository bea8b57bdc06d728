"""The goals of every benchmark: the one table (design, section 9). Decides ``met``; no IO."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Better(Enum):
    """Which direction of the raw measurement is good; it decides what ``ratio`` means."""

    LOWER = "lower"
    HIGHER = "higher"


class On(Enum):
    """What the goal binds."""

    OURS = "ours"
    RATIO = "ratio"  # how many times better ours is than the baseline


_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table."""

    metric: str
    unit: str
    meaning: str
    comparison: str  # a key of _COMPARE
    bound: float
    better: Better
    on: On

    def __str__(self) -> str:
        prefix = "ratio " if self.on is On.RATIO else ""
        return f"{prefix}{self.comparison} {self.bound:g}"

    def is_met(self, *, ours: float, ratio: float | None) -> bool:
        """Whether the measurement meets the goal; a goal on a ratio needs a baseline."""
        value = ratio if self.on is On.RATIO else ours
        if value is None:
            raise ValueError(f"{self.metric}: its goal is on the ratio, so it needs a baseline")
        return _COMPARE[self.comparison](value, self.bound)


_LOW, _HIGH = Better.LOWER, Better.HIGHER
_OURS, _RATIO = On.OURS, On.RATIO
_SHARE = "of the run's cold / full-hit ratio"
_TAIL = "native tail / our fence, 4096-token unit"
_FIRST = "abort + cold / ours, to the successor's first token"

# metric, unit, meaning, comparison, bound, which way is better, what the goal binds
_TABLE: Final = (
    ("grid.failed", "cells", "state x event cells that break a promise", "=", 0, _LOW, _OURS),
    ("grid.cells", "cells", "state x event cells tried", ">=", 40, _HIGH, _OURS),
    ("gate.check_ns", "ns", "one publication check", "<", 200, _LOW, _OURS),
    ("control.unpublishable_ms.p99", "ms", "call to UNPUBLISHABLE, 1 gate", "<", 3, _LOW, _OURS),
    ("control.unpublishable64_ms.p99", "ms", "the same, 64 gates", "<", 10, _LOW, _OURS),
    ("kube.apply_to_unpublishable_ms.p50", "ms", "API request to it", "<", 150, _LOW, _OURS),
    ("kube.runtime_unpublishable2_ms.p99", "ms", "call to it, two nodes", "<", 10, _LOW, _OURS),
    ("kube.resync500_s", "s", "operator started over 500 scopes", "<", 30, _LOW, _OURS),
    ("kube.resync500_writes", "writes", "of objects that are as they should", "=", 0, _LOW, _OURS),
    ("kube.revise500_s", "s", "500 revisions in one go", "<", 30, _LOW, _OURS),
    ("kube.operator_rss_mb.scopes500", "MiB", "operator with 500 scopes", "<", 256, _LOW, _OURS),
    ("kube.lost_revisions", "revisions", "that no gate saw", "=", 0, _LOW, _OURS),
    ("kube.wrong_final_versions", "scopes", "not at what was asked last", "=", 0, _LOW, _OURS),
    ("kube.switched_without_operator", "gates", "control: nothing may", "=", 0, _LOW, _OURS),
    ("fence.long_prefill", "ms", _TAIL, ">=", 50, _LOW, _RATIO),
    ("fence.draft_verify", "ms", _TAIL, ">=", 51.3, _LOW, _RATIO),
    ("fence.spec_decode", "ms", _TAIL, ">=", 10, _LOW, _RATIO),
    ("fence.two_groups", "ms", _TAIL, ">=", 7.1, _LOW, _RATIO),
    ("fence.long_prefill.to_cold", "ms", _FIRST, ">", 1.48, _LOW, _RATIO),
    ("fence.draft_verify.to_cold", "ms", _FIRST, ">", 1.42, _LOW, _RATIO),
    ("fence.spec_decode.to_cold", "ms", _FIRST, ">", 1.12, _LOW, _RATIO),
    ("fence.two_groups.to_cold", "ms", _FIRST, ">", 1.22, _LOW, _RATIO),
    ("fence.long_prefill_ms", "ms", "our fence, default policy, qwen3-32b", "<", 8, _LOW, _OURS),
    ("compose.vs_cold_pct", "%", "successor TTFT below native + cold", ">", 75, _HIGH, _OURS),
    ("compose.worst_cell_vs_prefix", "ms", "against prefix caching", ">=", 0.98, _LOW, _RATIO),
    ("compose.geomean_vs_prefix", "ms", "the same, geometric mean", ">", 1.25, _LOW, _RATIO),
    ("churn.kept_min", "tokens", "certified tokens kept, least", ">=", 7168, _HIGH, _OURS),
    ("churn.hbm", "ms", "best recovery against prefix caching", ">", 5.5, _LOW, _RATIO),
    ("churn.dram", "ms", "best recovery against prefix caching", ">", 4.5, _LOW, _RATIO),
    ("churn.hbm_of_limit", "share", _SHARE, ">", 0.95, _HIGH, _OURS),
    ("churn.dram_of_limit", "share", _SHARE, ">", 0.8, _HIGH, _OURS),
    ("copy.d2h", "share", "of the copy rate of the run", ">", 0.8, _HIGH, _OURS),
    ("copy.h2d", "share", "of the copy rate of the run", ">", 0.8, _HIGH, _OURS),
    ("norev.decode_pct", "%", "cost where nothing is revised", "<", 0.3, _LOW, _OURS),
    ("norev.prefill4k_pct", "%", "the same, 4096-token prefill", "<", 0.3, _LOW, _OURS),
    ("norev.mixed8_pct", "%", "the same, 8 mixed requests", "<", 0.3, _LOW, _OURS),
    ("norev.http64_pct", "%", "the same, 64 HTTP streams", "<", 0.3, _LOW, _OURS),
    ("replay.late_tokens", "tokens", "burst replay: late tokens", "=", 0, _LOW, _OURS),
    ("replay.final_fraction", "share", "final versions that advanced", "=", 1, _HIGH, _OURS),
    ("replay.goodput", "tokens/s", "burst replay: useful tokens", ">", 5.53, _HIGH, _RATIO),
    ("replay.cleanup_ms", "ms", "burst replay: RECLAIM", "<", 1.08, _LOW, _OURS),
    ("tp2.fence", "ms", "fence, two tensor-parallel GPUs", ">", 12.19, _LOW, _RATIO),
    ("pp2.fence", "ms", "fence, two pipeline stages", ">", 6.04, _LOW, _RATIO),
    ("tp2.inherit", "ms", "inheritance, two tensor-parallel GPUs", ">", 5.78, _LOW, _RATIO),
    ("tp2.to_successor", "ms", _FIRST, ">", 1.83, _LOW, _RATIO),
    ("pp2.to_successor", "ms", _FIRST, ">", 1.83, _LOW, _RATIO),
    ("tp4.fence", "ms", "fence, four tensor-parallel GPUs", ">", 10.57, _LOW, _RATIO),
    ("tp4.to_successor", "ms", _FIRST, ">", 1.77, _LOW, _RATIO),
    ("tp4.inherit", "ms", "inheritance, four tensor-parallel GPUs", ">", 5.27, _LOW, _RATIO),
    ("tp2pp2.fence", "ms", "fence, two stages of two GPUs", ">", 6.04, _LOW, _RATIO),
    ("tp2pp2.to_successor", "ms", _FIRST, ">", 1.7, _LOW, _RATIO),
    ("tp2pp2.inherit", "ms", "inheritance, two stages of two GPUs", ">", 7.08, _LOW, _RATIO),
    ("tenant.runtime_pct", "%", "cost to another tenant", "<", 1, _LOW, _OURS),
    ("tenant.frame_gap_pct", "%", "its longest silence", "<", 1, _LOW, _OURS),
)

GOALS: Final[dict[str, Goal]] = {line[0]: Goal(*line) for line in _TABLE}

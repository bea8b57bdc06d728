"""From what ``bench.kube`` saw to the rows of its result file. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.report import Baseline, Row, measured, p50, p99, value

if TYPE_CHECKING:
    from bench.kube_many import Restart
    from bench.kube_series import Samples

_RANKS: Final = (("p50", p50), ("p99", p99))
PATCH: Final = "bare PATCH answered, nobody watches"
# Metric -> its samples, and the baseline's name and samples.
_SERIES: Final = (
    # From the API request of a client that runs already to every gate's ack.
    ("apply_to_unpublishable_ms", "apply_ms", PATCH, "patch_ms"),
    # From the start of the process `kubectl apply` to the same point.
    ("kubectl_to_unpublishable_ms", "kubectl_to_unpublishable_ms", PATCH, "patch_ms"),
    (
        "two_operators.apply_to_unpublishable_ms",
        "two_operators_ms",
        "one operator",
        "apply_ms",
    ),
    (
        "runtime_unpublishable2_ms",
        "runtime_ms",
        "bare Redis compare-and-set, same registry",
        "cas_ms",
    ),
)
_BASELINES: Final = (
    "patch_ms",  # the API server alone: PATCH answered
    "watch_ms",  # the same until a bare watcher has the event
    "apply_answered_ms",  # PATCH answered while the operator works on its event
    "kubectl_apply_ms",  # `kubectl apply`, start to end
    "kubectl_start_ms",  # `kubectl version --client`: what the process costs before it asks
    "cas_ms",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that a run saw."""

    samples: Samples
    scopes: int
    rss_mb: tuple[float, float]  # idle; with all scopes, after their revision
    restart: Restart
    revised_s: float  # all scopes in one go, until UNPUBLISHABLE
    told_s: float  # until every object says so
    without_operator: int  # gates that switched or closed
    faults: dict[str, int]
    wrong_final: int
    revisions: int  # asked for in the run


def rows_of(seen: Seen) -> list[Row]:
    """Every row, the goals first."""
    return [*_latencies(seen.samples), *_many(seen), *_correctness(seen)]


def _latencies(samples: Samples) -> list[Row]:
    found: list[Row] = []
    for metric, ours, name, theirs in _SERIES:
        baseline = Baseline(name, samples[theirs])
        found += [
            measured(
                f"kube.{metric}.{label}",
                samples[ours],
                statistic=rank,
                baseline=baseline,
                unit="ms",
            )
            for label, rank in _RANKS
        ]
    for name in _BASELINES:
        found += [
            measured(f"kube.{name}.{label}", samples[name], statistic=rank, unit="ms")
            for label, rank in _RANKS
        ]
    return found


def _many(seen: Seen) -> list[Row]:
    count, restart = seen.scopes, seen.restart
    return [
        value(f"kube.resync{count}_s", restart.all_s, n=count, unit="s"),
        value(f"kube.resync{count}_first_s", restart.first_s, n=1, unit="s"),
        value(f"kube.resync{count}_cpu_s", restart.cpu_s, n=1, unit="s"),
        value(f"kube.resync{count}_writes", restart.writes, n=count, unit="writes"),
        value(f"kube.resync{count}_changed", restart.changed, n=count, unit="objects"),
        value(f"kube.revise{count}_s", seen.revised_s, n=count, unit="s"),
        value(f"kube.revise{count}_status_s", seen.told_s, n=count, unit="s"),
        value("kube.operator_rss_mb.idle", seen.rss_mb[0], n=1, unit="MiB"),
        value(f"kube.operator_rss_mb.scopes{count}", seen.rss_mb[1], n=1, unit="MiB"),
    ]


def _correctness(seen: Seen) -> list[Row]:
    count, faults = seen.revisions, seen.faults
    return [
        value("kube.lost_revisions", faults["lost"], n=count, unit="revisions"),
        value("kube.repeated_revisions", faults["repeated"], n=count, unit="revisions"),
        value("kube.disordered_scopes", faults["disordered"], n=count, unit="scopes"),
        value("kube.open_at_switch", faults["open"], n=count, unit="switches"),
        value("kube.wrong_final_versions", seen.wrong_final, n=count, unit="scopes"),
        value("kube.switched_without_operator", seen.without_operator, n=2, unit="gates"),
    ]

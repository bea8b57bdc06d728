"""Prometheus metrics of one process: made from ``names``, shown at /metrics.

prometheus_client and not OpenTelemetry's exporter: vLLM has it, so that ours stand beside vLLM's in
one exposition; its counters cost a lock and an addition; and it writes exemplars, which link a
histogram's bucket to the trace of a transition. Must never import the sidecar, the engine or vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from retire.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.registry import Collector

    from retire.telemetry.names import Metric

__all__ = ["REGISTRY", "Metrics", "Reading", "TenantLabels"]

# From a gate's check to a lease that runs out: 0.25 ms to a minute, in steps of about two.
SECONDS: Final = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)

Reading = tuple["Metric", float | int | bool, tuple[str, ...]]
"""A value read at a scrape: metric, value, label values."""


class TenantLabels:
    """Label values of tenants: bounded, so that no caller can fill the time series database."""

    def __init__(self, limit: int = names.TENANT_LABELS_MAX) -> None:
        self._known: set[str] = set()
        self._limit = limit

    def of(self, tenant: str) -> str:
        """The tenant's own name, or the one that all share beyond the limit."""
        if tenant in self._known:
            return tenant
        if len(self._known) >= self._limit:
            return names.TENANT_OTHER
        self._known.add(tenant)
        return tenant


class Metrics:
    """One process's metrics in one registry (the default one is vLLM's in an API process)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self.tenants = TenantLabels()

    def counter(self, metric: Metric) -> Counter:
        """A counter; its name ends in _total."""
        return Counter(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def histogram(self, metric: Metric) -> Histogram:
        """A histogram of seconds."""
        return Histogram(
            metric.name, metric.meaning, metric.labels, registry=self.registry, buckets=SECONDS
        )

    def gauge(self, metric: Metric) -> Gauge:
        """A gauge; of several API processes under one exposition the newest value counts."""
        return Gauge(
            metric.name,
            metric.meaning,
            metric.labels,
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )

    def read_by(self, read: Callable[[], Iterable[Reading]]) -> None:
        """Values that are looked up when somebody scrapes: they cost nothing before."""
        self.registry.register(_Readings(read, self.tenants))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Body and content type: OpenMetrics, with exemplars, for who accepts it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _Readings:
    """A collector over a function; tenants beyond the limit are added up."""

    def __init__(self, read: Callable[[], Iterable[Reading]], tenants: TenantLabels) -> None:
        self._read, self._tenants = read, tenants

    def describe(self) -> list[Any]:
        """Nothing is read at registration."""
        return []

    def collect(self) -> Iterator[Any]:
        """One family a metric."""
        sums: dict[Metric, dict[tuple[str, ...], float]] = {}
        for metric, value, labels in self._read():
            values = sums.setdefault(metric, {})
            known = self._bounded(metric, labels)
            values[known] = values.get(known, 0.0) + float(value)
        for metric, values in sums.items():
            yield _family(metric, values)

    def _bounded(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        pairs = zip(metric.labels, labels, strict=True)
        return tuple(self._tenants.of(v) if name == "tenant" else v for name, v in pairs)


def _family(metric: Metric, values: Mapping[tuple[str, ...], float]) -> Any:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


if TYPE_CHECKING:
    _: Collector = _Readings(list, TenantLabels())  # type: ignore[assignment]

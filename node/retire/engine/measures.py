"""What an API process adds to vLLM's /metrics: late tokens, ended responses, pins by tenant.

In prometheus_client's default registry, which vLLM serves (of several API processes too, through
its multiprocess files). Must never import vLLM, decide anything, or be asked by a gate.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from retire.telemetry import names
from retire.telemetry.metrics import REGISTRY, Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import Gauge

    from retire.engine.publication import Ended
    from retire.engine.tag import Tag
    from retire.protocol.versions import ScopeKey, Version
    from retire.telemetry.names import Metric

ACKED_SCOPES_MAX: Final = 4096


class AckedVersions:
    """The auditor of C1: which version of a scope this process has acked, apart from every gate.

    A gate that fails to close is not asked; what is written is compared with what was acked. The
    scopes acked longest ago are forgotten, with them a late token of a stream that outlived 4096
    further ones.
    """

    def __init__(self, kept: int = ACKED_SCOPES_MAX) -> None:
        self._acked: OrderedDict[ScopeKey, Version] = OrderedDict()
        self._kept = kept

    def acked(self, key: ScopeKey, to: Version) -> None:
        """From now on nothing below ``to`` may be written."""
        self._acked[key] = to
        self._acked.move_to_end(key)
        if len(self._acked) > self._kept:
            self._acked.popitem(last=False)

    def is_late(self, tag: Tag) -> bool:
        """Whether a token of this tag may not be written any more."""
        acked = self._acked.get(tag.key)
        return acked is not None and tag.version < acked


class Measures:
    """The metrics of one API process."""

    def __init__(self, metrics: Metrics, bound_ms: float) -> None:
        self._tenants = metrics.tenants
        self._bound_ms = bound_ms
        self.acked = AckedVersions()
        self._late = metrics.counter(names.LATE_TOKENS)
        self._retired = metrics.counter(names.RETIRED_RESPONSES)
        self._over_bound = metrics.counter(names.FENCES_OVER_BOUND)
        self._pinned = metrics.gauge(names.PINNED_BLOCKS)
        self._bytes = metrics.gauge(names.PINNED_BYTES)
        self._capacity = metrics.gauge(names.HOST_CAPACITY)
        self._blocks = metrics.gauge(names.KV_BLOCKS)
        self._overdue = metrics.gauge(names.PIN_OVERDUE)
        self.shown = False  # the engine was asked once
        self._shown: dict[str, set[tuple[str, ...]]] = {}  # of a gauge, what is not 0

    def late(self, tokens: int) -> None:
        """Tokens of a version were written after its end was acked: a promise is broken."""
        self._late.inc(tokens)

    def ended(self, why: Ended) -> None:
        """A gate ended a response."""
        self._retired.labels(why.value).inc()

    def fenced(self, residual_ms: float | None, contract_ms: float | None) -> None:
        """A fence came to its end; ``contract_ms``: the bound that its caller asked for."""
        if residual_ms is not None and residual_ms > (contract_ms or self._bound_ms):
            self._over_bound.inc()

    def pins(self, engine: Mapping[str, Any]) -> None:
        """What the engine keeps now: the answer of ``retire_pins``."""
        self.shown = True
        block_bytes, host = engine["block_bytes"], engine["host"]
        pinned: dict[str, int] = engine["pinned_by_tenant"]
        self._set(names.PINNED_BLOCKS, self._pinned, self._sums(pinned))
        hbm = {(t, "hbm"): n * block_bytes for (t,), n in self._sums(pinned).items()}
        dram = {(t, "dram"): n for (t,), n in self._sums(host["by_tenant"]).items()}
        self._set(names.PINNED_BYTES, self._bytes, hbm | dram)
        self._capacity.set(0 if host["off"] else host["capacity"])
        self._blocks.set(engine["total_blocks"])
        self._overdue.set(engine["overdue_s"])

    def _sums(self, by_tenant: Mapping[str, int]) -> dict[tuple[str, ...], int]:
        sums: dict[tuple[str, ...], int] = {}
        for tenant, amount in by_tenant.items():
            label = (self._tenants.of(tenant),)
            sums[label] = sums.get(label, 0) + amount
        return sums

    def _set(self, metric: Metric, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """These values, and 0 for who has none any more."""
        for gone in self._shown.get(metric.name, set()) - values.keys():
            gauge.labels(*gone).set(0)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        self._shown[metric.name] = {labels for labels, value in values.items() if value}

    @property
    def holds(self) -> bool:
        """Whether the last answer told of anything kept: it must be asked for again."""
        return any(self._shown.values())


@functools.cache
def of_process(bound_ms: float) -> Measures:
    """This process's, made once: a name may be registered only once."""
    return Measures(Metrics(REGISTRY), bound_ms)

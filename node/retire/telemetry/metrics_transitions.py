"""Counts transitions by their finished receipts: what a receipt says, a dashboard can show.

Pure bookkeeping over ``protocol`` values; who made the receipt is the caller's business. Must never
import the sidecar, the engine or vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retire.protocol.contract import SAVED_MS, StopReason
from retire.telemetry import names

if TYPE_CHECKING:
    from retire.protocol.contract import Receipt
    from retire.telemetry.metrics import Metrics


class TransitionMetrics:
    """Every transition of one node, each counted once, by the node that committed it."""

    def __init__(self, metrics: Metrics) -> None:
        self._tenants = metrics.tenants
        self._transitions = metrics.counter(names.TRANSITIONS)
        self._stages = metrics.histogram(names.STAGE_SECONDS)
        self._residual = metrics.histogram(names.RESIDUAL_SECONDS)
        self._fences = metrics.counter(names.FENCES)
        self._incomplete = metrics.counter(names.FENCES_INCOMPLETE)
        self._gates = metrics.counter(names.GATES_PASSED)
        self._successors = metrics.counter(names.SUCCESSORS)
        self._inheritable = metrics.counter(names.TOKENS_INHERITABLE)
        self._certified = metrics.counter(names.TOKENS_CERTIFIED)
        self._adopted = metrics.counter(names.TOKENS_ADOPTED)
        self._saved = metrics.counter(names.GPU_SAVED)
        self._by_tenant = metrics.counter(names.TENANT_TRANSITIONS)
        self._adopted_by_tenant = metrics.counter(names.TENANT_ADOPTED)
        self._quota = metrics.counter(names.QUOTA_REFUSALS)

    def held(self, change: str) -> None:
        """A change that moves no version (pause, resume) was made."""
        self._transitions.labels(change, "done").inc()

    def refused(self, change: str, why: str) -> None:
        """A change was refused."""
        self._transitions.labels(change, why).inc()

    def moved(self, change: str, receipt: Receipt) -> None:
        """A transition's whole receipt. A replay is another answer, not another transition."""
        if receipt.replayed:
            return
        self._transitions.labels(change, "done").inc()
        self._by_tenant.labels(self._tenants.of(receipt.key.tenant)).inc()
        for stage, ms in receipt.stages_ms.items():
            self.stage(stage, ms / 1e3, receipt.trace_id)
        for gate in receipt.gates:
            self._gates.labels(gate.outcome.value).inc()
        self._fenced(receipt)
        self.aligned(receipt)

    def stage(self, stage: str, seconds: float, trace_id: str | None = None) -> None:
        """A stage ended so long after the call; the trace becomes the bucket's exemplar."""
        self._stages.labels(stage).observe(seconds, _exemplar(trace_id))

    def aligned(self, receipt: Receipt) -> None:
        """What ALIGN came to; also of a successor that came after its SUPERSEDE."""
        tenant = self._tenants.of(receipt.key.tenant)
        if receipt.stop_reason is StopReason.QUOTA or _host_quota(receipt):
            self._quota.labels(tenant).inc()
        if receipt.stop_reason is None:
            return
        self._successors.labels(receipt.stop_reason.value).inc()
        self._inheritable.inc(receipt.inheritable_tokens)
        self._certified.inc(receipt.certified_tokens)
        if receipt.successor_request_id is None:
            return
        self._adopted.inc(receipt.certified_tokens)
        self._adopted_by_tenant.labels(tenant).inc(receipt.certified_tokens)
        saved_ms = receipt.extra.get(SAVED_MS)
        if isinstance(saved_ms, int | float):
            self._saved.inc(saved_ms / 1e3)

    def _fenced(self, receipt: Receipt) -> None:
        if receipt.residual_ms is not None:
            self._residual.observe(receipt.residual_ms / 1e3, _exemplar(receipt.trace_id))
        if receipt.fence is not None:
            self._fences.labels(receipt.fence.branch.value).inc()
        if receipt.extra.get("missing"):
            self._incomplete.inc()


def _host_quota(receipt: Receipt) -> bool:
    return receipt.extra.get("host_refused") == "host_quota"


def _exemplar(trace_id: str | None) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None

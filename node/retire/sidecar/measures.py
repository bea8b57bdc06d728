"""What the sidecar shows at /metrics: transitions by their receipts, and its parts as they stand.

Listens where receipts, refusals and ended transitions pass; reads everything else at a scrape. Must
never change anything, nor raise into a transition.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from retire.protocol import codec
from retire.sidecar.pages import exposition
from retire.sidecar.views import not_ready_reason
from retire.telemetry import names
from retire.telemetry.metrics import Metrics
from retire.telemetry.metrics_transitions import TransitionMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.routing import BaseRoute

    from retire.sidecar.journal import Transition
    from retire.sidecar.parts import Parts
    from retire.sidecar.tracks import Track
    from retire.telemetry.metrics import Reading

_log = logging.getLogger(names.LOGGER_SIDECAR)
_MOVES = ("supersede", "cancel")


class Measures:
    """The metrics of one sidecar."""

    def __init__(self, parts: Parts) -> None:
        self.metrics = Metrics()
        self._parts = parts
        self._transitions = TransitionMetrics(self.metrics)
        self.metrics.read_by(self._read)
        parts.ports.journal.on_append = self._journalled
        parts.ports.tracks.on_over = self._over
        parts.driver.answers.on_refused = self._transitions.refused

    def route(self) -> BaseRoute:
        """GET /metrics."""
        return exposition(self.metrics)

    def _journalled(self, line: Transition) -> None:
        """A line of another node is counted there: it has no receipt, or moves no version."""
        try:
            if line.kind in _MOVES and line.receipt_json:
                receipt = codec.receipt_from_dict(json.loads(line.receipt_json))
                self._transitions.moved(line.kind, receipt)
            elif line.kind == "receipt" and line.from_version != line.to_version:
                self._transitions.aligned(codec.receipt_from_dict(json.loads(line.receipt_json)))
            elif line.kind in ("pause", "resume") and line.idempotency_key:
                self._transitions.held(line.kind)
        except ValueError:
            _log.exception("a receipt was not counted")

    def _over(self, track: Track) -> None:
        """RECLAIM has ended: nothing of the old version is held any more, as far as this node."""
        if track.mine:
            self._transitions.stage("reclaim", self._parts.ports.clock() - track.started_s)

    def _read(self) -> Iterator[Reading]:
        parts, ports, lease = self._parts, self._parts.ports, self._parts.lease
        yield names.READY, not not_ready_reason(parts), ()
        yield names.LEASE_LEFT, max(0.0, lease.left_ms / 1e3), ()
        yield names.LEASE_LENGTH, ports.settings.lease_s, ()
        yield names.LEASE_RENEWALS, lease.granted, ("granted",)
        yield names.LEASE_RENEWALS, lease.failures, ("failed",)
        yield names.TERM, ports.identity.term, ()
        yield names.REGISTRY_LOST, bool(parts.rebuild.why_lost), ()
        yield names.REGISTRY_UNREACHABLE, lease.unreachable, ()
        yield names.GATES, len(ports.links), ()
        yield names.ENGINES, len(ports.links.engines()), ()
        yield names.SCOPES, len(ports.scopes), ()
        yield names.SLOTS_FREE, ports.scopes.free_count, ()
        yield names.RUNNING, len(ports.tracks), ()
        for tenant, blocks in parts.quotas.granted.items():
            if blocks is not None:
                yield names.QUOTA_BLOCKS, blocks, (tenant,)

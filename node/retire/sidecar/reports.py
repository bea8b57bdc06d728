"""Takes in receipts that an API process completed: what ALIGN and RESUME came to.

A successor that came after its SUPERSEDE completes the receipt that is here already, or, where
another node holds it, stands in the journal by itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from retire.protocol import codec
from retire.protocol import events as ev
from retire.protocol.contract import LATE, StopReason
from retire.protocol.errors import InvalidField
from retire.sidecar import convert, receipts
from retire.sidecar.journal import Transition
from retire.sidecar.scopes import StoredReceipt

if TYPE_CHECKING:
    from retire.protocol.contract import Receipt
    from retire.protocol.versions import ScopeKey
    from retire.sidecar.parts import Parts
    from retire.sidecar.pb import node_pb2 as pb


class Reports:
    """The receiving side of Report."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def take(self, request: pb.ReportRequest) -> None:
        """Keep, publish and count one receipt. InvalidField when it is not of this transition."""
        key, to = convert.key_from(request.key), convert.required_version(request, "to")
        receipt = _parse(request.receipt_json)
        if (receipt.key, receipt.to_version) != (key, to):
            raise InvalidField(
                "receipt_json", request.receipt_json, f"the receipt of {key} at {to}"
            )
        self._parts.ports.scopes.get(key)
        if receipt.extra.get(LATE):
            self._take_late(receipt, request.receipt_json)
            return
        line = Transition(
            key,
            "supersede",
            receipt.from_version,
            to,
            request.receipt_json,
            request.idempotency_key,
        )
        stored = StoredReceipt(to, request.idempotency_key, request.receipt_json)
        self._parts.driver.answers.publish_receipt(key, stored, line=line)
        self._tell_protocol(key, receipt)

    def _take_late(self, late: Receipt, text: str) -> None:
        """The protocol's retention ends by itself: nothing of the scope waits for this."""
        key, to = late.key, late.to_version
        line = Transition(key, "receipt", late.from_version, to, text)
        stored = self._parts.ports.scopes.receipt(key, to)
        if stored is None:
            self._parts.ports.journal.append(line)
            return
        receipt = _parse(stored.json)
        if receipt.stop_reason is not None or receipt.successor_request_id is not None:
            return  # of an earlier request of the same version
        whole = receipts.to_json(completed(receipt, late))
        self._parts.driver.answers.publish_receipt(
            key, replace(stored, json=whole), line=replace(line, receipt_json=whole)
        )

    def _tell_protocol(self, key: ScopeKey, receipt: Receipt) -> None:
        to, apply = receipt.to_version, self._parts.driver.apply
        self._parts.driver.answers.retention_over(key, to)
        if receipt.successor_request_id is None:  # none came, or the engine refused it
            apply(key, ev.RetentionEnded(to))
            return
        tokens = receipt.certified_tokens if receipt.participants else 0
        reason = receipt.stop_reason or StopReason.NO_PREDECESSOR
        self._parts.ports.stages.successor(key, to, tokens=tokens, trace=receipt.trace_id)
        apply(key, ev.Certified(to, tokens, reason))
        apply(key, ev.SuccessorAdmitted(to, receipt.successor_request_id))


def completed(receipt: Receipt, late: Receipt) -> Receipt:
    """The receipt of a SUPERSEDE, with what its successor came to; pure."""
    return replace(
        receipt,
        frontier_tokens=late.frontier_tokens,
        inheritable_tokens=late.inheritable_tokens,
        certified_tokens=late.certified_tokens,
        first_difference=late.first_difference,
        stop_reason=late.stop_reason,
        successor_request_id=late.successor_request_id,
        extra=receipt.extra | {k: v for k, v in late.extra.items() if k != LATE},
    )


def _parse(text: str) -> Receipt:
    try:
        return codec.receipt_from_dict(json.loads(text))
    except ValueError as error:
        raise InvalidField("receipt_json", text, "a receipt (RECEIPT_SCHEMA)") from error

"""One SUPERSEDE, driven through its five stages. Read this after ``protocol/transitions.py``.

ADVANCE and FENCE are the sidecar's: it commits, closes every gate, fences the engines and streams
``committed``, ``unpublishable``, ``fenced``. Here the successor is let into the engine as soon as
the commit is known, ALIGN's certificate comes back as it enters (RESUME), and everything becomes
one receipt, which is reported and handed to the caller before the successor's first token.

Must never import vLLM or touch a socket: the sidecar, the engine and the successor are handed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from retire.engine import tracing
from retire.protocol.codec import receipt_to_dict
from retire.protocol.contract import (
    SAVED_MS,
    Contract,
    Inherit,
    PinLease,
    Receipt,
    StopReason,
    Tier,
)
from retire.protocol.errors import RetireError, Unavailable
from retire.sidecar import convert
from retire.telemetry.spans import NOTHING, Span, trace_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.engine.core_calls import CoreCalls
    from retire.engine.publication import Publication
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.client import Mutation, NodeClient
    from retire.sidecar.pb import node_pb2 as pb

    T = TypeVar("T")

_log = logging.getLogger("retire.engine")

CERTIFICATE_WAIT_S: Final = 60.0  # ALIGN runs between two steps: at most one step, however long
REPORT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """The successor's request is in the engine."""

    request_id: str  # vLLM's internal id; of the first choice when n > 1
    traceparent: str = ""  # of its inference span


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine refused the successor; the old version stays superseded all the same."""

    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoSuccessor:
    """None was asked for, or its caller left before it was admitted."""


Outcome = Admitted | Refused | NoSuccessor


@dataclass(frozen=True, slots=True)
class Order:
    """What the caller asked for."""

    key: ScopeKey
    mutation: Mutation
    contract: Contract = field(default_factory=Contract)
    successor: bool = True  # one comes with this call
    span: Span = NOTHING  # of the whole change

    @property
    def trace_id(self) -> str | None:
        """The trace that the change belongs to, by the context that goes to the sidecar."""
        return trace_id(self.mutation.traceparent)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a receipt is made of."""

    order: Order
    committed: pb.Committed
    unpublishable: pb.Unpublishable
    fenced: pb.Fenced
    outcome: Outcome
    certificate: dict[str, Any] | None
    align_ms: float | None
    ready_ms: float


class Handoff:
    """One running SUPERSEDE. It completes, and is reported, whether or not the caller stays.

    ``committed`` and ``receipt`` are futures; an error in ``committed`` means no effect.
    The caller must answer :meth:`decide` once, with what became of the successor.
    """

    def __init__(self, order: Order, *, client: NodeClient, core: CoreCalls) -> None:
        loop = asyncio.get_running_loop()
        self.order = order
        self.committed: asyncio.Future[pb.Committed] = loop.create_future()
        self.receipt: asyncio.Future[Receipt] = loop.create_future()
        self._unpublishable: asyncio.Future[pb.Unpublishable] = loop.create_future()
        self._fenced: asyncio.Future[pb.Fenced] = loop.create_future()
        self._outcome: asyncio.Future[Outcome] = loop.create_future()
        self._aligned: asyncio.Task[tuple[dict[str, Any], float]] | None = None
        self._client = client
        self._core = core
        self._started = time.perf_counter()
        self._committed_ns = 0  # Unix time

    def decide(self, outcome: Outcome) -> None:
        """What became of the successor; only the first answer counts."""
        if not self._outcome.done():
            self._outcome.set_result(outcome)
            if isinstance(outcome, Admitted):
                trace, since_ns = outcome.traceparent, self._committed_ns
                tracing.admitted(self.order.span, outcome.request_id, trace, since_ns)

    async def run(self) -> None:
        """Drive to the end. Run as a task that outlives the caller's connection."""
        following = asyncio.create_task(self._follow())
        try:
            receipt = await self._complete()
        except RetireError as error:
            self.order.span.fail(error.code, str(error))
            _fail(self.receipt, error)
        else:
            self.receipt.set_result(receipt)
            if not receipt.replayed:  # the first call reported, or will
                await self._report(receipt)
        finally:
            self.order.span.end()
            await following

    async def _follow(self) -> None:
        stages = {
            "committed": self.committed,
            "unpublishable": self._unpublishable,
            "fenced": self._fenced,
        }
        failure: RetireError = Unavailable("the sidecar ended the transition early; retry")
        try:
            stream = self._client.supersede(
                self.order.key, self.order.mutation, contract=self.order.contract, driver=True
            )
            async for event in stream:
                name = event.WhichOneof("event")
                if name == "committed":
                    self._expect(event.committed)
                if name in stages and not stages[name].done():
                    stages[name].set_result(getattr(event, name))  # type: ignore[arg-type]
        except RetireError as error:
            failure = error
        finally:
            for future in stages.values():
                _fail(future, failure)

    def _expect(self, committed: pb.Committed) -> None:
        """Ask for the certificate before the successor can be sent: both use one channel in order.

        Asked afterwards, the answer would wait for the step that begins with the successor.
        """
        self._committed_ns = time.time_ns()
        if self.order.successor and not committed.replayed:
            to_version = convert.version_from(committed.to)
            self._aligned = asyncio.create_task(self._align(to_version))

    async def _align(self, to_version: Version) -> tuple[dict[str, Any], float]:
        certificate = await self._core.expect(self.order.key, to_version)
        if self.order.span.on:
            trace, since_ns = self.order.span.traceparent, self._committed_ns
            tracing.certified(self._core.tracer, trace, certificate, since_ns)
        return certificate, self._ms()

    async def _complete(self) -> Receipt:
        committed = await self.committed
        outcome = await self._outcome
        certificate, align_ms = await self._certificate(outcome)
        unpublishable = await self._unpublishable
        fenced = await self._fenced
        if isinstance(outcome, Refused):
            await self._core.release(self.order.key)  # answers the expectation too
        return receipt_of(
            Facts(
                self.order,
                committed,
                unpublishable,
                fenced,
                outcome,
                certificate,
                align_ms,
                ready_ms=self._ms(),
            )
        )

    async def _certificate(self, outcome: Outcome) -> tuple[dict[str, Any] | None, float | None]:
        if not isinstance(outcome, Admitted) or self._aligned is None:
            return None, None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CERTIFICATE_WAIT_S):
                return await self._aligned
        _log.warning("ALIGN did not answer; the receipt of %s says nothing of it", self.order.key)
        return None, None

    async def _report(self, receipt: Receipt) -> None:
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                await self._client.report(
                    self.order.key,
                    receipt.to_version,
                    receipt_json=json.dumps(receipt_to_dict(receipt)),
                    idempotency_key=self.order.mutation.idempotency_key,
                )
        except (RetireError, TimeoutError) as error:
            _log.warning("receipt not reported to the sidecar: %s", error)

    def _ms(self) -> float:
        return round((time.perf_counter() - self._started) * 1e3, 3)


def admission_of(publication: Publication) -> Admitted:
    """The successor's first request is in the engine."""
    return Admitted(publication.engine_request_id, publication.span.traceparent)


def receipt_of(facts: Facts) -> Receipt:
    """The receipt; pure."""
    certificate = facts.certificate or {}
    outcome = facts.outcome
    frontier = max((p.frontier_tokens for p in facts.fenced.participants), default=0)
    return Receipt(
        key=facts.order.key,
        from_version=convert.version_from(getattr(facts.committed, "from")),
        to_version=convert.version_from(facts.committed.to),
        stages_ms=_stages_ms(facts),
        gates=tuple(convert.gate_from(gate) for gate in facts.unpublishable.gates),
        participants=tuple(convert.participant_from(p) for p in facts.fenced.participants),
        requests=tuple(convert.retired_from(r) for r in facts.fenced.requests),
        residual_ms=facts.fenced.residual_ms if facts.fenced.HasField("residual_ms") else None,
        fence=convert.fence_from(facts.fenced),
        frontier_tokens=certificate.get("frontier_tokens", frontier),
        inheritable_tokens=certificate.get("inheritable_tokens", 0),
        certified_tokens=certificate.get("certified_tokens", 0),
        first_difference=certificate.get("first_difference"),
        stop_reason=StopReason(certificate["stop_reason"]) if certificate else None,
        pin=_pin(facts),
        successor_request_id=outcome.request_id if isinstance(outcome, Admitted) else None,
        error=outcome.error if isinstance(outcome, Refused) else None,
        trace_id=facts.order.trace_id,
        replayed=facts.committed.replayed,
        extra=_extra(facts),
    )


def _extra(facts: Facts) -> dict[str, object]:
    extra = convert.extra_from(facts.fenced)
    if restore := (facts.certificate or {}).get("restore"):
        extra["restore"] = restore  # what became of the copy in host memory
    return extra | saved(facts.certificate or {})


def saved(certificate: Mapping[str, Any]) -> dict[str, object]:
    """For ``Receipt.extra``: device time that the certified tokens would take, ms, where known."""
    ms = certificate.get("saved_ms")
    return {SAVED_MS: round(ms, 3)} if ms else {}


def inherits(contract: Contract) -> bool:
    """Whether the successor may consume predecessor KV."""
    return contract.inherit is Inherit.CERTIFIED


def _stages_ms(facts: Facts) -> dict[str, float]:
    stages = {
        "commit": facts.committed.ms,
        "unpublishable": facts.unpublishable.ms,
        "fence": facts.fenced.ms,
    }
    if facts.align_ms is not None:
        stages |= {"align": facts.align_ms, "resume": facts.ready_ms}
    return stages


def _pin(facts: Facts) -> PinLease | None:
    """What is still pinned: for an admitted successor the engine says, else what the fence kept."""
    match facts.outcome:
        case Admitted():
            pin = (facts.certificate or {}).get("pin")
            if pin is None:
                return None
            return PinLease(pin["blocks"], Tier(pin["tier"]), pin["expires_s"], pin["quota_left"])
        case NoSuccessor():
            return convert.pin_from(facts.fenced, facts.order.contract)
        case _:
            return None


def _fail(future: asyncio.Future[Any], error: RetireError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: whoever awaits it still gets it, nobody else must

"""A sidecar a test can hold by the hand: real gRPC, a real mailbox, transitions as scripted.

The real one has its own tests; here the *timing* of its stages and its failures are the input.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from retire.mailbox import MailboxWriter
from retire.protocol.errors import (
    IdempotencyConflict,
    RetireError,
    ScopeClosed,
    Unauthenticated,
    UnknownScope,
    VersionConflict,
)
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar import convert, status
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.pb import node_pb2_grpc

FIRST = Version(1, 0)


@dataclass
class Scope:
    version: Version
    cancelled: bool = False
    paused: bool = False
    policy: str = ""
    receipts: dict[str, str] = field(default_factory=dict)  # idempotency key -> receipt
    made: dict[str, tuple[bytes, Version]] = field(default_factory=dict)  # key -> digest, from

    @property
    def flags(self) -> int:
        return 4 * self.cancelled + self.paused


class ScriptedSidecar(node_pb2_grpc.NodeServicer):
    """Commits, switches, fences; ``slow`` stages wait until the test lets them go."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "node.sock"
        self.mailbox_path = folder / "mailbox"
        self.writer = MailboxWriter.create(self.mailbox_path, capacity=1024)
        self.writer.renew(2**62)
        self.scopes: dict[ScopeKey, Scope] = {}
        self.go: dict[str, asyncio.Event] = {}
        self.joins = 0
        self.hellos: list[pb.Hello] = []
        self.reports: list[pb.ReportRequest] = []
        self.contracts: list[pb.Contract] = []  # of each SUPERSEDE that committed
        self.tokens: dict[str, str] = {}  # token -> tenant
        self.cache_s = 60.0
        self.asked: list[str] = []  # tokens, as Authenticate was asked about them
        self.refuse: RetireError | None = None
        self._links: list[asyncio.Queue[pb.GateCommand]] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        node_pb2_grpc.add_NodeServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)
        self.writer.renew(0)

    def hold(self, stage: str) -> asyncio.Event:
        """The stage waits for the returned event."""
        self.go[stage] = asyncio.Event()
        return self.go[stage]

    def scope(self, key: ScopeKey) -> Scope:
        """The scope as the registry has it; opened when it is new."""
        return self.scopes.setdefault(key, Scope(FIRST))

    @property
    def attached(self) -> int:
        return len(self._links)

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        self.joins += 1
        key = convert.key_from(request.key)
        await self._checked(context)
        created = key not in self.scopes
        scope = self.scopes.setdefault(key, Scope(FIRST))
        if scope.cancelled:
            await self._fail(context, ScopeClosed(key, scope.version))
        if request.HasField("version"):
            await self._expect(key, convert.version_from(request.version), context)
        return pb.JoinReply(
            version=convert.version_to(scope.version), slot=self._slot(key), created=created,
            generation=1, policy=scope.policy, paused=scope.paused,
        )  # fmt: skip

    async def Supersede(self, request: pb.SupersedeRequest, context: Any) -> AsyncIterator[Any]:
        started = time.perf_counter()
        key = convert.key_from(request.key)
        await self._checked(context)
        scope = self.scopes.get(key)
        if scope is None:
            await self._fail(context, UnknownScope(key.scope))
            return
        if request.idempotency_key in scope.made:
            digest, old = scope.made[request.idempotency_key]
            if digest != request.body_digest:
                await self._fail(context, IdempotencyConflict(request.idempotency_key))
            yield self._committed(key, old, scope.receipts[request.idempotency_key], True)
            return
        await self._expect(key, convert.version_from(request.expected), context)
        old, scope.version = scope.version, scope.version.next_epoch()
        slot = self._slot(key)
        scope.receipts[request.idempotency_key] = ""
        scope.made[request.idempotency_key] = request.body_digest, old
        self.contracts.append(request.contract)
        yield self._committed(key, old, "", False)
        last = await self._switch(key, scope.version, "supersede", slot.index)
        await self._wait("unpublishable")
        gates = [pb.GateResult(gate="n/api", outcome="acked", ms=1.0)] * self.attached
        yield pb.TransitionEvent(unpublishable=pb.Unpublishable(gates=gates, ms=_ms(started)))
        fenced = await self._fence(key, scope.version, request.contract, terminal=False)
        await self._wait("fenced")
        for retired in fenced.requests:
            if retired.request_id in last:
                retired.last_published_index = last[retired.request_id]
        fenced.ms = _ms(started)
        yield pb.TransitionEvent(fenced=fenced)

    async def Cancel(self, request: pb.ScopeRequest, context: Any) -> pb.TransitionReply:
        key = convert.key_from(request.key)
        if key not in self.scopes:
            await self._fail(context, UnknownScope(key.scope))
        await self._expect(key, convert.version_from(request.expected), context)
        scope = self.scopes[key]
        old, scope.version, scope.cancelled = scope.version, scope.version.next_epoch(), True
        slot = self._slot(key)
        await self._switch(key, scope.version, "cancel", slot.index)
        await self._fence(key, scope.version, pb.Contract(), terminal=True)
        reply = pb.TransitionReply(to=convert.version_to(scope.version), receipt_json="{}")
        getattr(reply, "from").CopyFrom(convert.version_to(old))
        return reply

    async def Authenticate(
        self, request: pb.AuthenticateRequest, context: Any
    ) -> pb.AuthenticateReply:
        self.asked.append(request.token)
        await self._wait("authenticate")
        await self._checked(context)
        if request.token not in self.tokens:
            await self._fail(context, Unauthenticated("the bearer token is not in the token file"))
        return pb.AuthenticateReply(tenant=self.tokens[request.token], cache_s=self.cache_s)

    async def pause(self, key: ScopeKey, *, paused: bool) -> None:
        """What Pause and Resume do to the API processes."""
        scope = self.scopes[key]
        scope.paused = paused
        slot = self._slot(key)
        await self._switch(key, scope.version, "pause" if paused else "resume", slot.index)

    async def cancel(self, key: ScopeKey) -> None:
        """What Cancel does to the API processes."""
        scope = self.scopes[key]
        scope.version, scope.cancelled = scope.version.next_epoch(), True
        slot = self._slot(key)
        await self._switch(key, scope.version, "cancel", slot.index)

    async def supersede(self, key: ScopeKey) -> None:
        """What a SUPERSEDE made elsewhere does to the API processes."""
        scope = self.scopes[key]
        scope.version = scope.version.next_epoch()
        await self._switch(key, scope.version, "supersede", self._slot(key).index)

    async def warm(self, key: ScopeKey, version: Version, body: bytes) -> pb.WarmDone:
        """Ask the first process to compute a context."""
        message = pb.Warm(
            key=convert.key_to(key), version=convert.version_to(version), request_json=body
        )
        return await self._ask(self._links[0], warm=message)

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.ScopeView:
        key = convert.key_from(request.key)
        if key not in self.scopes:
            await self._fail(context, UnknownScope(key.scope))
        return self._view(key)

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListReply:
        return pb.ListReply(scopes=[self._view(key) for key in self.scopes])

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        self.reports.append(request)
        key = convert.key_from(request.key)
        self.scopes[key].receipts[request.idempotency_key] = request.receipt_json
        return pb.ReportReply()

    async def Attach(self, request_iterator: Any, context: Any) -> None:
        hello = await context.read()
        self.hellos.append(hello.hello)
        await context.write(pb.GateCommand(command=0, welcome=pb.Welcome(node="n")))
        outbox: asyncio.Queue[pb.GateCommand] = asyncio.Queue()
        self._links.append(outbox)
        writing = asyncio.create_task(self._pump(outbox, context))
        try:
            while (report := await context.read()) is not grpc.aio.EOF:
                self._receive(report)
        finally:
            writing.cancel()
            self._links.remove(outbox)

    async def _pump(self, outbox: asyncio.Queue[pb.GateCommand], context: Any) -> None:
        with contextlib.suppress(grpc.aio.UsageError, asyncio.InvalidStateError):
            while True:
                await context.write(await outbox.get())

    def _receive(self, report: pb.GateReport) -> None:
        answer = getattr(report, report.WhichOneof("report"))
        future = self._answers.pop(answer.command, None)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _ask(self, outbox: asyncio.Queue[pb.GateCommand], **body: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        outbox.put_nowait(pb.GateCommand(command=number, **body))
        return await asyncio.wait_for(self._answers[number], 60)

    async def _switch(self, key: ScopeKey, to: Version, kind: str, index: int) -> dict[str, int]:
        body = pb.Switch(
            key=convert.key_to(key), to=convert.version_to(to), slot_index=index, kind=kind
        )
        acks = await asyncio.gather(*[self._ask(link, switch=body) for link in self._links])
        return {k: v for ack in acks for k, v in ack.last_published_index.items()}

    async def _fence(
        self, key: ScopeKey, to: Version, contract: pb.Contract, *, terminal: bool
    ) -> pb.Fenced:
        if not self._links:
            return pb.Fenced()
        body = pb.Fence(
            key=convert.key_to(key), to=convert.version_to(to), contract=contract, terminal=terminal
        )
        reply = await self._ask(self._links[0], fence=body)
        assert not reply.error, reply.error
        return reply.fenced

    def _slot(self, key: ScopeKey) -> pb.SlotRef:
        scope = self.scopes[key]
        ref = self.writer.open(key, scope.version)
        self.writer.set_flags(ref.index, scope.flags)
        return pb.SlotRef(index=ref.index, tenure=ref.tenure, stamp=ref.stamp)

    def _committed(
        self, key: ScopeKey, old: Version, receipt: str, replayed: bool
    ) -> pb.TransitionEvent:
        to = old.next_epoch()
        committed = pb.Committed(
            to=convert.version_to(to), replayed=replayed, ms=0.5, slot=self._slot(key),
            generation=1, receipt_json=receipt,
        )  # fmt: skip
        getattr(committed, "from").CopyFrom(convert.version_to(old))
        return pb.TransitionEvent(committed=committed)

    def _view(self, key: ScopeKey) -> pb.ScopeView:
        scope = self.scopes[key]
        return pb.ScopeView(
            key=convert.key_to(key), version=convert.version_to(scope.version), phase="steady",
            cancelled=scope.cancelled, receipts_json=[r for r in scope.receipts.values() if r],
        )  # fmt: skip

    async def _wait(self, stage: str) -> None:
        if stage in self.go:
            await self.go[stage].wait()

    async def _expect(self, key: ScopeKey, expected: Version, context: Any) -> None:
        current = self.scopes[key].version
        if expected != current:
            await self._fail(context, VersionConflict(key, expected=expected, current=current))

    async def _checked(self, context: Any) -> None:
        if self.refuse is not None:
            await self._fail(context, self.refuse)

    async def _fail(self, context: Any, error: RetireError) -> None:
        blob = ((status.METADATA_KEY, status.encode(error)),)
        await context.abort(status.status_of(error), str(error), trailing_metadata=blob)


def _ms(started: float) -> float:
    return (time.perf_counter() - started) * 1e3

"""The link of an API process to its node's sidecar: says who it is, answers its commands.

Owns the client, the view of the mailbox and the answers to Switch, Fence, Inspect, Warm and Quota.
Must never decide a version, nor import vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from retire.engine import measures, overlap, tracing
from retire.engine.admissions import Admissions
from retire.engine.authentication import Authenticator
from retire.engine.inputs import Inputs
from retire.engine.late_successors import LateSuccessors
from retire.engine.publication import Ended, Publications
from retire.engine.repeats import Repeats
from retire.engine.replies import NO_SIDECAR
from retire.engine.step_control import bound_from_env
from retire.engine.warming import Context, Warming
from retire.mailbox import MailboxView, Overlaps
from retire.protocol.codec import receipt_to_dict
from retire.protocol.contract import Tier
from retire.protocol.errors import InvalidField, RetireError, Unavailable
from retire.protocol.history import Published
from retire.sidecar import convert
from retire.sidecar.client import NodeClient
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry.history import History
from retire.telemetry.logs import fields
from retire.telemetry.tracing import OFF, Tracer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from retire.engine.core_calls import CoreCalls
    from retire.engine.settings import Settings
    from retire.engine.tag import Tag
    from retire.protocol.contract import Receipt
    from retire.protocol.versions import ScopeKey

_log = logging.getLogger("retire.engine")

TICK_S: Final = 1.0
REFRESH_S: Final = 30.0  # how often live scopes tell the sidecar that they are in use
RETRY_S: Final = 1.0
_HOLDS: Final = ("pause", "resume")
_ENDS: Final = {"supersede": Ended.SUPERSEDED, "cancel": Ended.CANCELLED}


class SidecarLink:
    """One API process's side of the Attach stream (``sidecar.client.GateHandler``)."""

    def __init__(self, settings: Settings, core: CoreCalls, tracer: Tracer = OFF) -> None:
        self.core = core
        self.tracer = tracer
        self.gate = f"api-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._history = History.from_env()
        self.publications = Publications(
            hold_s=settings.hold_s,
            abort=core.abort,
            record=self._record if self._history.on else None,
        )
        self.measures = measures.of_process(bound_from_env())
        self.publications.is_late = self.measures.acked.is_late
        self.publications.on_late = self.measures.late
        self.publications.on_ended = self.measures.ended
        self.admissions = Admissions(self)
        self.authenticator = Authenticator(lambda token: self.client().authenticate(token))
        self.inputs = Inputs(
            self.admissions, self.mailbox, wait_s=settings.input_wait_s, spawn=self._spawn
        )
        self.repeats = Repeats()
        self.warming = Warming(self)
        self.late = LateSuccessors(core, self._report_late)
        self.node = ""
        self._settings = settings
        self._client: NodeClient | None = None
        self._view: MailboxView | None = None
        self._overlaps: Overlaps | None = None
        self._engine: dict[str, Any] = {}
        self._attached = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Ask the engine who it is, then attach and stay so. Raises when it is not versioned."""
        self._engine = await self.core.hello()
        if self._settings.sidecar is None:
            _log.warning("RETIRE_SIDECAR is not set: calls with x-retire-scope answer 503")
            return
        self._client = NodeClient(self._settings.sidecar)
        self._spawn(self._stay_attached())
        self._spawn(self._tick())

    async def stop(self) -> None:
        """Detach, after every stream has ended: a detached process counts as silent."""
        self.late.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        for tracer in (self.tracer, self.core.tracer):
            tracer.close()

    def client(self) -> NodeClient:
        """The sidecar, or Unavailable when there is none."""
        if self._client is None:
            raise Unavailable(NO_SIDECAR)
        return self._client

    def mailbox(self) -> MailboxView:
        """This host's mailbox; Unavailable until the sidecar was seen once."""
        try:
            if self._view is None or self._view.replaced():
                self._view = (
                    MailboxView.attach()
                )  # an older view stays mapped: its gates stay closed
                self._overlaps = Overlaps.attach(writable=True)
        except InvalidField as error:  # our configuration, not the caller's field
            raise Unavailable(f"mailbox: {error}") from error
        return self._view

    async def switch(self, command: pb.Switch) -> dict[str, int]:
        """End the streams of every older version; returning acks (``Publications.switch``)."""
        key, to = convert.key_from(command.key), convert.version_from(command.to)
        self.admissions.forget(key)
        why = _ENDS.get(command.kind)
        if why is None:
            if command.kind in _HOLDS:  # authority stays, the engine stops or goes on
                self._spawn(self.core.pause(key, paused=command.kind == "pause"))
            self.inputs.changed(key)
            return {}
        published = self.publications.switch(key, to, why)
        self.measures.acked.acked(key, to)
        self.inputs.changed(key)
        return published

    async def fence(self, command: pb.Fence) -> pb.Fenced:
        """Stop the engine's old work of the scope; its receipts."""
        key, to = convert.key_from(command.key), convert.version_from(command.to)
        contract = convert.contract_from(command.contract)
        started = time.perf_counter()
        if command.terminal:
            self.late.forget(key)
        else:
            self.late.expect(key, to)
        answer = await self.core.fence(key, to, contract=contract, terminal=command.terminal)
        fenced = pb.Fenced(
            participants=[self._participant(part) for part in answer["participants"]],
            requests=[pb.RetiredRequest(**request) for request in answer["requests"]],
            residual_ms=answer["residual_ms"],
            branch=answer["branch"] or "",
            predicted_ms=answer["predicted_ms"],
            pinned_blocks=answer["pinned_blocks"],
            quota_left=answer["quota_left"],
            tier=_tier(answer),
            host_refused=answer["host"]["refused"] or "",
            ms=(time.perf_counter() - started) * 1e3,
        )
        self.late.fenced(key, fenced)
        if self.core.tracer.on:
            tracing.quiesced(self.core.tracer, command, fenced, self.node)
        self.measures.fenced(answer["residual_ms"], contract.fence_bound_ms)
        return fenced

    async def inspect(self, command: pb.Inspect) -> pb.InspectReply:
        """Live requests and pins of the scope in this engine."""
        answer = await self.core.inspect(convert.key_from(command.key))
        return pb.InspectReply(
            requests=[_live(request) for request in answer["requests"]],
            pinned_blocks=answer["pinned_blocks"],
        )

    async def warm(self, command: pb.Warm) -> pb.WarmDone:
        """Compute the KV of a context under the scope's current version."""
        context = Context(
            convert.key_from(command.key),
            convert.version_from(command.version),
            command.request_json,
            command.traceparent,
        )
        warmed = await self.warming.warm(context)
        return pb.WarmDone(prompt_tokens=warmed.prompt_tokens, cached_tokens=warmed.cached_tokens)

    def foresee(self, key: ScopeKey, request: Mapping[str, Any]) -> None:
        """A SUPERSEDE is about to commit: how much its request shares with what runs here."""
        self.mailbox()
        assert self._overlaps is not None
        overlap.tell(self._overlaps, self.publications.live(key), key, request)

    def quota(self, command: pb.Quota) -> None:
        """Pass a tenant's pin quota on to the engine."""
        blocks = command.blocks if command.HasField("blocks") else None
        self._spawn(self.core.quota(command.tenant, blocks))

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            gate=self.gate,
            pid=os.getpid(),
            engine_boot_id=self._engine["boot_id"],
            vllm_version=self._engine["vllm_version"],
            model=self._engine["model"],
            fingerprint=self._engine["fingerprint"],
            block_size=self._engine["block_size"],
            num_blocks=self._engine["num_blocks"],
            scopes=[convert.key_to(key) for key in self.publications.scopes()],
        )

    def _welcomed(self, welcome: pb.Welcome) -> None:
        self.node = welcome.node
        self._attached = True
        _log.info("attached to the sidecar", extra=fields(node=welcome.node, gate=self.gate))

    async def _stay_attached(self) -> None:
        while True:
            try:
                await self.client().attach(self._hello, self, on_welcome=self._welcomed)
            except RetireError as error:
                _log.warning("the sidecar refused this process: %s", error)
            finally:
                self._attached = False
            await asyncio.sleep(RETRY_S)

    async def _tick(self) -> None:
        refreshed = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            if not self._attached:
                continue
            try:
                await self._show_pins(await self.core.tick())
            except Exception:
                _log.exception("retire_tick failed; pin leases end with the next step instead")
            if time.monotonic() - refreshed >= REFRESH_S:
                refreshed = time.monotonic()
                await self.admissions.refresh(self.publications.scopes())

    async def _show_pins(self, pinned_blocks: int) -> None:
        """Nothing is asked for while nothing is kept: the idle engine is left alone."""
        if pinned_blocks or self.measures.holds or not self.measures.shown:
            self.measures.pins(await self.core.pins())

    def _record(self, tag: Tag, request_id: str, index: int) -> None:
        now_ns = time.monotonic_ns()
        self._history.write(
            Published(
                now_ns, tag.key, tag.version, request_id, self.gate, index, tag.authority.generation
            )
        )

    async def _report_late(self, receipt: Receipt) -> None:
        text = json.dumps(receipt_to_dict(receipt))
        await self.client().report(
            receipt.key, receipt.to_version, receipt_json=text, idempotency_key=""
        )

    def _participant(self, part: dict[str, Any]) -> pb.Participant:
        return pb.Participant(node=self.node, boot_id=self._engine["boot_id"], **part)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            if (error := task.exception()) is not None:
                _log.error("a task of the link failed", exc_info=error)


def _live(request: dict[str, Any]) -> pb.LiveRequest:
    return pb.LiveRequest(
        request_id=request["request_id"],
        state=request["state"],
        prompt_tokens=request["prompt_tokens"],
        output_tokens=request["output_tokens"],
    )


def _tier(fenced: dict[str, Any]) -> str:
    """Where the engine keeps what a FENCE left; empty: it keeps nothing."""
    if not fenced["pinned_blocks"]:
        return ""
    return (Tier.DRAM if fenced["host"]["bytes"] else Tier.HBM).value

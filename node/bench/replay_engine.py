"""vLLM's AsyncLLM with our plugin, a real sidecar and a real registry: the arms of a replay.

Why not over HTTP: there, a native client aborts by hanging up and by construction reads no more.
An agent runtime that embeds the engine calls ``AsyncLLM.abort`` while its consumers go on reading;
that is where late tokens of native vLLM are seen, and where our normative gate sits (G5). So the
consumers here are the tasks that read ``AsyncLLM.generate``, the same code in all arms, each
handing on an item in ``PACE_S``. The engine is a process of its own, as in a server.

The native arms' requests are untagged: gates, scheduler and runner pass them through.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.control import ready, sidecar
from retire.engine.core_calls import CoreCalls
from retire.engine.handoff import Admitted, Handoff, Order
from retire.engine.headers import Claim
from retire.engine.link import SidecarLink
from retire.engine.publication import CURRENT
from retire.engine.settings import Settings
from retire.engine.tag import Tag, slot_ref
from retire.protocol.errors import Unavailable
from retire.protocol.versions import Authority, ScopeKey
from retire.registry.embedded import EmbeddedServer
from retire.sidecar import convert
from retire.sidecar.client import Mutation, NodeClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from retire.engine.publication import Publication

RETRIES: Final = 5
RETRY_S: Final = 0.2
CLEANUP_S: Final = 20.0  # after a round; the paper waits for 180
PACE_S: Final = 0.02  # what a consumer does with one item: a frame to a browser, a parser


@dataclass(slots=True, eq=False)
class Execution:
    """One version of a turn, as its consumer and its agent saw it; times are monotonic seconds."""

    name: str
    prompt: Sequence[int]
    out: int
    began_s: float = 0.0
    delivered: list[tuple[float, int]] = field(default_factory=list)  # when, how many tokens
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    revised_s: float | None = None  # its revision was called for
    committed_s: float | None = None  # ... decided in the registry (not natively)
    acked_s: float | None = None  # ... and acknowledged: SUPERSEDE, or abort has returned
    closed_s: float | None = None  # the engine holds nothing of it any more
    ended_s: float | None = None  # its consumer read its end
    state: str = ""  # when it was revised
    publication: Publication | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    key: ScopeKey | None = None
    tag: Tag | None = None

    @property
    def late(self) -> int:
        """Tokens delivered after the acknowledgement."""
        if self.acked_s is None:
            return 0
        return sum(count for at_s, count in self.delivered if at_s > self.acked_s)

    def now_state(self) -> str:
        """queued or prefill | decode | finished, as far as the consumer knows."""
        if self.ended_s is not None:
            return "finished"
        return "decode" if self.tokens else "before first token"


class Engine:
    """AsyncLLM and what it is attached to; made by :func:`engine`."""

    def __init__(self, llm: Any, link: SidecarLink) -> None:
        self.llm = llm
        self.link = link
        self.tasks: set[asyncio.Task[None]] = set()

    def read(self, run: Execution, *, salt: str | None = None, fresh: bool = False) -> None:
        """Start the request and its consumer."""
        run.began_s = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._read(run, salt, fresh))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _read(self, run: Execution, salt: str | None, fresh: bool) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        CURRENT.set(run.publication)
        prompt: dict[str, Any] = {"prompt_token_ids": list(run.prompt)}
        if salt is not None:
            prompt["cache_salt"] = salt
        params = SamplingParams(
            temperature=0.0, max_tokens=run.out, ignore_eos=True, logprobs=1, detokenize=False,
            output_kind=RequestOutputKind.DELTA, skip_reading_prefix_cache=fresh or None,
        )  # fmt: skip
        try:
            async for output in self.llm.generate(prompt, params, run.name):
                self._take(run, output.outputs[0])
                await asyncio.sleep(PACE_S)
        finally:
            run.ended_s = time.monotonic()
            run.over.set()
            if run.publication is not None:
                run.publication.discard()

    @staticmethod
    def _take(run: Execution, completion: Any) -> None:
        tokens = list(completion.token_ids)
        if not tokens:
            return
        run.delivered.append((time.monotonic(), len(tokens)))
        run.tokens += tokens
        rows = completion.logprobs or []
        run.logprobs += [row[t].logprob for row, t in zip(rows, tokens, strict=False)]

    async def whole(self, run: Execution, *, salt: str) -> Execution:
        """One untagged request that reads no cache, to its end: a clean run."""
        self.read(run, salt=salt, fresh=True)
        await run.over.wait()
        return run

    async def use(self, quantum: int) -> None:
        """At most so many tokens in a step from now on; 0: as the engine was configured."""
        await self.llm.engine_core.call_utility_async("bench_quantum", quantum)

    async def settle(self) -> None:
        """Until every consumer is done and the engine is empty; then an empty cache."""
        for task in tuple(self.tasks):
            await asyncio.wait([task], timeout=30)
        await self.answered()
        await self.llm.reset_prefix_cache()

    async def answered(self) -> None:
        """A round trip behind everything sent before: aborts have been processed."""
        await self.llm.engine_core.call_utility_async("is_sleeping")


class Native:
    """Abort, then resend at once; prefix caching is on."""

    name = "native abort + resend, prefix caching"

    def __init__(self, engine: Engine, salt: str, quantum: int = 0) -> None:
        self.engine, self.salt, self.quantum = engine, salt, quantum
        self.name = f"{type(self).name}, {quantum} a step" if quantum else type(self).name

    async def begin(self, run: Execution, scope: str) -> None:
        """The turn's first version."""
        del scope
        self.engine.read(run, salt=self.salt)

    async def revise(self, old: Execution, new: Execution) -> None:
        """The next one: returns when it is in the engine."""
        old.state, old.revised_s = old.now_state(), time.monotonic()
        await self.engine.llm.abort(old.name)
        old.acked_s = time.monotonic()
        self.engine.read(new, salt=self.salt)
        self.engine.link._spawn(self._closed(old))

    async def finish(self, one: Sequence[Execution]) -> None:
        """Nothing to clean up: aborts were obeyed."""

    async def _closed(self, old: Execution) -> None:
        await self.engine.answered()
        old.closed_s = time.monotonic()


class Resend(Native):
    """Resend without abort: the old version runs to its end, as where nobody cancels."""

    name = "native resend without abort, prefix caching"

    async def revise(self, old: Execution, new: Execution) -> None:
        """The next one, beside the old one."""
        old.state, old.revised_s = old.now_state(), time.monotonic()
        old.acked_s = old.revised_s
        self.engine.read(new, salt=self.salt)

    async def finish(self, one: Sequence[Execution]) -> None:
        """Wait for what is obsolete, at most ``CLEANUP_S``; then abort it."""
        old = [run for run in one if run.revised_s is not None]
        ends = [run.over.wait() for run in old if run.ended_s is None]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*ends), CLEANUP_S)
        await self.engine.llm.abort([run.name for run in old if run.ended_s is None])
        for run in old:
            await run.over.wait()
            run.closed_s = run.ended_s


class Retire:
    """SUPERSEDE, through the real sidecar and registry."""

    name = "Retire"
    quantum = 0  # the engine's own policy

    def __init__(self, engine: Engine, tenant: str) -> None:
        self.engine, self.tenant, self.link = engine, tenant, engine.link

    async def begin(self, run: Execution, scope: str) -> None:
        """The turn's first version: the scope's current one."""
        run.key = ScopeKey(self.tenant, scope)
        claim = Claim(run.key, None)
        self._bind(run, await _retried(lambda: self.link.admissions.admit(claim)))
        self.engine.read(run)

    def _bind(self, run: Execution, tag: Tag) -> None:
        run.tag = tag
        run.publication = self.link.publications.open()
        run.publication.streaming = True
        run.publication.body = lambda: _body(run)
        run.publication.bind(tag, self.link.mailbox())

    async def revise(self, old: Execution, new: Execution) -> None:
        """The next one: returns with the receipt (``routes.supersede`` is the same over HTTP)."""
        assert old.key is not None and old.tag is not None
        old.state, old.revised_s = old.now_state(), time.monotonic()
        new.key = old.key
        order = Order(old.key, Mutation(old.tag.version, uuid.uuid4().hex))
        self.link.foresee(old.key, {"model": "", "prompt": list(new.prompt)})
        handoff, committed = await _retried(lambda: self._commit(order, old))
        version = convert.version_from(committed.to)
        authority = Authority(old.key, version, committed.generation)
        tag = Tag(authority, slot_ref(committed.slot))
        self.link.admissions.keep(tag)
        self._bind(new, tag)
        self.engine.read(new)
        assert new.publication is not None
        await new.publication.admitted.wait()
        handoff.decide(Admitted(new.publication.engine_request_id))
        await asyncio.shield(handoff.receipt)

    async def finish(self, one: Sequence[Execution]) -> None:
        """Nothing to clean up: every transition ends by itself."""

    async def _commit(self, order: Order, old: Execution) -> tuple[Handoff, Any]:
        handoff = Handoff(order, client=self.link.client(), core=self.link.core)
        # The moment of each event itself, however late this task gets to see it.
        handoff.committed.add_done_callback(lambda done: _stamp(old, "committed_s", done))
        handoff._unpublishable.add_done_callback(lambda done: _stamp(old, "acked_s", done))
        handoff._fenced.add_done_callback(lambda done: _stamp(old, "closed_s", done))
        self.link.publications.spawn(handoff.run())
        return handoff, await asyncio.shield(handoff.committed)


async def _retried(call: Callable[[], Awaitable[Any]]) -> Any:
    """As a client does when it is told 503: again, with the same idempotency key."""
    for _ in range(RETRIES):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(RETRY_S)
    return await call()


def _stamp(run: Execution, which: str, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and done.exception() is None:
        setattr(run, which, time.monotonic())


def _body(run: Execution) -> bytes:
    import json

    return json.dumps({"model": "", "prompt": list(run.prompt)}).encode()


@contextlib.asynccontextmanager
async def engine(
    model: str, folder: Path, *, cuda: bool, kv_gib: int = 32
) -> AsyncIterator[Engine]:
    """Registry, sidecar, EngineCore process, gates; all ended with the block.

    ``kv_gib``: memory of a GPU's KV cache.
    """
    with (
        EmbeddedServer(folder / "registry") as server,
        sidecar(folder, server.url) as socket,
    ):
        target = f"unix:{socket}"
        async with NodeClient(target) as client:
            await _lease_held(client)
        os.environ.update(_environment(folder))
        llm = _llm(model, cuda, kv_gib)
        try:
            link = SidecarLink(Settings(sidecar=target), CoreCalls(llm))
            try:
                await link.start()
                await ready(link.client(), 1)
                yield Engine(llm, link)
            finally:
                await link.stop()
        finally:
            llm.shutdown()


async def _lease_held(client: NodeClient) -> None:
    """Until the node has its lease, and so its mailbox; it is ready once a gate is attached."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Exception):  # it is not listening yet
                status = await client.status()
                if status.lease_left_ms > 0:
                    return
            await asyncio.sleep(0.05)


def _environment(folder: Path) -> dict[str, str]:
    return {
        "RETIRE_MAILBOX": str(folder / "run" / "mailbox"),
        "VLLM_PLUGINS": "retire",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }


def _llm(model: str, cuda: bool, kv_gib: int) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from bench.replay_quantum import scheduler_cls
    from bench.tiny_models import tiny_model

    common: dict[str, Any] = {
        "model": model if "/" in model else str(tiny_model(model)),
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "seed": 0,
        "scheduler_cls": scheduler_cls(asynchronous=cuda),
    }
    if cuda:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # this process asked for CUDA
        size = {
            "dtype": "bfloat16", "load_format": "dummy", "max_model_len": 16384,
            "max_num_batched_tokens": 8192, "max_num_seqs": 64, "async_scheduling": True,
            "gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": kv_gib * 2**30,
            "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]},
        }  # fmt: skip
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**common, **size))
    size = {
        "dtype": "float32", "max_model_len": 4096, "max_num_batched_tokens": 512,
        "max_num_seqs": 16, "block_size": 32, "enforce_eager": True,
    }  # fmt: skip
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**common, **size))

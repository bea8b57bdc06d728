"""A real vLLM engine in this process, stepped by hand, with a real mailbox in place of a sidecar.

For tests and CPU benchmarks that must put an event at an exact step (queued, mid-prefill, ...).
No sidecar, registry or HTTP: the lab writes the mailbox itself, as the sidecar would.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_PLUGINS="",  # the lab opens the seams that it wants
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # n-gram drafts: its pool sets torch's threads too
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from bench.tiny_models import VOCABULARY, tiny_model
from retire.engine.seams.pages import pages_of
from retire.engine.tag import EXTRA_ARG, Tag
from retire.mailbox import MailboxWriter
from retire.protocol.versions import Authority, ScopeKey, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FIRST: Final = Version(1, 0)
_HOUR_NS: Final = 3600 * 10**9
_PATIENCE_S: Final = 20.0


@dataclass(slots=True)
class Stream:
    """What one request has produced, as its consumer would see it."""

    request_id: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    choices: dict[int, list[int]] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_reason: Any = None
    cached_tokens: int | None = None


class Lab:
    """One engine and its mailbox. ``close()`` ends both.

    ``model``: the name of a tiny model, or a path. ``quantum``: tokens a scoped prefill may compute
    in one step. Other arguments go to vLLM's ``EngineArgs``.
    """

    def __init__(self, model: str = "qwen3-tiny", *, quantum: int = 64, **engine_args: Any) -> None:
        self.dir = tempfile.TemporaryDirectory(prefix="retire-lab-")
        path = str(Path(self.dir.name) / "mailbox")
        os.environ["RETIRE_MAILBOX"] = path
        os.environ["RETIRE_QUANTUM_TOKENS"] = str(quantum)
        self.mailbox = MailboxWriter.create(path, capacity=1024)
        self.mailbox.renew(time.monotonic_ns() + _HOUR_NS)
        self.engine = _engine(model, engine_args)
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.streams: dict[str, Stream] = {}
        self.versions: dict[ScopeKey, Version] = {}
        self.key = ScopeKey("acme", "plan")  # the scope that a test plays with
        self.baseline = self.scheduler.kv.free_blocks
        self._hoard: list[Any] = []
        self.in_flight: Any = None  # vLLM's SchedulerOutput of the newest step
        self._watch_steps()
        self._open_workers()

    # --- scopes, as a sidecar keeps them --------------------------------------------------------

    def tag(self, key: ScopeKey, *, inherit: bool = True) -> Tag:
        """A tag at the scope's current version; opens the scope when it is new."""
        version = self.versions.setdefault(key, FIRST)
        slot = self.mailbox.open(key, version, generation=1)
        return Tag(Authority(key, version, 1), slot, inherit)

    def advance(self, key: ScopeKey) -> Version:
        """ADVANCE alone: the mailbox word of the scope changes."""
        version = self.versions[key].next_epoch()
        slot = self.mailbox.find(key)
        assert slot is not None
        self.mailbox.advance(slot.index, version)
        self.versions[key] = version
        return version

    def fence(
        self, key: ScopeKey, contract: dict[str, Any] | None = None, *, terminal: bool = False
    ) -> Any:
        """FENCE as the link asks for it; a Future when a step is still in flight."""
        version = self.versions[key]
        return self.core.retire_fence(
            key.tenant, key.scope, version.term, version.epoch, contract, terminal
        )

    def certificate(self, key: ScopeKey) -> dict[str, Any]:
        """What ALIGN decided for the request of the current version that waits to run."""
        version = self.versions[key]
        return self.core.retire_expect(key.tenant, key.scope, version.term, version.epoch)

    # --- requests -------------------------------------------------------------------------------

    def submit(
        self, request_id: str, prompt: Sequence[int], tag: Tag | None = None, **sampling: Any
    ) -> Stream:
        """Add a request; greedy, with logprobs, unless ``sampling`` says otherwise."""
        from vllm import SamplingParams

        defaults = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, "logprobs": 1}
        extra = {EXTRA_ARG: tag.to_wire()} if tag is not None else None
        params = SamplingParams(**{**defaults, **sampling}, detokenize=False, extra_args=extra)
        prompt_dict: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        prompt_dict["cache_salt"] = f"retire:{tag.key.tenant}:std" if tag is not None else "plain"
        self.streams[request_id] = Stream(request_id)
        self.engine.add_request(request_id, prompt_dict, params)
        return self.streams[request_id]

    def internal_id(self, request_id: str) -> str:
        """vLLM's own id: the caller's with a suffix."""
        inheritance = self.scheduler.inheritance
        live = [*self.scheduler.requests, *reversed(inheritance._outcomes)]
        return next((i for i in live if i.startswith(request_id)), request_id)

    def _open_workers(self) -> None:
        """The runner is in this process: its steps are counted, its mailbox is this lab's."""
        self._forwards = _count_forwards(self._runner)
        _attach(self._runner)

    def _watch_steps(self) -> None:
        stock = self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            self.in_flight = stock(*args, **kwargs)
            return self.in_flight

        self.scheduler.schedule = schedule

    def drafts(self, request_id: str) -> list[int]:
        """Draft tokens of a request in the newest step: being verified while that runs."""
        drafts = self.in_flight.scheduled_spec_decode_tokens
        return list(drafts.get(self.internal_id(request_id), ()))

    def step(self) -> None:
        """One engine step; outputs go to their streams."""
        for output in self.engine.step():
            _collect(self.streams[output.request_id], output)

    def run(self, until: Callable[[], bool] | None = None, *, steps: int = 5000) -> None:
        """Step until ``until`` holds (None: until nothing is left).

        An idle step takes no time, and a transfer that it waits for does: both must run out.
        """
        ends_s = time.monotonic() + _PATIENCE_S
        while steps > 0 or time.monotonic() < ends_s:
            steps -= 1
            if until is not None and until():
                return
            if not self.engine.has_unfinished_requests() and not self.scheduler.has_requests():
                if until is None or until():
                    return
                raise AssertionError("the engine is idle and the condition does not hold")
            self.step()
        raise AssertionError(f"still running after {_PATIENCE_S:.0f} s")

    def request(self, request_id: str) -> Any:
        """vLLM's Request while it is in the scheduler, else None."""
        for internal, request in self.scheduler.requests.items():
            if internal.startswith(request_id):
                return request
        return None

    def clean(self) -> None:
        """Back to an empty cache, as after start."""
        self.run()
        self.scheduler.inheritance.forget_all()
        assert self.scheduler.reset_prefix_cache()

    # --- faults and observations ----------------------------------------------------------------

    @contextlib.contextmanager
    def during_step(self, event: Callable[[], Any]) -> Iterator[None]:
        """Run ``event`` after the model has computed the next step, before its output is taken."""
        execute = self.core.model_executor.sample_tokens

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            result = execute(*args, **kwargs)
            event()
            return result

        self.core.model_executor.sample_tokens = sample_tokens
        try:
            yield
        finally:
            del self.core.model_executor.sample_tokens

    @contextlib.contextmanager
    def before_forward(self, event: Callable[[], Any]) -> Iterator[None]:
        """Run ``event`` when the next step has been scheduled and is about to be launched."""
        execute = self.core.model_executor.execute_model

        def execute_model(*args: Any, **kwargs: Any) -> Any:
            event()
            return execute(*args, **kwargs)

        self.core.model_executor.execute_model = execute_model
        try:
            yield
        finally:
            del self.core.model_executor.execute_model

    @contextlib.contextmanager
    def during_forward(self, event: Callable[[], Any]) -> Iterator[None]:
        """Run ``event`` in the next step's forward pass, once its launch was allowed."""
        hook = self._runner.model.register_forward_pre_hook(lambda *args: event() and None)
        try:
            yield
        finally:
            hook.remove()

    @contextlib.contextmanager
    def at_layer(self, number: int, event: Callable[[], Any]) -> Iterator[None]:
        """Run ``event`` once, when the next step has computed ``number`` layers (eager mode)."""
        pending = [event]

        def hook(*args: Any) -> None:
            if pending:
                pending.pop()()

        handle = self._runner.model.model.layers[number - 1].register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    @property
    def _runner(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner

    @property
    def model(self) -> Any:
        """The model of the worker in this process."""
        return self._runner.model

    @property
    def launched_steps(self) -> int:
        """Forward passes of the model so far."""
        return self._forwards[0]

    def _pages(self, block_id: int) -> Iterator[Any]:
        return pages_of(self._runner.kv_caches, block_id, self.scheduler.kv.total_blocks + 1)

    def overwrite_blocks(self, block_ids: Iterable[int]) -> dict[int, list[Any]]:
        """Fill pages with noise; returns what they held."""
        saved: dict[int, list[Any]] = {}
        for block_id in block_ids:
            pages = list(self._pages(block_id))
            saved[block_id] = [page.clone() for page in pages]
            for page in pages:
                page.uniform_(-1.0, 1.0)
        return saved

    def restore_blocks(self, block_ids: Iterable[int], saved: dict[int, list[Any]]) -> None:
        """Put back what :meth:`overwrite_blocks` returned."""
        for block_id in block_ids:
            for page, old in zip(self._pages(block_id), saved[block_id], strict=True):
                page.copy_(old)

    def limit_free_blocks(self, count: int | None) -> None:
        """Leave only ``count`` blocks free by holding the others (None: give them back)."""
        pool = self.scheduler.kv_cache_manager.block_pool
        if count is None:
            pool.free_blocks(self._hoard)
            self._hoard = []
        else:
            self._hoard = pool.get_new_blocks(pool.get_num_free_blocks() - count)

    def page_digests(self, request_id: str, *, tokens: int) -> list[str]:
        """Digest of every page behind a live request's first ``tokens`` tokens."""
        import torch

        chain = self.scheduler.kv.chain(self.internal_id(request_id), tokens)
        return [
            hashlib.sha256(page.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()
            for group in chain.block_ids()
            for block_id in group
            for page in self._pages(block_id)
        ]

    def settled(self) -> list[str]:
        """What has not come back to its baseline: empty when everything has."""
        faults = list(self.scheduler.inheritance.audit())
        if self.scheduler.kv.free_blocks != self.baseline:
            faults.append(f"{self.baseline - self.scheduler.kv.free_blocks} blocks not freed")
        if self.scheduler.inheritance.ledger.pins:
            faults.append(f"pins left: {list(self.scheduler.inheritance.ledger.pins)}")
        if self.scheduler.requests or self.scheduler.tags:
            faults.append(f"requests left: {list(self.scheduler.requests)}")
        return faults

    def close(self) -> None:
        """End the engine and unmap the mailbox."""
        self.core.shutdown()
        self.mailbox.detach()
        self.dir.cleanup()


def _attach(model_runner: Any) -> None:
    """Bind a runner to the mailbox of its own lab, before another lab is made."""
    from retire.engine.seams import runner

    assert runner.points_of(model_runner).mailbox


def prompt_tokens(count: int, seed: int) -> list[int]:
    """Seeded random prompt without special tokens."""
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY - 10) for _ in range(count)]


@cache
def _open_seams() -> None:
    """Once in a process, however many labs it makes."""
    from retire.engine.seams import compat, core, runner, scheduler

    compat.probe()
    for seam in (scheduler, core, runner):
        seam.install()


def _engine(model: str, engine_args: dict[str, Any]) -> Any:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    _open_seams()
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 2048,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 16,
        "block_size": 32,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "seed": 0,
        "disable_log_stats": True,
    }
    path = model if "/" in model else str(tiny_model(model))
    args = EngineArgs(model=path, **{**defaults, **engine_args})
    return LLMEngine.from_engine_args(args)


def _count_forwards(runner: Any) -> list[int]:
    count = [0]
    runner.model.register_forward_pre_hook(
        lambda *args: count.__setitem__(0, count[0] + 1), with_kwargs=False
    )
    return count


def _collect(stream: Stream, output: Any) -> None:
    stream.cached_tokens = output.num_cached_tokens
    for completion in output.outputs:
        stream.choices[completion.index] = list(completion.token_ids)
        if completion.index == 0:
            stream.tokens = list(completion.token_ids)
            stream.logprobs = [
                logprobs[token].logprob
                for token, logprobs in zip(
                    completion.token_ids, completion.logprobs or [], strict=False
                )
            ]
        stream.finish_reason = completion.finish_reason
        stream.stop_reason = completion.stop_reason

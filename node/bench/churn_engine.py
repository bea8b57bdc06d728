"""One engine, four ways to come back to a context after others have churned through its cache.

Owns a trial: a predecessor that decodes, the switch without a successor, unique prompts of another
tenant worth a part of the KV capacity, then the successor. All arms run in one engine; the native
arms are untagged requests (no scope is live: the scheduler is vLLM's own, which a trial asserts).
On a CPU the clock is this process's CPU time, wall times beside it (``dominance_engine`` says why);
what the DRAM tier's copying thread computes counts in full.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bench.dominance_engine import on_cuda

if TYPE_CHECKING:
    from bench.lab import Stream

FIRST_TOKENS: Final = 6  # of the successor, compared with a clean run's
TTL_S: Final = 900.0
OFFLOAD_WAIT_S: Final = 60.0
IDLE_STEP_S: Final = 0.0002


class Arm(Enum):
    """What becomes of the predecessor's state."""

    COLD = "native abort + cold"
    PREFIX = "native abort + prefix caching"
    HBM = "Retire, kept in HBM"
    DRAM = "Retire, kept in DRAM"

    @property
    def native(self) -> bool:
        """Whether it is vLLM without a scope."""
        return self in (Arm.COLD, Arm.PREFIX)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in tokens."""

    predecessor: int
    common: int
    suffix: int
    capacity: int
    churn: int  # of one unique prompt
    quantum: int
    block: int


@dataclass(frozen=True, slots=True)
class Trial:
    """What one hand-over came to; times in ms by the subject's clock."""

    recovery_ms: float  # from the end of the churn to the successor's first token
    interval_ms: float  # from the switch to it
    recovery_wall_ms: float
    kept: int  # tokens of the successor's prompt that were not computed again
    tokens: tuple[int, ...]
    late: int  # tokens of the old version after the switch
    churned: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]  # others: tokens and logprobs
    from_host: bool = False  # no block was pinned when the successor came: DRAM held it all
    faults: tuple[str, ...] = ()


class Subject:
    """The engine and its prompts; ``close()`` ends it."""

    def __init__(self, model: str, shape: Shape) -> None:
        from bench.exactness_weights import sharpen
        from bench.lab import Lab

        self.shape = shape
        self.on_device = on_cuda()
        self.clock = time.perf_counter if self.on_device else time.process_time
        self.lab: Lab = Lab(model, quantum=shape.quantum, **_engine_args(shape, self.on_device))
        sharpen(self.lab)
        self.lab.scheduler.scheduler_config.long_prefill_token_threshold = shape.quantum
        self.old = _tokens(shape.predecessor, "old")
        self.new = self.old[: shape.common] + _tokens(shape.suffix, "new")
        self.capacity = self.lab.scheduler.kv.total_blocks * self.lab.scheduler.kv.boundary
        self._number = 0

    def close(self) -> None:
        """End the engine."""
        self.lab.close()

    def without_dram(self) -> str | None:
        """Why this engine has no DRAM tier; None: it has one. Asks the engine."""
        from retire.protocol.contract import Tier

        host = self.lab.core.retire_inspect(None, None).get("host")
        if not hasattr(Tier, "DRAM") or host is None:
            return "this version knows no tier but HBM"
        return host["off"]

    def clean_run(self) -> tuple[int, ...]:
        """The successor's first tokens without anything before it."""
        self.lab.clean()
        stream = self._submit("clean", self.new, None, max_tokens=FIRST_TOKENS)
        self.lab.run()
        return tuple(stream.tokens)

    # --- one trial ------------------------------------------------------------------------------

    def trial(self, arm: Arm, pressure: float, seed: int) -> Trial:
        """One hand-over; ``pressure``: churn over capacity, 0 for an immediate successor."""
        self._begin()
        tag = None if arm.native else self.lab.tag(self.lab.key)
        old = self._submit("old", self.old, tag, max_tokens=64)
        self.lab.run(lambda: len(old.tokens) >= 2)
        published, switched = len(old.tokens), self._now()
        self._switch(arm)
        churned = self._churn(pressure, seed)
        if arm is Arm.DRAM:
            self._until_at_rest()
        pinned = self.lab.scheduler.inheritance.ledger.total()
        begun = self._now()
        cold = {"skip_reading_prefix_cache": True} if arm is Arm.COLD else {}
        new_tag = None if arm.native else self.lab.tag(self.lab.key)
        new = self._submit("new", self.new, new_tag, max_tokens=FIRST_TOKENS, **cold)
        self._run_to_first(new)
        ended = self._now()
        self.lab.run()
        return Trial(
            recovery_ms=(ended[0] - begun[0]) * 1e3,
            interval_ms=(ended[0] - switched[0]) * 1e3,
            recovery_wall_ms=(ended[1] - begun[1]) * 1e3,
            kept=new.cached_tokens or 0,
            tokens=tuple(new.tokens),
            late=len(old.tokens) - published,
            churned=tuple((tuple(one.tokens), tuple(one.logprobs)) for one in churned),
            from_host=arm is Arm.DRAM and pinned == 0,
            faults=self._settled(),
        )

    def _begin(self) -> None:
        self.lab.clean()
        self._number += 1
        self.lab.key = type(self.lab.key)("acme", f"plan-{self._number}")

    def _switch(self, arm: Arm) -> None:
        """The old plan is over, and nothing follows it yet."""
        if arm.native:
            self.lab.engine.abort_request([f"old{self._number}"])
            scheduler = self.lab.scheduler
            assert not scheduler.tags and not scheduler.inheritance.active, "not the native path"
            return
        self.lab.advance(self.lab.key)
        contract = {"tier": "dram" if arm is Arm.DRAM else "hbm", "ttl_s": TTL_S}
        reply = self.lab.fence(self.lab.key, contract)
        while not isinstance(reply, dict) and not reply.done():
            self.lab.step()

    def _churn(self, pressure: float, seed: int) -> list[Stream]:
        """Unique prompts of another tenant, all at once; returns when they have ended."""
        left, streams = round(pressure * self.capacity), []
        while left >= self.shape.block:
            size = min(self.shape.churn, left)
            prompt = _tokens(size, f"churn-{seed}-{len(streams)}")
            name = f"churn{len(streams)}x"
            streams.append(self._submit(name, prompt, None, max_tokens=1))
            left -= size
        self.lab.run(lambda: all(stream.finish_reason is not None for stream in streams))
        return streams

    def _run_to_first(self, stream: Stream) -> None:
        """Steps; an engine that only waits for a transfer sleeps, so that it takes no CPU time."""
        while not stream.tokens:
            self.lab.step()
            if not self.lab.in_flight.total_num_scheduled_tokens:
                time.sleep(IDLE_STEP_S)

    def _until_at_rest(self) -> None:
        """The old blocks are given back: what is kept is in host memory alone."""
        ends_s = time.monotonic() + OFFLOAD_WAIT_S
        while self.lab.scheduler.inheritance.ledger.total():
            assert time.monotonic() < ends_s, "the offload did not end"
            self.lab.core.retire_tick()
            time.sleep(0.001)

    def _settled(self) -> tuple[str, ...]:
        """What a trial leaves behind: nothing, once its scope is forgotten."""
        self.lab.clean()
        return tuple(self.lab.settled())

    def _submit(self, name: str, prompt: list[int], tag: Any, **sampling: Any) -> Stream:
        return self.lab.submit(f"{name}{self._number}", prompt, tag, **sampling)

    def _now(self) -> tuple[float, float]:
        return self.clock(), time.perf_counter()


def _engine_args(shape: Shape, cuda: bool) -> dict[str, Any]:
    blocks = shape.capacity // shape.block + 1  # one is vLLM's null block
    common = {
        "block_size": shape.block,
        "max_num_batched_tokens": shape.quantum,
        "max_model_len": shape.predecessor + shape.suffix,
        "max_num_seqs": 4,
        "num_gpu_blocks_override": blocks,
    }
    if not cuda:
        return common
    return {
        **common,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "enforce_eager": False,
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
        "gpu_memory_utilization": 0.1,  # the capacity is set: nothing is sized by what is free
        "kv_cache_memory_bytes": 6 * 2**30,
    }


def _tokens(count: int, seed: str) -> list[int]:
    draw = random.Random(f"churn-{seed}")
    return [draw.randrange(10, 2000) for _ in range(count)]

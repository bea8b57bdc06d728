"""One engine, two ways of abandoning a plan in the middle of a step: the scenes of Table 10.

Owns what runs when the plan is abandoned, and the clocks. A scene is a path of the paper:

- long prefill: the plan's prompt, one unit a step; also with two KV groups
- draft-verify prefill: the same in an engine that speculates with n-grams
- speculative decode: the step verifies drafts of one request of the scope and computes a unit of
  the prompt of another (a sub-agent's); the drafts are seen in the step, never assumed
- decode: drafts are verified and nothing else runs. A step without a long prefill has no safe
  points: it is short, and both arms wait for its end.

The native arms are untagged requests, for which every seam passes through.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab, Stream

OVERLAP: Final = 0.9  # of the successor's context with its predecessor's
DRAFTS: Final = 3  # n-gram draft tokens a step, as in the paper
KV_GIB_ENV: Final = "RETIRE_BENCH_KV_GIB"  # size of the KV cache on a GPU that engines share
SPOKEN: Final = 64  # tokens of the prompt of the request that decodes
# The decoding request may only say three tokens, so that its past holds what comes next.
SAYS: Final[dict[str, Any]] = {"allowed_token_ids": [11, 12, 13]}
NGRAM: Final = {
    "method": "ngram",
    "num_speculative_tokens": DRAFTS,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


class Path(Enum):
    """Where the plan is when it is abandoned."""

    LONG_PREFILL = "long_prefill"
    DRAFT_VERIFY = "draft_verify"
    SPEC_DECODE = "spec_decode"
    DECODE = "decode"
    TWO_GROUPS = "two_groups"

    @property
    def speculates(self) -> bool:
        """Whether the engine proposes drafts."""
        return self in (Path.DRAFT_VERIFY, Path.SPEC_DECODE, Path.DECODE)


class Arm(Enum):
    """How a plan is revised."""

    RETIRE = "ours"
    PREFIX = "prefix"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    model: str
    paths: tuple[Path, ...]
    units: tuple[int, ...]
    prompt: int
    pairs: int
    inject_ms: float
    asynchronous: bool


class Subject:
    """The engine; ``lab``: one that runs already, else its own."""

    def __init__(self, options: Options, lab: Lab | None = None) -> None:
        from bench.lab import Lab

        self.options = options
        self.on_device = on_cuda()
        self.lab: Lab = lab or Lab(
            options.model, quantum=max(options.units), **_engine_args(options)
        )
        self.unit = max(options.units)
        self.path = options.paths[0]
        self._number = 0
        self._seen = watch_branches(self.lab)
        self._budget = self.lab.scheduler.max_num_scheduled_tokens

    def use(self, path: Path, unit: int) -> None:
        """Both arms compute ``unit`` tokens a step; kernels are compiled, step times learnt."""
        self.path, self.unit = path, unit
        self.lab.scheduler.quantum = unit
        self.lab.scheduler.max_num_scheduled_tokens = unit
        for _ in range(2):
            self._prefill_alone(unit)

    def release(self) -> None:
        """Whoever uses the engine next finds vLLM's own bound on a step again."""
        self.lab.scheduler.max_num_scheduled_tokens = self._budget

    def tail(self, arm: Arm) -> float:
        """From abandoning a plan in the middle of its first step to an idle device, ms."""
        began_s = self._abandon(self._prompt(), arm, steps=0)
        self._idle()
        ended_s = time.perf_counter()
        self.lab.run()
        self.lab.clean()
        return (ended_s - began_s) * 1e3

    def to_first_token(self, arm: Arm) -> float:
        """From abandoning a plan in its second step to its successor's first token, ms.

        In its first step where there is no second one.
        """
        old = self._prompt()
        shared = int(len(old) * OVERLAP)
        new = old[:shared] + self._prompt()[shared:]
        second = self.unit < len(old) and self.path is not Path.SPEC_DECODE
        began_s = self._abandon(old, arm, steps=int(second), shared=shared)
        tag = self.lab.tag(self.lab.key) if arm is Arm.RETIRE else None
        cold = {"skip_reading_prefix_cache": True} if arm is Arm.COLD else {}
        stream = self.lab.submit(f"new{self._number}", new, tag, max_tokens=1, **cold)
        self.lab.run(lambda: bool(stream.tokens))
        ended_s = time.perf_counter()
        self.lab.run()
        self.lab.clean()
        return (ended_s - began_s) * 1e3

    def branches(self) -> list[str]:
        """What the fence chose since the last call."""
        found = list(self._seen)
        self._seen.clear()
        return found

    # --- one revision -----------------------------------------------------------------------

    def _abandon(self, old: list[int], arm: Arm, *, steps: int, shared: int = 0) -> float:
        """Start the plan, abandon it in a step; when that was, s."""
        lab = self.lab
        self._number += 1
        lab.key = type(lab.key)("acme", f"plan-{self._number}")
        tag = lab.tag(lab.key) if arm is Arm.RETIRE else None
        requests = self._start(old, tag, steps)
        began: list[float] = []

        def revise() -> None:
            time.sleep(self.options.inject_ms / 1e3)
            began.append(time.perf_counter())
            if tag is not None:
                if shared:
                    _say(lab, tag, shared)
                lab.advance(lab.key)

        timer = threading.Thread(target=revise)
        with lab.before_forward(once(lambda: self._is_running(requests) and not timer.start())):
            if tag is not None:
                lab.run(lambda: not any(map(lab.request, requests)))
            else:
                lab.run(lambda: bool(began) or not any(map(lab.request, requests)))
                lab.engine.abort_request(requests)
        assert timer.ident, "no step was one to revise in: the plan is at its end"
        timer.join()
        return began[0]

    def _start(self, old: list[int], tag: Any, steps: int) -> list[str]:
        """Bring the plan to the step before the one that is abandoned; its requests' ids."""
        lab, prompt_id, spoken_id = self.lab, f"old{self._number}", f"talk{self._number}"
        requests = []
        if self.path in (Path.SPEC_DECODE, Path.DECODE):
            requests.append(spoken_id)
            self._talk(spoken_id, tag)
        if self.path is not Path.DECODE:
            requests.append(prompt_id)
            lab.submit(prompt_id, old, tag, max_tokens=4)
            lab.run(lambda: self._written(prompt_id) >= steps * self.unit)
        return requests

    def _talk(self, request_id: str, tag: Any) -> Stream:
        """A request that decodes and whose drafts are being verified."""
        lab = self.lab
        prompt = [11, 12, 13] * (SPOKEN // 3)
        stream = lab.submit(request_id, prompt, tag, max_tokens=200, **SAYS)
        lab.run(lambda: len(stream.tokens) >= 4 and bool(lab.drafts(request_id)))
        return stream

    def _is_running(self, requests: list[str]) -> bool:
        """Whether the step that is about to be launched is the one to be abandoned in."""
        scheduled = self.lab.in_flight.num_scheduled_tokens
        if not all(self.lab.internal_id(one) in scheduled for one in requests):
            return False
        return not self.path.speculates or self.path is Path.DRAFT_VERIFY or self._drafting()

    def _drafting(self) -> bool:
        return bool(self.lab.drafts(f"talk{self._number}"))

    def _written(self, request_id: str) -> int:
        request = self.lab.request(request_id)
        if request is None:
            return 0
        return request.num_computed_tokens - request.num_in_flight_tokens

    def _prefill_alone(self, tokens: int) -> None:
        self._number += 1
        lab = self.lab
        key = type(lab.key)("acme", f"warm-{self._number}")
        lab.submit(f"warm{self._number}", self._prompt(tokens), lab.tag(key), max_tokens=2)
        lab.run()
        lab.clean()

    def _prompt(self, tokens: int | None = None) -> list[int]:
        draw = random.Random(f"fence-{self._number}-{tokens}-{time.perf_counter_ns()}")
        return [draw.randrange(20, 2000) for _ in range(tokens or self.options.prompt)]

    def _idle(self) -> None:
        if self.on_device:
            import torch

            torch.cuda.synchronize()


def on_device_args(*, asynchronous: bool | None) -> dict[str, Any]:
    """Of vLLM on a GPU: full-size speed without weights, compiled, graphs for decode steps."""
    args: dict[str, Any] = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "block_size": 16,
        "enforce_eager": False,
        "async_scheduling": asynchronous,
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]},
        "gpu_memory_utilization": 0.9,
    }
    if kv_gib := os.environ.get(KV_GIB_ENV):  # beside another engine memory cannot be profiled
        args |= {
            "gpu_memory_utilization": 0.1,
            "kv_cache_memory_bytes": round(float(kv_gib) * 2**30),
        }
    return args


def _engine_args(options: Options) -> dict[str, Any]:
    largest = max(options.units)
    args: dict[str, Any] = {
        "max_num_batched_tokens": largest,
        "max_model_len": options.prompt + largest,
    }
    if on_cuda():
        args |= on_device_args(asynchronous=options.asynchronous)
    if any(path.speculates for path in options.paths):
        # vLLM has no asynchronous scheduling with n-gram drafts; None: as it chooses.
        args |= {"speculative_config": NGRAM, "async_scheduling": None}
    return args


def watch_branches(lab: Lab) -> list[str]:
    """Every branch that the scheduler is told of, as it comes."""
    seen: list[str] = []
    fence = lab.scheduler._fence_step

    def watched(*args: Any) -> Any:
        told = lab.scheduler._ended_step
        if told is not None:
            seen.append(told.branch.value)
        return fence(*args)

    lab.scheduler._fence_step = watched
    return seen


def once(call: Callable[[], bool]) -> Callable[[], None]:
    """Until it has said yes."""
    pending = [call]

    def run() -> None:
        if pending and pending[0]():
            pending.pop()

    return run


def on_cuda() -> bool:
    """Whether this process has a CUDA device."""
    import torch

    return torch.cuda.is_available()


def _say(lab: Lab, tag: Any, shared: int) -> None:
    from retire.mailbox import Overlaps

    Overlaps.attach(lab.mailbox.path, writable=True).put(tag.slot, shared)

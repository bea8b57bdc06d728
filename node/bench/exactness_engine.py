"""One engine in which a successor is computed over one prefix from different sources (A.3).

Owns the sources and the faults: who wrote the prefix's pages, what happens to them before they are
adopted. A reuse is forced to the length that the source left, and read from the engine. Must never
judge: ``exactness`` compares.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bench.exactness_weights import sharpen
from bench.fence_engine import on_cuda, on_device_args

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lab import Lab, Stream

TOKENS: Final = 16  # of a successor, compared
OLD_TOKENS: Final = 4  # of a predecessor that ends
BYSTANDER_TOKENS: Final = 64
BYSTANDER_PROMPT: Final = 128


class Source(Enum):
    """Who wrote the prefix that a successor is computed over."""

    COLD = "cold"  # nobody
    CLEAN = "clean prefix"  # a request of the same prefix alone; native prefix caching
    COMPLETED = "completed predecessor"  # a prompt that was computed to its end
    SUPERSEDED = "superseded predecessor"  # stopped in the middle of a later step


class Fault(Enum):
    """What happens to the certified pages before the successor is admitted."""

    NONE = "none"
    OVERWRITTEN = "overwritten"
    RESTORED = "overwritten, then restored"


class Beside(Enum):
    """What happens beside a bystander."""

    NOTHING = "nothing"
    ABORT = "native abort and resend"
    SUPERSEDE = "a transition"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a successor said."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reused: int  # tokens of its prompt, not computed again


class Subject:
    """The engine; ``close()`` ends it."""

    def __init__(
        self, model: str, *, prompt: int, quantum: int, eager: bool, lab: Lab | None = None
    ) -> None:
        from bench.lab import Lab

        self.prompt, self.quantum = prompt, quantum
        args: dict[str, Any] = {
            "max_num_batched_tokens": quantum,
            "max_model_len": prompt + quantum,
        }
        if on_cuda():
            args |= {**on_device_args(asynchronous=True), "enforce_eager": eager}
        self.lab: Lab = lab or Lab(model, quantum=quantum, **args)
        self.sharpened = sharpen(self.lab)
        self._number = 0

    def close(self) -> None:
        """End the engine."""
        self.lab.close()

    def contexts(self, seed: int, shared: int) -> tuple[list[int], list[int]]:
        """A predecessor's prompt and its successor's; the first ``shared`` tokens are the same."""
        old, other = _tokens(self.prompt, f"old-{seed}"), _tokens(self.prompt, f"new-{seed}")
        other[shared] = old[shared] + 1  # the first differing token, whatever was drawn
        return old, old[:shared] + other[shared : shared + self.prompt // 16]

    def answer(self, source: Source, seed: int, shared: int, fault: Fault = Fault.NONE) -> Answer:
        """A successor over its prefix from ``source``; the cache is empty before."""
        lab = self.lab
        lab.clean()
        self._number += 1
        lab.key = type(lab.key)("acme", f"plan-{self._number}")
        old, new = self.contexts(seed, shared)
        if source is Source.COLD:
            return self._say(new)
        if source is Source.CLEAN:
            self._finish(f"clean{self._number}", old[:shared])
            return self._say(new)
        blocks = self._supersede(old, shared, middle=source is Source.SUPERSEDED)
        if fault is not Fault.NONE:
            saved = lab.overwrite_blocks(blocks)
            if fault is Fault.RESTORED:
                lab.restore_blocks(blocks, saved)
        return self._say(new, lab.tag(lab.key))

    def other_prefix(self, seed: int, shared: int) -> Answer:
        """The successor's own part after another prefix of the same length: the power."""
        self.lab.clean()
        self._number += 1
        _, new = self.contexts(seed, shared)
        return self._say(_tokens(shared, f"other-{seed}") + new[shared:])

    def bystander(self, what: Beside, seed: int) -> tuple[Answer, bool]:
        """Another tenant's request; whether the pages it had written stayed what they were."""
        lab = self.lab
        lab.clean()
        self._number += 1
        lab.key = type(lab.key)("acme", f"plan-{self._number}")
        key = type(lab.key)("other", f"steady-{self._number}")
        beside = f"by{self._number}"
        prompt = _tokens(BYSTANDER_PROMPT, f"bystander-{seed}")
        tag = None if what is Beside.ABORT else lab.tag(key)
        stream = lab.submit(beside, prompt, tag, max_tokens=BYSTANDER_TOKENS)
        lab.run(lambda: len(stream.tokens) >= 2)
        before = lab.page_digests(beside, tokens=BYSTANDER_PROMPT)
        if what is not Beside.NOTHING:
            self._transition(what)
        assert stream.finish_reason is None, "the bystander must outlive the transition"
        same = before == lab.page_digests(beside, tokens=BYSTANDER_PROMPT)
        lab.run()
        return _answer(stream), same

    def _transition(self, what: Beside) -> None:
        """From a plan in the middle of its prefill to its successor's second token."""
        lab, shared = self.lab, self.prompt // 2
        old, new = self.contexts(0, shared)
        tag = None
        if what is Beside.SUPERSEDE:
            self._supersede(old, shared, middle=True)
            tag = lab.tag(lab.key)
        else:
            request_id = f"old{self._number}"
            lab.submit(request_id, old, None, max_tokens=400)
            lab.run(lambda: self._written(request_id) >= self.quantum)
            lab.step()
            lab.engine.abort_request([request_id])
        successor = lab.submit(f"new{self._number}", new, tag, max_tokens=2)
        lab.run(lambda: len(successor.tokens) >= 2)

    # --- sources --------------------------------------------------------------------------------

    def _supersede(self, old: Sequence[int], shared: int, *, middle: bool) -> list[int]:
        """Run a predecessor, ADVANCE; ids of the blocks behind the first ``shared`` tokens."""
        lab, request_id = self.lab, f"old{self._number}"
        tag = lab.tag(lab.key)
        stream = lab.submit(request_id, old, tag, max_tokens=400)
        if not middle:
            lab.run(lambda: len(stream.tokens) >= OLD_TOKENS)
        else:
            lab.run(lambda: self._written(request_id) >= self.quantum)
        group = lab.scheduler.kv.chain(lab.internal_id(request_id), shared).block_ids()[0]
        if middle:
            with lab.before_forward(_once(lambda: lab.advance(lab.key))):
                lab.run(lambda: lab.request(request_id) is None)
        else:
            lab.advance(lab.key)
            lab.run(lambda: lab.request(request_id) is None)
        return [block for block in group if block]

    def _written(self, request_id: str) -> int:
        request = self.lab.request(request_id)
        return 0 if request is None else request.num_computed_tokens - request.num_in_flight_tokens

    def _finish(self, request_id: str, prompt: Sequence[int]) -> None:
        self.lab.submit(request_id, prompt, max_tokens=1)
        self.lab.run()

    def _say(self, prompt: Sequence[int], tag: Any = None) -> Answer:
        stream = self.lab.submit(f"new{self._number}", prompt, tag, max_tokens=TOKENS)
        self.lab.run()
        return _answer(stream)


def _answer(stream: Stream) -> Answer:
    return Answer(tuple(stream.tokens), tuple(stream.logprobs), stream.cached_tokens or 0)


def _tokens(count: int, seed: str) -> list[int]:
    draw = random.Random(f"exactness-{seed}")
    return [draw.randrange(10, 2000) for _ in range(count)]


def _once(call: Any) -> Any:
    pending = [call]

    def run() -> None:
        if pending:
            pending.pop()()

    return run

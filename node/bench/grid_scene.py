"""One cell's surroundings: a tenant of its own, the old stream, and a hand on the engine.

The engine process can be stopped between two instructions (SIGSTOP): whatever happens meanwhile
happens inside that step, on an idle machine and on a loaded one. Must never judge anything.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx

from bench.grid_progress import HistoryTail
from bench.grid_variants import PLAIN, Variant
from bench.grid_wire import Call, Connection, pump
from bench.stack_processes import below
from bench.tiny_models import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.stack import Stack

SCOPE: Final = "plan"
BLOCK: Final = 32  # tokens
QUANTUM: Final = 64  # tokens of a prefill chunk
PROMPT: Final = 2048  # tokens of the old prompt
COMMON: Final = 1024  # of them the revised prompt keeps
SUFFIX: Final = 320  # new tokens of the revised prompt
NEW_TOKENS: Final = 12  # of the successor's answer
SEATS: Final = 4  # max_num_seqs
BALLAST: Final = 3600  # tokens of a prompt whose prefill outlasts the old request
WAIT_S: Final = 30.0
SETTLE_S: Final = 8.0  # blocks, pins and requests come back within


def seeded(count: int, seed: int) -> list[int]:
    """A prompt without special tokens."""
    draw = random.Random(seed)
    return [draw.randrange(10, VOCABULARY - 10) for _ in range(count)]


OLD_PROMPT: Final = seeded(PROMPT, 1)
NEW_PROMPT: Final = OLD_PROMPT[:COMMON] + seeded(SUFFIX, 2)


@dataclass(slots=True)
class Scene:
    """One attempt at a cell."""

    stack: Stack
    tenant: str
    tail: HistoryTail
    engine_pids: Sequence[int]  # EngineCore and, of several ranks, their processes
    variant: Variant = PLAIN
    old: Connection | None = None
    fillers: list[Connection] = field(default_factory=list)
    frozen: bool = False

    # --- calls ----------------------------------------------------------------------------------

    def call(self, path: str, body: dict[str, Any], **headers: str) -> Connection:
        """Send one call of this tenant."""
        sent = {"x-retire-tenant": self.tenant}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return Connection(self.stack.url, Call(path, body, sent))

    def retirement(self, expected: str) -> dict[str, Any]:
        """The body of a SUPERSEDE whose successor comes later."""
        contract = self.variant.contract
        return {"expected_version": expected} | ({"contract": dict(contract)} if contract else {})

    def completion(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        """The body of a stream whose tokens can be counted."""
        counted = {"stream": True, "return_token_ids": True, **self.variant.sampling}
        return self.stack.body(prompt, max_tokens=max_tokens, **counted)

    def tagged(self, prompt: list[int], max_tokens: int) -> Connection:
        """A completion of the scope at its current version."""
        body = self.completion(prompt, max_tokens)
        return self.call("/v1/completions", body, x_retire_scope=SCOPE)

    def open_old(self, max_tokens: int) -> Connection:
        """Start the stream that the event will hit."""
        self.old = self.tagged(OLD_PROMPT, max_tokens)
        return self.old

    def cancel(self) -> None:
        """End the scope, so that an attempt that missed its state leaves no pins behind."""
        self.thaw()
        try:
            version = self.view()["version"]
        except httpx.HTTPStatusError:
            return  # never opened
        over = self.call(f"/v1/scopes/{SCOPE}/cancel", {"expected_version": version})
        self.until(lambda: over.ended, "the answer to cancel", over)

    def view(self) -> dict[str, Any]:
        """GET /v1/scopes/plan."""
        return self.stack.scope(SCOPE, self.tenant)

    # --- the engine -----------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop the engine where it is, every process of it."""
        for pid in self.engine_pids:
            os.kill(pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on; nothing when it runs."""
        if self.frozen:
            for pid in self.engine_pids:
                os.kill(pid, signal.SIGCONT)
            self.frozen = False

    def fill(self) -> None:
        """Take every seat of the engine with untagged work; returns once all of it runs."""
        for number in range(SEATS):
            body = self.completion(seeded(40, 100 + number), 3000)
            self.fillers.append(Connection(self.stack.url, Call("/v1/completions", body)))
        self.until(lambda: all(one.tokens for one in self.fillers), "the fillers' first tokens")

    def slow_down(self) -> None:
        """Lengthen every step by the prefills of others, so that a single token can be caught."""
        for number in range(SEATS - 1):
            body = self.completion(seeded(BALLAST, 200 + number), 1)
            self.fillers.append(Connection(self.stack.url, Call("/v1/completions", body)))

    def make_room(self) -> None:
        """The fillers leave."""
        for one in self.fillers:
            one.hang_up()
        self.fillers.clear()

    # --- waiting --------------------------------------------------------------------------------

    def until(
        self, condition: Callable[[], bool], what: str, *more: Connection, timeout_s: float = WAIT_S
    ) -> None:
        """Read every open connection until ``condition`` holds. Stuck otherwise."""
        old = [self.old] if self.old is not None else []
        pump([*old, *more, *self.fillers], condition, timeout_s=timeout_s, what=what)

    def read_for(self, seconds: float) -> None:
        """Keep reading the old stream for a while."""
        end_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end_s, "time passes")

    def close(self) -> None:
        """Leave nothing of this cell behind."""
        self.thaw()
        self.make_room()
        if self.old is not None and not self.old.ended:
            self.old.hang_up()
        self.tail.close()


@contextmanager
def scene(stack: Stack, tenant: str, variant: Variant = PLAIN) -> Iterator[Scene]:
    """A scene for one attempt; closed whatever happens."""
    engine = stack.pids["enginecore"]
    pids = (engine, *below(engine)) if variant.ranks > 1 else (engine,)
    made = Scene(stack, tenant, HistoryTail(stack.history, tenant), pids, variant)
    try:
        yield made
    finally:
        made.close()

"""What the tests of the DRAM tier do to a lab: offload, overwrite pages, hold transfers."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.lab import prompt_tokens
from retire.engine.tier.copies import At
from retire.engine.tier.devices import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.lab import Lab, Stream
    from retire.engine.records import Record
    from retire.engine.tier.copier import Copier
    from retire.engine.tier.host_tier import HostTier
    from retire.protocol.versions import ScopeKey

TOLERANCE = 1e-4  # float32 on the CPU; another prefix moves the logprobs a thousand times further
OLD = prompt_tokens(320, 21)
NEW = OLD[:300] + prompt_tokens(40, 22)
CERTIFIED = 288
DRAM = {"tier": "dram", "ttl_s": 600.0}
WAIT_S = 20.0


def tier_of(lab: Lab) -> HostTier:
    """The scheduler's side."""
    return lab.scheduler.inheritance.tier


def copier_of(lab: Lab) -> Copier:
    """The worker's side."""
    return lab.core.model_executor.driver_worker.worker._retire_copier


def host_bytes(lab: Lab) -> int:
    """As an operator sees them."""
    return lab.core.retire_inspect(None, None)["host"]["bytes"]


def distance(one: Stream, other: Stream) -> float:
    """Largest difference of a logprob; infinite when the tokens differ."""
    if one.tokens != other.tokens or not one.tokens:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def clean_run(lab: Lab, prompt: Sequence[int]) -> Stream:
    """The same prompt, cold and alone."""
    lab.clean()
    stream = lab.submit("clean", prompt)
    lab.run()
    lab.clean()
    return stream


def retire_decoding(
    lab: Lab, key: ScopeKey, prompt: Sequence[int] = OLD, contract: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One old request of a scope, superseded while it decodes, fenced under ``contract``."""
    old = lab.submit(f"old-{key.tenant}-{key.scope}", prompt, lab.tag(key), max_tokens=100)
    lab.run(lambda: len(old.tokens) >= 2)
    lab.advance(key)
    return lab.fence(key, contract or DRAM)


def tick_until(lab: Lab, condition: Callable[[], bool]) -> None:
    """An idle engine: only the tick looks after transfers."""
    ends_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_s, "the transfer did not end"
        lab.core.retire_tick()
        time.sleep(0.002)


def record_of(lab: Lab, key: ScopeKey) -> Record:
    """The newest record of a scope."""
    return lab.scheduler.inheritance.retained.records[key][-1]


def at_rest(lab: Lab, key: ScopeKey) -> bool:
    """Whether the scope's newest record is in host memory."""
    copy = record_of(lab, key).copy
    return copy is not None and copy.stored.at is At.REST


def offload(lab: Lab, key: ScopeKey, prompt: Sequence[int] = OLD) -> None:
    """Retire a scope's work and wait until it is at rest; nothing of it stays in HBM."""
    retire_decoding(lab, key, prompt)
    tick_until(lab, lambda: at_rest(lab, key))
    wipe(lab)


def wipe(lab: Lab) -> None:
    """Noise in every free page that a record wrote, and no page can be found: only the host knows.

    What is pinned or in use stays as it is.
    """
    pool = lab.scheduler.kv_cache_manager.block_pool
    free = {block.block_id for block in pool.blocks if block.ref_cnt == 0 and not block.is_null}
    records = lab.scheduler.inheritance.retained.records.values()
    written = {b.block_id for rs in records for r in rs for b in r.chain.real_blocks()}
    lab.scheduler.kv.unhash(free)
    lab.overwrite_blocks(free & written)


def churn(lab: Lab, requests: int = 4) -> None:
    """Unrelated work, more than twice what the cache has room for."""
    lab.limit_free_blocks(100)
    for index in range(requests):
        lab.submit(f"churn{index}", prompt_tokens(1900, 100 + index), max_tokens=1)
    lab.run()
    lab.limit_free_blocks(None)


def succeed(lab: Lab, key: ScopeKey, prompt: Sequence[int] = NEW) -> tuple[Stream, dict[str, Any]]:
    """The successor, run to its end, and what its receipt is told."""
    tag = lab.tag(key)
    told = lab.certificate(key)
    stream = lab.submit(f"new-{key.tenant}", prompt, tag)
    lab.run()
    return stream, told.result(timeout=0)


@contextlib.contextmanager
def held(lab: Lab, way: Way) -> Iterator[threading.Event]:
    """Transfers of one direction do not begin before the block ends, or the event is set."""
    gate = threading.Event()
    copier_of(lab)._threads[way].submit(gate.wait, WAIT_S)
    try:
        yield gate
    finally:
        gate.set()


def settle(lab: Lab) -> list[str]:
    """Give everything up; what has not come back to its baseline."""
    tier = tier_of(lab)
    lab.limit_free_blocks(None)
    lab.run()
    for key in list(lab.scheduler.inheritance.retained.records):
        lab.core.retire_release(key.tenant, key.scope)
    tick_until(lab, lambda: not tier.busy)
    rows = copier_of(lab).arena.used_rows
    faults = [f"{host_bytes(lab)} host bytes left"] if host_bytes(lab) else []
    faults += [f"{rows} rows of host memory left"] if rows else []
    faults += [f"waiting: {list(lab.scheduler.inheritance.waiting)}"] * bool(
        lab.scheduler.inheritance.waiting
    )
    return faults + lab.settled()

"""Where the scheduler of one vLLM release differs from the next, told apart by what it has.

Tested on 0.26.0 and 0.32.0; ``docs/vllm-versions.md`` lists every difference. What merely has a new
parameter is left to ``compat.py``. Must never compare version numbers: a release is what it can do.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from retire.engine.seams.compat import SeamMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE_QUEUES: Final = (
    "skipped_waiting",  # 0.26: those that an earlier step passed over
    "kv_holding_waiting",  # 0.32: those that hold blocks; the others went back to `waiting`
)

SEATS: Final = (
    "max_num_running_reqs",  # how many may be in `running`
    "max_num_active_reqs",  # 0.32: how many there may be when one more is admitted
)


def side_queue(scheduler: Any) -> Any:
    """The waiting requests that are not in ``waiting``. Raises SeamMismatch when there are none."""
    for name in SIDE_QUEUES:
        if hasattr(scheduler, name):
            return getattr(scheduler, name)
    raise SeamMismatch(
        f"{type(scheduler).__qualname__} has none of {', '.join(SIDE_QUEUES)} in this vLLM"
    )


def take_seats(scheduler: Any, count: int) -> None:
    """Let ``count`` fewer requests run, because as many hold their seats elsewhere; negative: more.

    0.26 has one limit. 0.32 admits by the second and then asserts the first.
    """
    for limit in SEATS:
        if hasattr(scheduler, limit):
            setattr(scheduler, limit, getattr(scheduler, limit) - count)


def keep_windows(scheduler: Any) -> None:
    """Let the prefix cache keep what sliding windows have left behind, as 0.26 does.

    A successor may leave the old context anywhere, and needs the window before that place. 0.32
    hashes only those before the places where it expects a prompt to go on; then a successor of a
    model with windows would mostly start cold. An interval that was asked for stays.
    """
    if getattr(scheduler.cache_config, "prefix_cache_retention_interval", None) == 0:
        scheduler.kv_cache_manager.coordinator.retention_interval = None


def forget_stale_frames(request: Any) -> None:
    """The output that was in flight when a request was preempted does not come any more.

    0.26 drops as many outputs as were awaited, and would drop later ones instead. 0.32 counts the
    scheduled tokens of every step, also of one without output.
    """
    if hasattr(request, "async_tokens_to_discard"):
        request.async_tokens_to_discard = 0


@contextmanager
def short_chunks(scheduler: Any, tokens: int) -> Iterator[None]:
    """Within, no step computes more than ``tokens`` tokens of a prompt.

    0.26 always keeps to ``long_prefill_token_threshold``. 0.32 lifts it from a request that is
    alone, and may raise it to a fair share of the budget: both would leave a successor waiting for
    one long step, so the request that it may replace counts as being in company.
    """
    config = scheduler.scheduler_config
    threshold, fair = config.long_prefill_token_threshold, _fair_share(scheduler)
    tokens = max(tokens, 1 + scheduler.num_spec_tokens)  # 0.32 asserts that drafts fit
    config.long_prefill_token_threshold = min(threshold or tokens, tokens)
    counts = scheduler.get_request_counts
    scheduler.get_request_counts = lambda: _accompanied(*counts())
    if fair:
        scheduler.adaptive_long_prefill_threshold = False
    try:
        yield
    finally:
        config.long_prefill_token_threshold = threshold
        del scheduler.get_request_counts
        if fair:
            scheduler.adaptive_long_prefill_threshold = True


def _fair_share(scheduler: Any) -> bool:
    return getattr(scheduler, "adaptive_long_prefill_threshold", False)


def _accompanied(running: int, waiting: int) -> tuple[int, int]:
    return running + 1, waiting

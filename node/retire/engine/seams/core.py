"""Seam: utility calls on EngineCore, served between steps, so that they may touch the scheduler.

Sets ``retire_*`` methods on ``vllm.v1.engine.core.EngineCore`` (dispatch: ``getattr(self, name)``
in ``EngineCoreProc._handle_client_request``). A returned Future defers the reply. Plain values, so
that msgpack carries them. Upstream status: internal, the same mechanism as
``reset_prefix_cache``. Tested on 0.26.0.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from retire.engine.seams import host_copies, identity, pages
from retire.protocol.codec import contract_from_dict
from retire.protocol.versions import ScopeKey, Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.engine.records import Outcome, Record


def retire_hello(self: Any) -> dict[str, Any]:
    """Who this engine is. Fails when its scheduler is not ours: then nothing could be fenced."""
    scheduler = _versioned(self)
    from vllm import __version__

    if scheduler.chronicle.on and pages.wanted():
        scheduler.chronicle.digests = pages.reader(self)
    who = scheduler.inheritance.certifier.identity
    return {
        "boot_id": who.boot_id,
        "fingerprint": who.fingerprint,
        "block_size": scheduler.kv.boundary,
        "num_blocks": scheduler.kv.total_blocks,
        "vllm_version": __version__,
        "model": self.vllm_config.model_config.model,
    }


def retire_fence(  # noqa: PLR0917  (a utility call takes positional arguments)
    self: Any, tenant: str, scope: str, term: int, epoch: int, contract: Any, terminal: bool
) -> Any:
    """FENCE: retire all of the scope below ``term.epoch``; answers when its writers are closed."""
    scheduler = _versioned(self)
    key, version = ScopeKey(tenant, scope), Version(term, epoch)
    agreed = contract_from_dict(contract) if contract is not None else None
    reply: Future[dict[str, Any]] = Future()

    def retire() -> None:
        scheduler.retire_stale()
        records = scheduler.inheritance.fence(key, version, agreed, terminal=terminal)
        scheduler.when_written(
            [record.last_step for record in records],
            lambda: reply.set_result(_fenced(scheduler, key, records)),
        )

    scheduler.when_settled(retire)
    return reply.result() if reply.done() else reply


def retire_expect(self: Any, tenant: str, scope: str, term: int, epoch: int) -> Any:
    """What ALIGN decides for the first request of this version; answers when it has arrived.

    Ask before adding it: then the answer does not wait for the step that begins with it.
    """
    scheduler = _versioned(self)
    reply: Future[dict[str, Any]] = Future()
    scheduler.inheritance.expect(
        ScopeKey(tenant, scope),
        Version(term, epoch),
        lambda request_id, outcome: reply.set_result(
            {"request_id": request_id, **_certificate(scheduler, outcome, tenant)}
        ),
    )
    return reply.result() if reply.done() else reply


def _certificate(scheduler: Any, outcome: Outcome, tenant: str) -> dict[str, Any]:
    pin = None
    if outcome.pinned_blocks:
        pin = {
            "blocks": outcome.pinned_blocks,
            "tier": outcome.tier.value,
            "expires_s": max(0.0, outcome.expires_s - time.monotonic()),
            "quota_left": scheduler.inheritance.ledger.left(tenant),
        }
    return {
        "certified_tokens": outcome.alignment.certified_tokens,
        "inheritable_tokens": outcome.alignment.inheritable_tokens,
        "first_difference": outcome.alignment.first_difference,
        "stop_reason": outcome.alignment.stop_reason.value,
        "frontier_tokens": outcome.frontier_tokens,
        "pin": pin,
        "restore": outcome.restore.value if outcome.restore is not None else None,
        "saved_ms": scheduler.steps.times.compute_ms(outcome.alignment.certified_tokens),
    }


def retire_release(self: Any, tenant: str, scope: str) -> int:
    """Give up what is kept for a scope's successor; returns the pinned blocks released."""
    return _versioned(self).inheritance.release(ScopeKey(tenant, scope))


def retire_quota(self: Any, tenant: str, blocks: int | None) -> None:
    """Bound the blocks pinned for a tenant on this engine; None: unlimited."""
    _versioned(self).inheritance.ledger.set_quota(tenant, blocks)


def retire_pause(self: Any, tenant: str, scope: str, paused: bool) -> int:
    """Stop or go on scheduling a scope's requests; returns how many. Authority is untouched."""
    scheduler = _versioned(self)
    key = ScopeKey(tenant, scope)
    ids = {request_id for request_id, tag in scheduler.tags.items() if tag.key == key}
    scheduler.paused = scheduler.paused | ids if paused else scheduler.paused - ids
    return len(ids)


def retire_inspect(self: Any, tenant: str | None, scope: str | None) -> dict[str, Any]:
    """Live scoped requests and pins (of one tenant or scope), and free blocks."""
    scheduler = _versioned(self)
    ledger = scheduler.inheritance.ledger
    live = [
        _request(scheduler.requests[request_id], tag)
        for request_id, tag in scheduler.tags.items()
        if tenant in (None, tag.key.tenant) and scope in (None, tag.key.scope)
    ]
    return {
        "requests": live,
        "pinned_blocks": _pinned(scheduler.inheritance, tenant, scope),
        "pinned_by_tenant": ledger.by_tenant(),
        "free_blocks": scheduler.kv.free_blocks,
        "total_blocks": scheduler.kv.total_blocks,
        "host": _host(scheduler.inheritance.tier, tenant, scope),
        "audit": scheduler.inheritance.audit(),
    }


def retire_pins(self: Any) -> dict[str, Any]:
    """What is kept, by tenant, in little time: asked every second while there is anything."""
    scheduler = _versioned(self)
    ledger = scheduler.inheritance.ledger
    return {
        "pinned_by_tenant": ledger.by_tenant(),
        "block_bytes": identity.block_bytes(scheduler.kv_cache_config),
        "total_blocks": scheduler.kv.total_blocks,
        "overdue_s": ledger.overdue_s(time.monotonic()),
        "host": _host(scheduler.inheritance.tier, None, None),
    }


def _host(tier: Any, tenant: str | None, scope: str | None) -> dict[str, Any]:
    """Bytes at rest in host memory, or on their way there or back."""
    used = tier.budget.used if tenant is None else tier.budget.used_by(tenant)
    if tenant is not None and scope is not None:
        used = tier.bytes_for(ScopeKey(tenant, scope))
    return {
        "off": tier.off,
        "bytes": used,
        "capacity": tier.budget.capacity,
        "by_tenant": tier.budget.by_tenant(),
        "jobs": tier.jobs,
    }


def _pinned(inheritance: Any, tenant: str | None, scope: str | None) -> int:
    if tenant is None:
        return inheritance.ledger.total()
    if scope is None:
        return inheritance.ledger.used(tenant)
    return inheritance.pinned_for(ScopeKey(tenant, scope))


def retire_tick(self: Any) -> int:
    """End leases whose time is over, also while idle; returns the blocks still pinned."""
    scheduler = _versioned(self)
    scheduler.tend_leases()
    return scheduler.inheritance.ledger.total()


def _versioned(core: Any) -> Any:
    from retire.engine.seams.scheduler import RetireSchedulerMixin

    if not isinstance(core.scheduler, RetireSchedulerMixin):
        raise TypeError(f"scheduler {type(core.scheduler).__qualname__} is not versioned by Retire")
    scheduler = core.scheduler
    tier = scheduler.inheritance.tier
    if not tier.attached:
        blocks, capacity = scheduler.kv.total_blocks + 1, tier.settings.bytes
        tier.attach(
            lambda: host_copies.RpcWorkers(core.model_executor, blocks, capacity),
            unfit=host_copies.unfit(scheduler.vllm_config),
        )
    return scheduler


def _fenced(scheduler: Any, key: ScopeKey, records: list[Record]) -> dict[str, Any]:
    frontier = max((record.frontier for record in records), default=0)
    residuals = [record.residual_ms for record in records if record.residual_ms is not None]
    return {
        "participants": [
            {
                "pp_rank": rank.pp_rank,
                "tp_rank": rank.tp_rank,
                "kv_group": group,
                "frontier_tokens": frontier,
                "closed": rank.closed,
            }
            for rank in scheduler.ranks()
            for group in range(len(scheduler.kv.block_sizes))
        ],
        "requests": [
            {
                "request_id": record.request_id,
                "state": record.state,
                "prompt_tokens": record.prompt_tokens,
                "frontier_tokens": record.frontier,
            }
            for record in records
        ],
        "residual_ms": max(residuals, default=None),
        **_branch(records),
        "pinned_blocks": scheduler.inheritance.kept_for(key),
        "quota_left": scheduler.inheritance.ledger.left(key.tenant),
        "host": _kept_on_host(scheduler.inheritance.tier, key),
    }


def _kept_on_host(tier: Any, key: ScopeKey) -> dict[str, Any]:
    """What host memory keeps of a scope, or why it does not."""
    refused = tier.refused.get(key)
    return {
        "bytes": tier.bytes_for(key),
        "bytes_left": tier.budget.left(key.tenant),
        "refused": refused.value if refused is not None else None,
    }


def _branch(records: list[Record]) -> dict[str, Any]:
    """How the step of the record that ended last was ended."""
    ended = [r for r in records if r.residual_ms is not None and r.fence is not None]
    last = max(ended, key=lambda record: record.residual_ms or 0.0, default=None)
    if last is None or last.fence is None:
        return {"branch": None, "predicted_ms": None}
    return {"branch": last.fence.branch.value, "predicted_ms": last.fence.predicted_ms}


def _request(request: Any, tag: Any) -> Mapping[str, Any]:
    return {
        "request_id": request.request_id,
        "scope": tag.key.scope,
        "version": str(tag.version),
        "state": request_state(request),
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.num_output_tokens,
    }


def request_state(request: Any) -> str:
    """queued | prefill | decode, from a vLLM ``Request`` that has not ended."""
    if request.num_computed_tokens == 0:
        return "queued"
    return "decode" if request.num_output_tokens else "prefill"


_UTILITIES = (
    retire_hello,
    retire_fence,
    retire_expect,
    retire_release,
    retire_quota,
    retire_pause,
    retire_inspect,
    retire_pins,
    retire_tick,
)


def install() -> None:
    """Add the utilities to EngineCore, and to its workers what they need."""
    from vllm.v1.engine.core import EngineCore

    host_copies.install()
    for utility in _UTILITIES:
        setattr(EngineCore, utility.__name__, utility)

"""Protobuf messages <-> values of the protocol. Pure; must never do IO or decide.

A missing message field is reported as InvalidField under its wire name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retire.protocol.contract import (
    TTL_DEFAULT_S,
    Contract,
    Equivalence,
    Fence,
    FenceBranch,
    GateOutcome,
    GateResult,
    Inherit,
    Participant,
    PinLease,
    Policy,
    RetiredRequest,
    Tier,
)
from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.pb import node_pb2 as pb

if TYPE_CHECKING:
    from enum import Enum
    from typing import TypeVar

    from google.protobuf.message import Message

    E = TypeVar("E", bound=Enum)


def key_from(message: pb.ScopeKey) -> ScopeKey:
    """A validated key; raises InvalidField for "tenant" or "scope"."""
    return ScopeKey(message.tenant, message.scope)


def key_to(key: ScopeKey) -> pb.ScopeKey:
    """The wire form of a key."""
    return pb.ScopeKey(tenant=key.tenant, scope=key.scope)


def version_from(message: pb.Version) -> Version:
    """A validated version."""
    return Version(message.term, message.epoch)


def version_to(version: Version) -> pb.Version:
    """The wire form of a version."""
    return pb.Version(term=version.term, epoch=version.epoch)


def required_version(message: Message, field: str) -> Version:
    """The version in ``field``, which must be present (0.0 is a version, absence is not)."""
    if not message.HasField(field):
        raise InvalidField(
            field, None, 'present: the version you expect to be current ("term.epoch")'
        )
    return version_from(getattr(message, field))


def contract_from(message: pb.Contract) -> Contract:
    """The contract; empty fields take their defaults."""
    return Contract(
        equivalence=_member(Equivalence, message.equivalence or "exact", "contract.equivalence"),
        inherit=_member(Inherit, message.inherit or "certified", "contract.inherit"),
        tier=_member(Tier, message.tier or "hbm", "contract.tier"),
        ttl_s=message.ttl_s or TTL_DEFAULT_S,
        fence_bound_ms=message.fence_bound_ms if message.HasField("fence_bound_ms") else None,
    )


def contract_to(contract: Contract) -> pb.Contract:
    """The wire form of a contract."""
    return pb.Contract(
        equivalence=contract.equivalence.value,
        inherit=contract.inherit.value,
        tier=contract.tier.value,
        ttl_s=contract.ttl_s,
        fence_bound_ms=contract.fence_bound_ms,
    )


def policy_to(policy: Policy | None) -> str:
    """The wire form of a policy; empty: none."""
    return "" if policy is None else policy.value


def policy_from(text: str) -> Policy | None:
    """The policy, None when empty."""
    return _member(Policy, text, "policy") if text else None


def gate_from(message: pb.GateResult) -> GateResult:
    """One gate's part in UNPUBLISHABLE."""
    return GateResult(message.gate, GateOutcome(message.outcome), message.ms)


def gate_to(gate: GateResult) -> pb.GateResult:
    """The wire form of a gate result."""
    return pb.GateResult(gate=gate.gate, outcome=gate.outcome.value, ms=gate.ms)


def participant_from(message: pb.Participant) -> Participant:
    """One participant's receipt."""
    return Participant(
        node=message.node,
        boot_id=message.boot_id,
        pp_rank=message.pp_rank,
        tp_rank=message.tp_rank,
        kv_group=message.kv_group,
        frontier_tokens=message.frontier_tokens,
        closed=message.closed,
    )


def participant_to(value: Participant) -> pb.Participant:
    """The wire form of a participant's receipt."""
    return pb.Participant(
        node=value.node,
        boot_id=value.boot_id,
        pp_rank=value.pp_rank,
        tp_rank=value.tp_rank,
        kv_group=value.kv_group,
        frontier_tokens=value.frontier_tokens,
        closed=value.closed,
    )


def retired_from(message: pb.RetiredRequest) -> RetiredRequest:
    """What became of one request of the old version."""
    last = message.last_published_index if message.HasField("last_published_index") else None
    return RetiredRequest(
        request_id=message.request_id,
        state=message.state,
        prompt_tokens=message.prompt_tokens,
        frontier_tokens=message.frontier_tokens,
        last_published_index=last,
    )


def retired_to(value: RetiredRequest) -> pb.RetiredRequest:
    """The wire form of a retired request."""
    return pb.RetiredRequest(
        request_id=value.request_id,
        state=value.state,
        prompt_tokens=value.prompt_tokens,
        frontier_tokens=value.frontier_tokens,
        last_published_index=value.last_published_index,
    )


def _member(kind: type[E], text: str, field: str) -> E:
    try:
        return kind(text)
    except ValueError:
        names = ", ".join(str(member.value) for member in kind)
        raise InvalidField(field, text, f"one of {names}") from None


def pin_from(fenced: pb.Fenced, contract: Contract) -> PinLease | None:
    """What a FENCE has kept for a successor under its contract; None: nothing."""
    if not fenced.pinned_blocks:
        return None
    return PinLease(
        blocks=fenced.pinned_blocks,
        tier=Tier(fenced.tier) if fenced.tier else Tier.HBM,
        expires_s=contract.ttl_s,
        quota_left=fenced.quota_left if fenced.HasField("quota_left") else None,
    )


def extra_from(fenced: pb.Fenced) -> dict[str, object]:
    """What a receipt adds: nodes that are ``missing``, why host memory was ``host_refused``."""
    extra: dict[str, object] = {}
    if fenced.missing:
        extra["missing"] = list(fenced.missing)
    if fenced.host_refused:
        extra["host_refused"] = fenced.host_refused
    return extra


def fence_from(fenced: pb.Fenced) -> Fence | None:
    """How the step that ran was ended; None: none was running."""
    if not fenced.branch:
        return None
    predicted_ms = fenced.predicted_ms if fenced.HasField("predicted_ms") else None
    return Fence(FenceBranch(fenced.branch), predicted_ms)

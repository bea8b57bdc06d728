"""Values <-> plain JSON-able dicts. What is stored or sent to others carries a ``schema`` number.

``x_to_dict`` and ``x_from_dict`` are inverses; reading checks everything and raises InvalidField
with the path of the field. Must never import anything outside ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, cast

from retire.protocol.certificates import SCHEMA as CERTIFICATE_SCHEMA_NUMBER
from retire.protocol.certificates import Certificate
from retire.protocol.contract import (
    Contract,
    Equivalence,
    Fence,
    FenceBranch,
    GateOutcome,
    GateResult,
    Inherit,
    Participant,
    PinLease,
    Receipt,
    RetiredRequest,
    StopReason,
    Tier,
)
from retire.protocol.errors import InvalidField
from retire.protocol.fields import Fields
from retire.protocol.schema import RECEIPT_SCHEMA, RECEIPT_SCHEMA_NUMBER
from retire.protocol.versions import ScopeKey, Version

__all__ = [
    "RECEIPT_SCHEMA",
    "certificate_from_dict",
    "certificate_to_dict",
    "contract_from_dict",
    "contract_to_dict",
    "key_from_dict",
    "key_to_dict",
    "receipt_from_dict",
    "receipt_to_dict",
    "version_from_text",
    "version_to_text",
]

_CONTRACT_KEYS: Final = ("equivalence", "inherit", "tier", "ttl_s", "fence_bound_ms")


def version_to_text(version: Version) -> str:
    """``term.epoch``."""
    return str(version)


def version_from_text(text: object, *, field: str = "version") -> Version:
    """Read ``term.epoch``; anything but a string is refused too."""
    if not isinstance(text, str):
        raise InvalidField(field, text, 'written "term.epoch", for example "1.4"')
    return Version.parse(text, field=field)


def key_to_dict(key: ScopeKey) -> dict[str, Any]:
    """Tenant and scope."""
    return {"tenant": key.tenant, "scope": key.scope}


def key_from_dict(value: object) -> ScopeKey:
    """Read tenant and scope; other keys may stand beside them."""
    fields = Fields(value, "key")
    return ScopeKey(fields.text("tenant"), fields.text("scope"))


def contract_to_dict(contract: Contract) -> dict[str, Any]:
    """As it stands in the body of a SUPERSEDE."""
    return {
        "equivalence": contract.equivalence.value,
        "inherit": contract.inherit.value,
        "tier": contract.tier.value,
        "ttl_s": contract.ttl_s,
        "fence_bound_ms": contract.fence_bound_ms,
    }


def contract_from_dict(value: object) -> Contract:
    """Read the ``contract`` of an HTTP body: every key optional, unknown keys refused."""
    f = Fields({} if value is None else value, "contract")
    f.only(_CONTRACT_KEYS)
    default = Contract()
    ttl_s = f.optional("ttl_s", f.number)
    return Contract(
        f.choice("equivalence", Equivalence) if f.has("equivalence") else default.equivalence,
        f.choice("inherit", Inherit) if f.has("inherit") else default.inherit,
        f.choice("tier", Tier) if f.has("tier") else default.tier,
        default.ttl_s if ttl_s is None else ttl_s,
        f.optional("fence_bound_ms", f.number),
    )


def receipt_to_dict(receipt: Receipt) -> dict[str, Any]:
    """The receipt as RECEIPT_SCHEMA describes it."""
    r = receipt
    gates = [{"gate": g.gate, "outcome": g.outcome.value, "ms": g.ms} for g in r.gates]
    return {
        "schema": RECEIPT_SCHEMA_NUMBER,
        **key_to_dict(r.key),
        "from_version": str(r.from_version),
        "to_version": str(r.to_version),
        "stages_ms": dict(r.stages_ms),
        "gates": gates,
        "participants": [asdict(p) for p in r.participants],
        "requests": [asdict(q) for q in r.requests],
        "residual_ms": r.residual_ms,
        "fence": {**asdict(r.fence), "branch": r.fence.branch.value} if r.fence else None,
        "frontier_tokens": r.frontier_tokens,
        "inheritable_tokens": r.inheritable_tokens,
        "certified_tokens": r.certified_tokens,
        "first_difference": r.first_difference,
        "stop_reason": r.stop_reason.value if r.stop_reason else None,
        "pin": {**asdict(r.pin), "tier": r.pin.tier.value} if r.pin else None,
        "successor_request_id": r.successor_request_id,
        "error": r.error,
        "trace_id": r.trace_id,
        "replayed": r.replayed,
        "extra": dict(r.extra),
    }


def receipt_from_dict(value: object) -> Receipt:
    """Read a receipt; keys that this version does not know are ignored, so that it can grow."""
    f = Fields(value, "receipt")
    _check_schema(f, RECEIPT_SCHEMA_NUMBER)
    stages = f.object("stages_ms")
    return Receipt(
        key=ScopeKey(f.text("tenant"), f.text("scope")),
        from_version=f.version("from_version"),
        to_version=f.version("to_version"),
        stages_ms={name: stages.number(name) for name in f.plain("stages_ms")},
        gates=tuple(_gate(g) for g in f.objects("gates")),
        participants=tuple(_participant(p) for p in f.objects("participants")),
        requests=tuple(_request(q) for q in f.objects("requests")),
        residual_ms=f.optional("residual_ms", f.number),
        fence=_fence(f.object("fence")) if f.has("fence") else None,
        frontier_tokens=f.integer("frontier_tokens"),
        inheritable_tokens=f.integer("inheritable_tokens"),
        certified_tokens=f.integer("certified_tokens"),
        first_difference=f.optional("first_difference", f.integer),
        stop_reason=f.choice("stop_reason", StopReason) if f.has("stop_reason") else None,
        pin=_pin(f.object("pin")) if f.has("pin") else None,
        successor_request_id=f.optional("successor_request_id", f.text),
        error=f.optional("error", f.plain),
        trace_id=f.optional("trace_id", f.text),
        replayed=f.flag("replayed"),
        extra=f.plain("extra"),
    )


def certificate_to_dict(certificate: Certificate) -> dict[str, Any]:
    """Digests in hexadecimal."""
    c = certificate
    return {
        "schema": CERTIFICATE_SCHEMA_NUMBER,
        **key_to_dict(c.key),
        "from_version": str(c.from_version),
        "to_version": str(c.to_version),
        "generation": c.generation,
        "fingerprint": c.fingerprint,
        "numerical_mode": c.numerical_mode,
        "tokens": c.tokens,
        "token_digest": c.token_digest.hex(),
        "blocks": [list(group) for group in c.blocks],
        "participants": [asdict(p) for p in c.participants],
        "expires_ns": c.expires_ns,
        "signature": c.signature.hex(),
    }


def certificate_from_dict(value: object) -> Certificate:
    """Read a certificate. Reading proves nothing: ``certificates.verify`` does."""
    f = Fields(value, "certificate")
    _check_schema(f, CERTIFICATE_SCHEMA_NUMBER)
    return Certificate(
        key=ScopeKey(f.text("tenant"), f.text("scope")),
        from_version=f.version("from_version"),
        to_version=f.version("to_version"),
        generation=f.integer("generation"),
        fingerprint=f.text("fingerprint"),
        numerical_mode=f.text("numerical_mode"),
        tokens=f.integer("tokens"),
        token_digest=_hex(f, "token_digest"),
        blocks=tuple(_block_ids(f, group) for group in f.items("blocks")),
        participants=tuple(_participant(p) for p in f.objects("participants")),
        expires_ns=f.integer("expires_ns"),
        signature=_hex(f, "signature"),
    )


def _check_schema(f: Fields, number: int) -> None:
    if f.integer("schema") != number:
        raise f.bad("schema", f"{number}, the only form this version reads")


def _gate(f: Fields) -> GateResult:
    return GateResult(f.text("gate"), f.choice("outcome", GateOutcome), f.number("ms"))


def _participant(f: Fields) -> Participant:
    return Participant(
        node=f.text("node"),
        boot_id=f.text("boot_id"),
        pp_rank=f.integer("pp_rank"),
        tp_rank=f.integer("tp_rank"),
        kv_group=f.integer("kv_group"),
        frontier_tokens=f.integer("frontier_tokens"),
        closed=f.flag("closed"),
    )


def _request(f: Fields) -> RetiredRequest:
    return RetiredRequest(
        f.text("request_id"),
        f.text("state"),
        f.integer("prompt_tokens"),
        f.integer("frontier_tokens"),
        f.optional("last_published_index", f.integer),
    )


def _fence(f: Fields) -> Fence:
    return Fence(f.choice("branch", FenceBranch), f.optional("predicted_ms", f.number))


def _pin(f: Fields) -> PinLease:
    return PinLease(
        f.integer("blocks"),
        f.choice("tier", Tier),
        f.number("expires_s"),
        f.optional("quota_left", f.integer),
    )


def _hex(f: Fields, name: str) -> bytes:
    try:
        return bytes.fromhex(f.text(name))
    except ValueError:
        raise f.bad(name, "hexadecimal digits") from None


def _block_ids(f: Fields, group: object) -> tuple[int, ...]:
    if isinstance(group, list | tuple):
        ids = cast("Sequence[Any]", group)
        if all(type(i) is int and i >= 0 for i in ids):
            return tuple(ids)
    raise f.bad("blocks", "lists of block ids, one list a KV group")

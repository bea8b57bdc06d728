"""A ServingScope as the API server holds it, read into typed values. Pure.

Owns the names of the object (group, finalizer, annotations). The CRD's schema has refused most bad
values; what gets past it is refused here, naming the field. Must never do IO.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar

from retire.protocol.contract import Contract, Equivalence, Inherit, Policy, Tier
from retire.protocol.errors import InvalidField
from retire.protocol.versions import EPOCH_MAX, ScopeKey

E = TypeVar("E", bound=Enum)

GROUP: Final = "serving.retire.dev"
API_VERSION: Final = "v1alpha1"
PLURAL: Final = "servingscopes"
KIND: Final = "ServingScope"
FINALIZER: Final = "serving.retire.dev/retire"
TRACEPARENT: Final = "serving.retire.dev/traceparent"
TENANTS: Final = "serving.retire.dev/tenants"  # on the Namespace
POOL_LABEL: Final = "serving.retire.dev/pool"
POOL_DEFAULT: Final = "default"
CONTEXT_KEY: Final = "context"


class Source(Enum):
    """Where a revised context comes from."""

    INLINE = "inline"
    CONFIG_MAP = "configMapRef"
    SECRET = "secretRef"


@dataclass(frozen=True, slots=True)
class ContextSource:
    """``spec.context``: the text itself, or where it is."""

    source: Source
    name: str = ""  # of the ConfigMap or Secret
    key: str = CONTEXT_KEY
    inline_json: str = ""  # {"messages": ...} or {"prompt": ...}
    model: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Namespace and name of a ServingScope."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Desired:
    """What the object's author wants; defaults applied."""

    ref: Ref
    uid: str
    generation: int
    created_at: str  # RFC 3339, as written
    key: ScopeKey  # the tenant and the name of the scope
    pool: str = POOL_DEFAULT
    epoch: int = 0
    contract: Contract = field(default_factory=Contract)
    policy: Policy | None = None
    parent: str | None = None  # a ServingScope of the same namespace
    context: ContextSource | None = None
    quota_blocks: int | None = None  # None: asks for nothing
    paused: bool = False
    cancelled: bool = False
    deleted_at_s: float | None = None  # Unix time; None: not being deleted
    has_finalizer: bool = False
    traceparent: str = ""

    @property
    def foreign_tenant(self) -> bool:
        """The namespace's own tenant needs no permission."""
        return self.key.tenant != self.ref.namespace


def ref_of(body: Mapping[str, Any]) -> Ref:
    """Which object this is."""
    return Ref(body["metadata"]["namespace"], body["metadata"]["name"])


def parse(body: Mapping[str, Any]) -> Desired:
    """Read the object; InvalidField names what is wrong with it."""
    meta, spec = body["metadata"], _mapping(body.get("spec"), "spec")
    ref = ref_of(body)
    tenant = _text(spec, "tenant", "spec.tenant") or ref.namespace
    pool = _mapping(spec.get("poolRef"), "spec.poolRef")
    quota = _mapping(spec.get("quota"), "spec.quota")
    return Desired(
        ref=ref,
        uid=meta["uid"],
        generation=int(meta.get("generation") or 0),
        created_at=str(meta.get("creationTimestamp") or ""),
        key=ScopeKey(tenant, ref.name),
        pool=_text(pool, "name", "spec.poolRef.name") or POOL_DEFAULT,
        epoch=_integer(spec, "epoch", "spec.epoch", default=0, high=EPOCH_MAX),
        contract=_contract(_mapping(spec.get("contract"), "spec.contract")),
        policy=_member(spec, "onNewInput", "spec.onNewInput", Policy),
        parent=_parent(spec, ref),
        context=_context(spec),
        quota_blocks=(
            _integer(quota, "pinnedBlocks", "spec.quota.pinnedBlocks", default=0, high=2**31)
            if quota
            else None
        ),
        paused=_flag(spec, "paused"),
        cancelled=_flag(spec, "cancelled"),
        deleted_at_s=_unix_s(meta.get("deletionTimestamp")),
        has_finalizer=FINALIZER in (meta.get("finalizers") or ()),
        traceparent=str((meta.get("annotations") or {}).get(TRACEPARENT) or ""),
    )


def _contract(spec: Mapping[str, Any]) -> Contract:
    """``spec.contract`` in the words of the protocol."""
    retention = _mapping(spec.get("retention"), "spec.contract.retention")
    default = Contract()
    at = "spec.contract"
    tier = _member(retention, "tier", f"{at}.retention.tier", Tier)
    ttl_s = retention.get("ttlSeconds", default.ttl_s)
    bound_ms = spec.get("fenceBoundMs")
    return Contract(
        equivalence=_member(spec, "equivalence", f"{at}.equivalence", Equivalence)
        or default.equivalence,
        inherit=_member(spec, "inherit", f"{at}.inherit", Inherit) or default.inherit,
        tier=tier or default.tier,
        ttl_s=_number(ttl_s, f"{at}.retention.ttlSeconds"),
        fence_bound_ms=None if bound_ms is None else _number(bound_ms, f"{at}.fenceBoundMs"),
    )


def _parent(spec: Mapping[str, Any], ref: Ref) -> str | None:
    parent = _mapping(spec.get("parentRef"), "spec.parentRef")
    name = _text(parent, "name", "spec.parentRef.name")
    if name == ref.name:
        raise InvalidField("spec.parentRef.name", name, "another ServingScope than this one")
    return name


def _context(spec: Mapping[str, Any]) -> ContextSource | None:
    context = _mapping(spec.get("context"), "spec.context")
    if not context:
        return None
    given = [source for source in Source if context.get(source.value) is not None]
    if len(given) != 1:
        words = ", ".join(source.value for source in Source)
        raise InvalidField("spec.context", sorted(context), f"exactly one of {words}")
    source = given[0]
    model = _text(context, "model", "spec.context.model")
    body = _mapping(context[source.value], f"spec.context.{source.value}")
    if source is Source.INLINE:
        text = json.dumps(dict(body), sort_keys=True, ensure_ascii=False)
        return ContextSource(source, inline_json=text, model=model)
    name = _text(body, "name", f"spec.context.{source.value}.name")
    if not name:
        raise InvalidField(f"spec.context.{source.value}.name", name, "the name of an object")
    key = _text(body, "key", f"spec.context.{source.value}.key") or CONTEXT_KEY
    return ContextSource(source, name=name, key=key, model=model)


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidField(field, value, "an object")
    return value


def _text(body: Mapping[str, Any], name: str, field: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidField(field, value, "a string")
    return value or None


def _flag(spec: Mapping[str, Any], name: str) -> bool:
    value = spec.get(name, False)
    if not isinstance(value, bool):
        raise InvalidField(f"spec.{name}", value, "true or false")
    return value


def _integer(body: Mapping[str, Any], name: str, field: str, *, default: int, high: int) -> int:
    value = body.get(name, default)
    if type(value) is not int or not 0 <= value <= high:
        raise InvalidField(field, value, f"an integer in 0..{high}")
    return value


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidField(field, value, "a number")
    return float(value)


def _member(body: Mapping[str, Any], name: str, field: str, kind: type[E]) -> E | None:
    value = body.get(name)
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(member.value for member in kind)
        raise InvalidField(field, value, f"one of {words}") from None


def _unix_s(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None

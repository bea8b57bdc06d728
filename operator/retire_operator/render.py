"""From facts and a verdict to ``status``. Pure; what is not known is left out, never invented."""

from __future__ import annotations

from typing import Any, Final

from retire.protocol.errors import InvalidField
from retire_operator import actions as do
from retire_operator import receipts
from retire_operator.conditions import Finding, State, Type, find, merged
from retire_operator.decide import judge
from retire_operator.facts import Context, Facts, Missing, Record
from retire_operator.verdicts import Phase, Plan, Verdict

PARTICIPANTS_MAX: Final = 256
_MANAGED: Final = (
    *("observedGeneration", "tenant", "version", "term", "epoch", "phase", "traceId"),
    *("inheritedTokens", "pinnedBlocks", "participants", "receipts", "prewarm", "conditions"),
)


def decide(facts: Facts, now_s: float) -> Plan:
    """The plan: what to do next, and the status as of now."""
    verdict = judge(facts, now_s)
    return Plan(verdict.actions, status(facts, verdict, now_s), verdict)


def invalid(error: InvalidField, raw: dict[str, Any], *, generation: int, now_s: float) -> Plan:
    """The plan for an object that cannot be read: say so, wait for another one."""
    verdict = Verdict(Phase.BLOCKED, State.FALSE, "InvalidSpec", str(error))
    finding = Finding(Type.READY, verdict.state, verdict.reason, verdict.message)
    old = raw.get("conditions") or []
    rows = merged(old, [finding], generation=generation, now_s=now_s)
    body = {**raw, "phase": verdict.phase.value, "conditions": rows}
    return Plan((), {**body, "observedGeneration": generation}, verdict)


def status(facts: Facts, verdict: Verdict, now_s: float) -> dict[str, Any]:
    """The whole status; what it had and this operator does not manage is kept."""
    old, desired = facts.seen.raw, facts.desired
    lines = receipts.merged(receipts.from_status(old.get("receipts") or ()), facts.lines)
    moved = next((line for line in lines if line.moves), None) if _ours(facts) else None
    body: dict[str, Any] = {name: value for name, value in old.items() if name not in _MANAGED}
    body |= {
        "observedGeneration": desired.generation,
        "tenant": desired.key.tenant,
        "phase": verdict.phase.value,
        "conditions": merged(
            old.get("conditions") or (),
            _findings(facts, verdict, moved),
            generation=desired.generation,
            now_s=now_s,
        ),
    }
    ours = _ours(facts)
    body |= _version(facts) | (_participants(facts) if ours else {})
    if lines and ours:
        body["receipts"] = [receipts.to_status(line) for line in lines]
        traced = next((line.trace_id for line in lines if line.trace_id), None)
        if traced:
            body["traceId"] = traced
    if moved is not None and ours:
        body["inheritedTokens"] = moved.certified_tokens or 0
    if old.get("prewarm"):
        body["prewarm"] = old["prewarm"]
    return body


def _ours(facts: Facts) -> bool:
    """Of a scope that is not this object's nothing is told: it may be another tenant's."""
    return facts.tenant_allowed and not facts.taken_by


def _version(facts: Facts) -> dict[str, Any]:
    """The higher of what is known: a status never goes back."""
    known = facts.seen.version
    record = facts.record.version if _ours(facts) and isinstance(facts.record, Record) else None
    version = max((v for v in (known, record) if v is not None), default=None)
    if version is None:
        return {}
    return {"version": str(version), "term": version.term, "epoch": version.epoch}


def _participants(facts: Facts) -> dict[str, Any]:
    holders = sorted((n for n in facts.nodes if n.holds), key=lambda n: n.name)[:PARTICIPANTS_MAX]
    rows = []
    for node in holders:
        row: dict[str, Any] = {"node": node.name, "ready": True}
        row |= {"bootId": node.boot_id} if node.boot_id else {}
        row |= {"version": str(node.version)} if node.version else {}
        rows.append(row | {"requests": node.requests, "pinnedBlocks": node.pinned_blocks})
    return {"participants": rows, "pinnedBlocks": sum(node.pinned_blocks for node in holders)}


def _findings(facts: Facts, verdict: Verdict, moved: receipts.Line | None) -> list[Finding]:
    return [
        Finding(Type.READY, verdict.state, verdict.reason, verdict.message),
        _fenced(moved, verdict),
        _certified(moved),
        _admitted(facts, moved),
        _reclaimed(facts),
        _synced(facts),
        _quota(facts),
    ]


def _fenced(moved: receipts.Line | None, verdict: Verdict) -> Finding:
    if any(isinstance(action, (do.Supersede, do.Cancel)) for action in verdict.actions):
        return Finding(Type.FENCED, State.UNKNOWN, "InProgress", verdict.message)
    if moved is None:
        return Finding(Type.FENCED, State.TRUE, "NothingRetired", "no version was retired yet")
    if moved.fence_ms is None:
        told = f"{moved.to_version}: no receipt of the fence has come"
        return Finding(Type.FENCED, State.UNKNOWN, "NoReceipt", told)
    residual = "" if moved.residual_ms is None else f", {moved.residual_ms:g} ms of old work"
    told = f"{moved.to_version}: fenced after {moved.fence_ms:g} ms{residual}"
    return Finding(Type.FENCED, State.TRUE, "Fenced", told)


def _certified(moved: receipts.Line | None) -> Finding:
    kind = Type.PREFIX_CERTIFIED
    if moved is None:
        return Finding(kind, State.UNKNOWN, "NoTransition", "no version was retired yet")
    if moved.certified_tokens:
        told = f"{moved.to_version}: {moved.certified_tokens} tokens certified"
        return Finding(kind, State.TRUE, "Certified", told)
    if moved.stopped_by is None:
        told = f"{moved.to_version}: no successor has come yet"
        return Finding(kind, State.UNKNOWN, "NoSuccessor", told)
    return Finding(
        kind, State.FALSE, _camel(moved.stopped_by), f"{moved.to_version}: nothing inherited"
    )


def _admitted(facts: Facts, moved: receipts.Line | None) -> Finding:
    kind, context = Type.SUCCESSOR_ADMITTED, facts.context
    if isinstance(context, Missing):
        return Finding(kind, State.FALSE, context.reason, context.message)
    if isinstance(context, Context) and isinstance(facts.record, Record):
        return _prewarmed(facts, context, facts.record)
    if moved is not None and moved.stopped_by is not None:
        return Finding(kind, State.TRUE, "Admitted", f"{moved.to_version}: the successor runs")
    return Finding(kind, State.UNKNOWN, "NoContext", "spec.context is absent: nothing to pre-warm")


def _prewarmed(facts: Facts, context: Context, record: Record) -> Finding:
    kind = Type.SUCCESSOR_ADMITTED
    if facts.seen.warmed == (str(record.version), context.digest):
        prewarm = facts.seen.raw["prewarm"]
        told = (
            f"{record.version}: {prewarm.get('promptTokens', 0)} tokens of the context computed, "
            f"{prewarm.get('cachedTokens', 0)} of them were there"
        )
        return Finding(kind, State.TRUE, "Warmed", told)
    if record.cancelled:
        return Finding(kind, State.FALSE, "Cancelled", "a cancelled scope has no successor")
    if record.paused:
        return Finding(kind, State.FALSE, "Paused", "a paused scope takes no new work")
    if facts.failure is not None and facts.failure.action == "Warm":
        return Finding(kind, State.FALSE, facts.failure.reason, facts.failure.message)
    return Finding(kind, State.UNKNOWN, "Pending", "the context has not been computed yet")


def _reclaimed(facts: Facts) -> Finding:
    pinned = sum(node.pinned_blocks for node in facts.nodes if node.holds)
    if pinned:
        told = f"{pinned} KV blocks wait for a successor"
        return Finding(Type.RECLAIMED, State.FALSE, "PrefixPinned", told)
    return Finding(Type.RECLAIMED, State.TRUE, "NothingPinned", "no KV block is kept")


def _synced(facts: Facts) -> Finding:
    registry = facts.registry
    state = State.TRUE if registry.synced else State.FALSE
    reason = registry.reason or ("Synced" if registry.synced else "RegistryNotSynced")
    return Finding(Type.REGISTRY_SYNCED, state, reason, registry.message)


def _quota(facts: Facts) -> Finding:
    kind, quota = Type.QUOTA_AVAILABLE, facts.quota
    if facts.desired.quota_blocks is None:
        return Finding(kind, State.TRUE, "NotRequested", "spec.quota is absent")
    if quota is None:
        return Finding(kind, State.UNKNOWN, "Pending", "not settled yet")
    left = "" if quota.left is None else f"{quota.left} blocks left"
    if quota.granted:
        return Finding(kind, State.TRUE, "Granted", quota.message or left)
    return Finding(kind, State.FALSE, "QuotaExceeded", quota.message)


def _camel(words: str) -> str:
    return "".join(part.capitalize() for part in words.replace("-", "_").split("_"))


def ready_of(body: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of the Ready condition of a status; empty: there is none."""
    row = find(body.get("conditions") or (), Type.READY) or {}
    return str(row.get("status") or ""), str(row.get("reason") or "")

"""What Inspect, List and Status show: messages made from the tables. Pure; must never ask
anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retire.protocol.events import Admission
from retire.sidecar import convert
from retire.sidecar.pb import node_pb2 as pb

if TYPE_CHECKING:
    from retire.registry.interface import ScopeRecord
    from retire.sidecar.links import Link
    from retire.sidecar.parts import Parts
    from retire.sidecar.scopes import Entry


def scope_view(entry: Entry, *, node: str) -> pb.ScopeView:
    """A joined scope, from memory."""
    state = entry.state
    assert state.version is not None
    return pb.ScopeView(
        key=convert.key_to(state.key),
        version=convert.version_to(state.version),
        phase=state.phase.value,
        paused=state.admission is Admission.PAUSED,
        cancelled=state.admission is Admission.CANCELLED,
        nodes=(node,),
        policy=convert.policy_to(entry.policy),
        parent=entry.parent or "",
        generation=state.generation,
        receipts_json=[receipt.json for receipt in entry.receipts or ()],
    )


def live_view(view: pb.ScopeView, replies: list[pb.InspectReply]) -> pb.ScopeView:
    """The same with what the API processes answered. Pins are the engine's: processes agree on
    them.
    """
    for reply in replies:
        view.requests.extend(reply.requests)
        view.pinned_blocks = max(view.pinned_blocks, reply.pinned_blocks)
    return view


def status_reply(parts: Parts) -> pb.StatusReply:
    """The node now."""
    ports, lease = parts.ports, parts.lease
    reason = not_ready_reason(parts)
    word = "held" if lease.held else "unreachable" if lease.unreachable else "expired"
    return pb.StatusReply(
        node=ports.identity.node,
        boot_id=ports.identity.boot_id,
        term=ports.identity.term,
        incarnation=parts.tenants.incarnation,
        lease=word,
        lease_left_ms=max(0.0, lease.left_ms),
        gates=len(ports.links),
        scopes=len(ports.scopes),
        slots_free=ports.scopes.free_count,
        ready=not reason,
        not_ready_reason=reason,
        publish_lease_s=ports.settings.lease_s,
        sequences=parts.rebuild.sequences(),
        registry_lost=parts.rebuild.why_lost,
        engines=[_engine(boot_id, links) for boot_id, links in ports.links.engines().items()],
    )


def recorded_view(record: ScopeRecord) -> pb.ScopeView:
    """A scope no gate of this node holds, as the registry has it."""
    phase = "cancelled" if record.cancelled else "paused" if record.paused else "current"
    return pb.ScopeView(
        key=convert.key_to(record.key),
        version=convert.version_to(record.version),
        phase=phase,
        paused=record.paused,
        cancelled=record.cancelled,
        nodes=record.nodes,
        policy=convert.policy_to(record.policy),
        parent=record.parent or "",
        generation=record.generation,
    )


def _engine(boot_id: str, links: list[Link]) -> pb.EngineView:
    """Processes of one engine say the same of it; the newest is asked."""
    hello = links[-1].hello
    return pb.EngineView(
        engine_boot_id=boot_id,
        model=hello.model,
        fingerprint=hello.fingerprint,
        block_size=hello.block_size,
        num_blocks=hello.num_blocks,
        gates=len(links),
    )


def not_ready_reason(parts: Parts) -> str:
    """Empty when the node may serve: its lease is held and an API process is attached."""
    if parts.rebuild.running:
        waiting = parts.rebuild.waiting or parts.lease.trouble or "joining scopes"
        return f"entering the registry: {waiting}"
    if not parts.lease.held:
        return f"no publish lease: {parts.lease.trouble or 'catching up with the registry'}"
    return parts.ports.links.not_ready_reason()

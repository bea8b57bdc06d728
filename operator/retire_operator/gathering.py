"""What the guard knows besides the registry: CR status and what the nodes answer.

Reads and converts; must never decide, and never write anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from retire.protocol.contract import Policy
from retire.protocol.errors import InvalidField, RetireError
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry.logs import fields
from retire_operator.rebuild import Facts, NodeFact, ScopeFact

_log = logging.getLogger("retire.operator.registry")
ANSWER_S: Final = 2.0  # a node that does not answer in time is one that cannot be reached
LIST_S: Final = 10.0  # its inventory may be large
_PAUSED, _CANCELLED = "Paused", "Cancelled"
_POLICIES: Final = {policy.value for policy in Policy}


class NodePort(Protocol):
    """What is asked of a sidecar (retire.sidecar.client.NodeClient)."""

    async def status(self) -> pb.StatusReply: ...  # noqa: D102
    async def list(self, tenant: str = "") -> list[pb.ScopeView]: ...  # noqa: D102


class PoolNode(Protocol):
    """A node of the pool; a sidecar is asked whether or not its pod is ready, because a lost
    registry is what makes it unready."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def client(self) -> NodePort: ...  # noqa: D102


class Gatherer:
    """Asks everybody side by side. ``bodies`` are the ServingScopes of all namespaces."""

    def __init__(
        self,
        bodies: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
        nodes: Callable[[], Iterable[PoolNode]],
        *,
        answer_s: float = ANSWER_S,
        list_s: float = LIST_S,
    ) -> None:
        self._bodies = bodies
        self._nodes = nodes
        self._answer_s = answer_s
        self._list_s = list_s

    async def nodes(self) -> Facts:
        """What the nodes say of themselves: cheap."""
        answers = await asyncio.gather(*(self._status(node) for node in self._nodes()))
        return Facts(nodes=tuple(fact for fact in answers if fact is not None))

    async def known(self) -> Facts:
        """The same, and CR status."""
        crs, facts = await asyncio.gather(self._crs(), self.nodes())
        return Facts(crs=crs, nodes=facts.nodes)

    async def everything(self) -> Facts:
        """The same, and every node's inventory."""
        crs, answers = await asyncio.gather(
            self._crs(), asyncio.gather(*(self._inventory(node) for node in self._nodes()))
        )
        return Facts(crs=crs, nodes=tuple(fact for fact in answers if fact is not None))

    async def _crs(self) -> tuple[ScopeFact, ...]:
        found = (cr_fact(body) for body in await self._bodies())
        return tuple(fact for fact in found if fact is not None)

    async def _status(self, node: PoolNode) -> NodeFact | None:
        reply = await _answer(node.client.status(), self._answer_s, node=node.name)
        return None if reply is None else node_fact(reply, (), name=node.name)

    async def _inventory(self, node: PoolNode) -> NodeFact | None:
        views = await _answer(node.client.list(), self._list_s, node=node.name)
        # Asked last: its sequences then cover every version that the list shows.
        reply = await _answer(node.client.status(), self._answer_s, node=node.name)
        return None if reply is None else node_fact(reply, views or (), name=node.name)


async def _answer(call: Awaitable[Any], limit_s: float, *, node: str) -> Any:
    try:
        return await asyncio.wait_for(call, limit_s)
    except (RetireError, TimeoutError) as error:
        _log.info("node cannot be asked", extra=fields(node=node, why=error or "no answer"))
        return None


def node_fact(reply: pb.StatusReply, views: Iterable[pb.ScopeView], *, name: str) -> NodeFact:
    """A node's Status and List as facts."""
    scopes = (view_fact(view, node=name) for view in views)
    return NodeFact(
        name=name,
        term=reply.term,
        entered=reply.lease == "held" and not reply.registry_lost,
        registry_lost=reply.registry_lost,
        publish_lease_s=reply.publish_lease_s,
        sequences=dict(reply.sequences),
        scopes=tuple(fact for fact in scopes if fact is not None),
    )


def view_fact(view: pb.ScopeView, *, node: str) -> ScopeFact | None:
    """One scope of a node's List; None when it cannot be read."""
    try:
        return ScopeFact(
            key=ScopeKey(view.key.tenant, view.key.scope),
            version=Version(view.version.term, view.version.epoch),
            generation=view.generation,
            paused=view.paused,
            cancelled=view.cancelled,
            policy=Policy(view.policy) if view.policy else None,
            parent=view.parent or None,
            nodes=() if view.cancelled else (node,),
        )
    except (InvalidField, ValueError) as error:
        _log.error("node lists a malformed scope", extra=fields(node=node, why=error))
        return None


def cr_fact(body: Mapping[str, Any]) -> ScopeFact | None:
    """A ServingScope that the operator once accepted; None when it never did.

    One without a version says nothing: a namespace must not end another tenant's scope by naming
    it. ``spec.cancelled`` is final, so it counts although its commit may have been lost.
    """
    status = body.get("status") or {}
    if not status.get("version"):
        return None
    meta, spec = body.get("metadata") or {}, body.get("spec") or {}
    try:
        key = ScopeKey(spec.get("tenant") or meta["namespace"], meta["name"])
        version = Version.parse(str(status["version"]), field="status.version")
    except (InvalidField, KeyError) as error:
        _log.error("ServingScope cannot be read", extra=fields(why=error, name=meta.get("name")))
        return None
    kinds = {receipt.get("kind") for receipt in status.get("receipts") or ()}
    policy = spec.get("onNewInput")
    return ScopeFact(
        key=key,
        version=version,
        paused=bool(spec.get("paused")) or status.get("phase") == _PAUSED,
        cancelled=bool(spec.get("cancelled"))
        or status.get("phase") == _CANCELLED
        or "cancel" in kinds,
        policy=Policy(policy) if policy in _POLICIES else None,
        parent=(spec.get("parentRef") or {}).get("name"),
        declared=True,
    )

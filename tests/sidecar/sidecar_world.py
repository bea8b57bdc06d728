"""Nodes of the sidecar tests (``e2e.sidecar_nodes``), one with planted faults, and stories."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from e2e import sidecar_nodes
from e2e.sidecar_nodes import Gate, eventually
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar import convert
from retire.sidecar.client import Joined, Mutation, NodeClient
from retire.sidecar.pb import node_pb2 as pb

__all__ = ["LEASE_S", "Gate", "Sidecar", "Story", "collected", "eventually"]

LEASE_S = 2.0


class Sidecar(sidecar_nodes.Sidecar):
    """One that can be started with a planted fault."""

    def program(self) -> list[str]:
        if "RETIRE_TEST_STALL" in self.env:
            return [str(Path(__file__).with_name("sidecar_planted.py"))]
        return super().program()


class Story:
    """Supersedes of one scope, with fresh idempotency keys."""

    def __init__(self, client: NodeClient, key: ScopeKey) -> None:
        self.client, self.key = client, key
        self.joined: Joined | None = None
        self._count = 0

    def mutation(self, expected: Version, **fields: Any) -> Mutation:
        self._count += 1
        fields.setdefault("idempotency_key", f"{self.key.scope}-{self._count}-{time.time_ns()}")
        return Mutation(expected, **fields)

    async def join(self) -> Joined:
        self.joined = await self.client.join(self.key)
        return self.joined

    def events(
        self, expected: Version, *, driver: bool = False, **fields: Any
    ) -> AsyncIterator[pb.TransitionEvent]:
        return self.client.supersede(self.key, self.mutation(expected, **fields), driver=driver)

    async def supersede(self, expected: Version, **fields: Any) -> Superseded:
        return await collected(self.events(expected, **fields))


class Superseded:
    """The three answers of one Supersede and when each came."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.at_s: dict[str, float] = {}
        self.committed = pb.Committed()
        self.unpublishable = pb.Unpublishable()
        self.fenced = pb.Fenced()

    @property
    def to(self) -> Version:
        return convert.version_from(self.committed.to)

    @property
    def outcomes(self) -> dict[str, str]:
        return {gate.gate: gate.outcome for gate in self.unpublishable.gates}

    def took_s(self, event: str) -> float:
        return self.at_s[event] - self.began_s

    def add(self, event: pb.TransitionEvent) -> None:
        kind = event.WhichOneof("event")
        assert kind is not None
        self.at_s[kind] = time.monotonic()
        setattr_message = getattr(self, kind)
        setattr_message.CopyFrom(getattr(event, kind))


async def collected(events: AsyncIterator[pb.TransitionEvent]) -> Superseded:
    answers = Superseded()
    async for event in events:
        answers.add(event)
    return answers

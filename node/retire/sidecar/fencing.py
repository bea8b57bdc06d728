"""Asks this node's engines to fence, and reads their receipts. One ask per engine, by any process.

Must never decide what a missing receipt means: the caller's timer does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from google.protobuf import json_format

from retire.sidecar import convert
from retire.sidecar.links import LinkLost
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from retire.protocol.contract import Contract
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.links import Link, Links

_log = logging.getLogger(names.LOGGER_SIDECAR)


class FenceFailed(Exception):
    """An engine did not give its receipt; its writers may be open."""


class Fencing:
    """The engines of this node, reached through the API processes attached to them."""

    def __init__(self, links: Links, *, node: str, wait_s: float) -> None:
        self._links = links
        self._node = node
        self._wait_s = wait_s

    async def fence(
        self,
        key: ScopeKey,
        version: Version,
        contract: Contract,
        *,
        terminal: bool,
        trace: str = "",
    ) -> list[pb.Fenced]:
        """Every engine's receipts. Raises FenceFailed unless each engine answered."""
        body = pb.Fence(
            key=convert.key_to(key),
            to=convert.version_to(version),
            contract=convert.contract_to(contract),
            terminal=terminal,
            traceparent=trace,
        )
        engines = self._links.engines().values()
        if not engines:
            raise FenceFailed("the engine's API processes have not attached again")
        fenced = await asyncio.gather(*(self._fence_engine(links, body) for links in engines))
        for part in fenced:
            for participant in part.participants:
                participant.node = participant.node or self._node
        return fenced

    async def _fence_engine(self, links: list[Link], body: pb.Fence) -> pb.Fenced:
        """Through the first process that answers: any API process reaches its engine."""
        for link in links:
            try:
                command = pb.GateCommand(fence=body)
                report = await self._links.ask(link, command, timeout_s=self._wait_s)
            except LinkLost:
                continue
            except TimeoutError as error:
                raise FenceFailed(f"no receipt within {self._wait_s:g} s") from error
            if report.fence.error:
                _log.warning("engine refused to fence", extra=fields(error=report.fence.error))
                raise FenceFailed(report.fence.error)
            return report.fence.fenced
        raise FenceFailed("every API process of the engine detached")


def payload(fenced: pb.Fenced) -> str:
    """Receipts as the JSON that a node's ack carries to the committer."""
    return json_format.MessageToJson(fenced, indent=None)


def from_payload(text: str) -> pb.Fenced:
    """The receipts of another node; fields this version does not know are ignored."""
    return json_format.Parse(text, pb.Fenced(), ignore_unknown_fields=True)


async def inspect(links: Links, key: ScopeKey, *, wait_s: float) -> list[pb.InspectReply]:
    """Live requests and pins of a scope: every process knows its own requests.

    A process that does not answer in time is left out: what it holds is unknown, not nothing.
    """
    command = pb.Inspect(key=convert.key_to(key))
    asked = (
        links.ask(link, pb.GateCommand(inspect=command), timeout_s=wait_s) for link in tuple(links)
    )
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [answer.inspect for answer in answers if isinstance(answer, pb.GateReport)]


async def live_scopes(links: Links, keys: list[ScopeKey], *, wait_s: float) -> set[ScopeKey]:
    """Those of ``keys`` that have a live request somewhere on this node, or where nobody can
    tell.
    """
    live: set[ScopeKey] = set()
    for key in keys:
        replies = await inspect(links, key, wait_s=wait_s)
        if len(replies) < len(links) or any(reply.requests for reply in replies):
            live.add(key)
    return live

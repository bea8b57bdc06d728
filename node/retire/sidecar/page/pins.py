"""Pins by tenant: what the engines' ledgers hold, beside what the tenant may hold on this node.

Asks the engines about scopes whose last receipt left a pin, at most once every two seconds however
many look. Must never count blocks itself.
"""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from retire.sidecar import convert
from retire.sidecar.fencing import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.protocol.versions import ScopeKey
    from retire.sidecar.parts import Parts
    from retire.sidecar.pb import node_pb2 as pb

ANSWER_S: Final = 2.0  # an answer is used again this long
ASKED_MAX: Final = 32  # scopes asked about for one answer
_SCANNED_MAX: Final = 512  # newest records looked at: pins are short leases


class Pins:
    """Pinned blocks of this node, by tenant."""

    def __init__(self, parts: Parts, *, wall_s: Callable[[], float]) -> None:
        self._parts = parts
        self._wall_s = wall_s
        self._until_s = 0.0
        self._known: list[dict[str, Any]] = []
        self._asking = asyncio.Lock()

    async def by_tenant(self, tenant: str) -> list[dict[str, Any]]:
        """``{tenant, granted_blocks, pinned_blocks, scopes}`` each; "" is every tenant.

        ``granted_blocks`` None: no quota.
        """
        async with self._asking:
            if self._wall_s() >= self._until_s:
                self._known = await self._ask()
                self._until_s = self._wall_s() + ANSWER_S
        return [one for one in self._known if tenant in ("", one["tenant"])]

    async def _ask(self) -> list[dict[str, Any]]:
        keys = self._pinned_scopes()
        answers = await asyncio.gather(*(self._blocks(key) for key in keys))
        held = {key: blocks for key, blocks in zip(keys, answers, strict=True) if blocks}
        granted = self._parts.quotas.granted
        names = sorted({*granted, *(key.tenant for key in held)})
        return [
            {
                "tenant": name,
                "granted_blocks": granted.get(name),
                "pinned_blocks": sum(n for key, n in held.items() if key.tenant == name),
                "scopes": sum(key.tenant == name for key in held),
            }
            for name in names
        ]

    def _pinned_scopes(self) -> list[ScopeKey]:
        """Scopes whose newest receipt left a lease that still runs."""
        scopes, now_s = self._parts.ports.scopes, self._wall_s()
        records = islice(self._parts.ports.journal.newest_first(), _SCANNED_MAX)
        leases = (lease for record in records if (lease := _lease_of(record, now_s)))
        keys = dict.fromkeys(leases)
        return [key for key in islice(keys, ASKED_MAX) if key in scopes]

    async def _blocks(self, key: ScopeKey) -> int:
        ports = self._parts.ports
        replies = await inspect(ports.links, key, wait_s=min(1.0, ports.settings.fence_wait_s))
        return max((reply.pinned_blocks for reply in replies), default=0)


def _lease_of(record: pb.TransitionRecord, now_s: float) -> ScopeKey | None:
    expires_s = _lease_s(record.receipt_json) if record.receipt_json else 0.0
    if record.at_unix_s + expires_s <= now_s:
        return None
    return convert.key_from(record.key)


@lru_cache(maxsize=2 * _SCANNED_MAX)
def _lease_s(receipt_json: str) -> float:
    """How long the pin of a receipt lasts, from the receipt on; 0: it has none."""
    pin = json.loads(receipt_json).get("pin")
    return float(pin["expires_s"]) if pin and pin["blocks"] else 0.0

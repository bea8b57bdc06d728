"""The sidecar with something wrong planted in it, for negative controls. Never part of the product.

``RETIRE_TEST_STALL=<file>``: while the file exists the tenants' streams deliver nothing (a network
that loses one connection). ``RETIRE_TEST_PLANT=no-catch-up``: renewals are taken as if nothing had
to be applied first.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from retire.protocol import gate
from retire.registry.client import AsyncRegistry
from retire.sidecar import lease
from retire.sidecar import main as sidecar

_STALL = Path(os.environ.get("RETIRE_TEST_STALL", "/nowhere"))
_events = AsyncRegistry.events


async def _stalling(self: AsyncRegistry, tenant: str, *, after: str) -> AsyncIterator[Any]:
    async for event in _events(self, tenant, after=after):
        while _STALL.exists():
            await asyncio.sleep(0.01)
        yield event


def _blind(sent_ns: int, lease_s: float, sequences: Mapping[str, int]) -> gate.Renewed:
    return gate.Renewed(sent_ns, lease_s, dict.fromkeys(sequences, 0))


if __name__ == "__main__":
    AsyncRegistry.events = _stalling
    if os.environ.get("RETIRE_TEST_PLANT") == "no-catch-up":
        lease.gate = SimpleNamespace(**{**vars(gate), "Renewed": _blind})
    sys.exit(sidecar.main([]))

"""SUPERSEDEs of this process, by Idempotency-Key: a repeat is told what the first call is told.

Owns that memory. A repeat that comes later, or to another process, finds the receipt in the
registry. Must never run a successor or touch a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import RetireError

if TYPE_CHECKING:
    from retire.engine.handoff import Handoff
    from retire.protocol.contract import Receipt
    from retire.protocol.versions import ScopeKey

CALLS_MAX: Final = 256


class Repeats:
    """The latest calls, running or done."""

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[ScopeKey, str], list[Handoff]] = OrderedDict()

    def add(self, handoff: Handoff) -> None:
        """A call begins; which one of a key's calls commits is not known yet."""
        self._calls.setdefault(_name(handoff), []).append(handoff)
        while len(self._calls) > CALLS_MAX:
            self._calls.popitem(last=False)

    async def receipt(self, handoff: Handoff) -> Receipt:
        """The receipt of the call that made the change, where it runs here; else the call's own."""
        calls = self._calls.get(_name(handoff), [])
        for other in tuple(calls):
            with contextlib.suppress(RetireError):
                if not (await asyncio.shield(other.committed)).replayed:
                    return await asyncio.shield(other.receipt)
        if handoff in calls:  # a repeat that nobody has to wait for
            calls.remove(handoff)
        return await asyncio.shield(handoff.receipt)


def _name(handoff: Handoff) -> tuple[ScopeKey, str]:
    return handoff.order.key, handoff.order.mutation.idempotency_key

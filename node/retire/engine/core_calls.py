"""What the API process asks of its engine: the ``retire_*`` utilities and aborts, as typed calls.

Owns their wire form (plain values over vLLM's utility channel, ``seams/core.py`` answers). Must
never import vLLM: the engine client is handed in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.codec import contract_to_dict
from retire.telemetry.tracing import OFF, Tracer

if TYPE_CHECKING:
    from retire.protocol.contract import Contract
    from retire.protocol.versions import ScopeKey, Version

EXPECTED_KEPT: Final = 1024
ABORT_AFTER_S: Final = 1.0  # for requests that the scheduler has not retired by itself


class CoreCalls:
    """One engine, reached through vLLM's ``AsyncLLM`` (``engine_client``)."""

    def __init__(self, engine_client: Any, tracer: Tracer = OFF) -> None:
        self._client = engine_client
        self.tracer = tracer  # for spans on the engine's behalf
        self._expected: deque[tuple[ScopeKey, Version]] = deque(maxlen=EXPECTED_KEPT)

    async def hello(self) -> dict[str, Any]:
        """``boot_id, fingerprint, block_size, num_blocks, vllm_version, model``."""
        return await self._call("retire_hello")

    async def fence(
        self, key: ScopeKey, to: Version, *, contract: Contract | None, terminal: bool
    ) -> dict[str, Any]:
        """Stop every writer of the scope below ``to``; answers when they are closed."""
        plain = contract_to_dict(contract) if contract is not None else None
        return await self._call(
            "retire_fence", key.tenant, key.scope, to.term, to.epoch, plain, terminal
        )

    async def expect(self, key: ScopeKey, to: Version) -> dict[str, Any]:
        """What ALIGN decides for the first request of version ``to``; ask before sending it."""
        self._expected.append((key, to))
        return await self.await_successor(key, to)

    def expected(self, key: ScopeKey, to: Version) -> bool:
        """Whether somebody has asked ``expect`` about it, among the last who asked."""
        return (key, to) in self._expected

    async def await_successor(self, key: ScopeKey, to: Version) -> dict[str, Any]:
        """The same for whoever sends no successor: it may never come."""
        return await self._call("retire_expect", key.tenant, key.scope, to.term, to.epoch)

    async def release(self, key: ScopeKey) -> int:
        """Give up what is kept for the scope's successor; blocks released."""
        return await self._call("retire_release", key.tenant, key.scope)

    async def inspect(self, key: ScopeKey) -> dict[str, Any]:
        """Live requests and pins of a scope."""
        return await self._call("retire_inspect", key.tenant, key.scope)

    async def pause(self, key: ScopeKey, *, paused: bool) -> None:
        """Stop or go on scheduling the scope's requests."""
        await self._call("retire_pause", key.tenant, key.scope, paused)

    async def quota(self, tenant: str, blocks: int | None) -> None:
        """Bound the tenant's pins on this engine."""
        await self._call("retire_quota", tenant, blocks)

    async def tick(self) -> int:
        """Let leases end, also while the engine is idle; the blocks still pinned."""
        return await self._call("retire_tick")

    async def pins(self) -> dict[str, Any]:
        """What is kept for successors, by tenant."""
        return await self._call("retire_pins")

    async def abort(self, request_ids: list[str]) -> None:
        """End requests of a retired response: at once in this process, softly in the engine.

        The engine's scheduler retires them by itself at its next step boundary and then knows
        exactly what was written. An abort that overtook it in the middle of a step would cost the
        successor that step's tokens, so it is sent only to make sure, later.
        """
        ended = self._client.output_processor.abort_requests(request_ids, internal=True)
        if ended:
            await asyncio.sleep(ABORT_AFTER_S)
            await self._client.engine_core.abort_requests_async(ended)

    async def _call(self, utility: str, *args: Any) -> Any:
        return await self._client.engine_core.call_utility_async(utility, *args)

"""Whether a part of the stack is ready: one question each, answered within a second.

Must never start a process or decide what follows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from retire.sidecar.pb import node_pb2 as pb

ANSWER_S: Final = 1.0


def registry_answers(path: Path) -> Callable[[], Awaitable[bool]]:
    """A Valkey on the Unix socket has loaded its data and answers PING."""

    async def ask() -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(b"PING\r\n")
            return await reader.readline()
        finally:
            writer.close()

    async def probe() -> bool:
        try:
            return await asyncio.wait_for(ask(), ANSWER_S) == b"+PONG\r\n"
        except (OSError, TimeoutError):
            return False

    return probe


def sidecar_ready(path: Path) -> Callable[[], Awaitable[bool]]:
    """The sidecar answers and holds its lease: it has entered the registry."""

    async def probe() -> bool:
        status = await _status(path)
        return status is not None and status.lease == "held"

    return probe


def engine_ready(base_url: str, sidecar: Path) -> Callable[[], Awaitable[bool]]:
    """vLLM is healthy and the sidecar has heard from its plugin: scoped requests will be served."""

    async def probe() -> bool:
        try:
            # No TLS here, and a context for it would cost more than the rest of the probe.
            async with httpx.AsyncClient(timeout=ANSWER_S, verify=False) as http:
                if not (await http.get(f"{base_url}/health")).is_success:
                    return False
        except httpx.TransportError:
            return False
        return await plugin_reported(sidecar)

    return probe


async def plugin_reported(sidecar: Path) -> bool:
    """The sidecar calls itself ready, which it does not before an API process has said hello."""
    status = await _status(sidecar)
    return status is not None and status.ready


async def _status(sidecar: Path) -> pb.StatusReply | None:
    """What the sidecar says of itself; None: nothing."""
    import grpc

    from retire.protocol.errors import RetireError
    from retire.sidecar.client import NodeClient

    try:
        async with NodeClient(f"unix:{sidecar}") as node:
            return await asyncio.wait_for(node.status(), ANSWER_S)
    except (RetireError, TimeoutError, grpc.RpcError):
        return None

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

ANSWER_S: Final = 1.0


def socket_answers(path: Path) -> Callable[[], Awaitable[bool]]:
    """Something listens on the Unix socket."""

    async def probe() -> bool:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_unix_connection(str(path)), ANSWER_S)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    return probe


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


def engine_ready(base_url: str, sidecar: Path) -> Callable[[], Awaitable[bool]]:
    """vLLM is healthy and the sidecar has heard from its plugin: scoped requests will be served."""

    async def probe() -> bool:
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S) as http:
                if not (await http.get(f"{base_url}/health")).is_success:
                    return False
        except httpx.TransportError:
            return False
        return await plugin_reported(sidecar)

    return probe


async def plugin_reported(sidecar: Path) -> bool:
    """The sidecar calls itself ready, which it does not before an API process has said hello."""
    import grpc

    from retire.protocol.errors import RetireError
    from retire.sidecar.client import NodeClient

    try:
        async with NodeClient(f"unix:{sidecar}") as node:
            return (await asyncio.wait_for(node.status(), ANSWER_S)).ready
    except (RetireError, TimeoutError, grpc.RpcError):
        return False

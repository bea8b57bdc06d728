"""One tenant's stream goes on after whatever broke it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from retire.protocol.errors import RegistryUnavailable
from retire.registry.interface import Event
from retire.sidecar.events import Follower


class Streams:
    """A registry whose first stream breaks after one event; the second one has another."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked: list[str] = []

    async def events(self, tenant: str, *, after: str) -> AsyncIterator[Event]:
        self.asked.append(after)
        yield Event(f"{len(self.asked)}-0", tenant, "quota", {})
        if len(self.asked) == 1:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [RegistryUnavailable("away"), RuntimeError("a fault of ours")])
async def test_a_stream_goes_on_where_it_broke(error: Exception):
    """Without its stream a node would never open its gates again: a fault must not end it."""
    registry, heard = Streams(error), asyncio.Queue[str]()
    parts: dict[str, Any] = {
        "ports": SimpleNamespace(registry=registry, identity=SimpleNamespace(node="a")),
        "tenants": SimpleNamespace(on_quota=heard.put_nowait),
    }
    other: Any = None
    follower = Follower(parts["ports"], other, other, tenants=parts["tenants"], tenant="acme")
    task = asyncio.create_task(follower.run("0-0"))
    try:
        async with asyncio.timeout(10):
            assert [await heard.get(), await heard.get()] == ["acme", "acme"]
    finally:
        task.cancel()
    assert registry.asked == ["0-0", "1-0"]

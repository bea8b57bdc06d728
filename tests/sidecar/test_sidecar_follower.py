"""One tenant's stream goes on after whatever broke it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from retire.protocol.errors import RegistryUnavailable, TermMismatch
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

    async def snapshot(self, tenant: str) -> SimpleNamespace:
        del tenant
        return SimpleNamespace(term=2, sequence=7, scopes=(), tail="7-0")


def follower_of(registry: Any, tenants: Any) -> Follower:
    """Of a node that has joined no tenant."""
    ports: Any = SimpleNamespace(registry=registry, identity=SimpleNamespace(node="a", term=2))
    lease: Any = SimpleNamespace(tenants=dict)
    driver: Any = None
    return Follower(ports, driver, lease, tenants=tenants, tenant="acme")


@pytest.mark.parametrize("error", [RegistryUnavailable("away"), RuntimeError("a fault of ours")])
async def test_a_stream_goes_on_where_it_broke(error: Exception):
    """Without its stream a node would never open its gates again: a fault must not end it."""
    registry, heard = Streams(error), asyncio.Queue[str]()
    follower = follower_of(registry, SimpleNamespace(on_quota=heard.put_nowait))
    task = asyncio.create_task(follower.run("0-0"))
    try:
        async with asyncio.timeout(10):
            assert [await heard.get(), await heard.get()] == ["acme", "acme"]
    finally:
        task.cancel()
    assert registry.asked == ["0-0", "1-0"]


async def test_a_stream_of_a_tenant_that_was_left_ends():
    """The node enters the registry anew and will follow again: this stream is of the old one."""
    lost: list[Exception] = []

    async def on_lost(error: Exception) -> None:
        lost.append(error)

    gone = TermMismatch("rebuilt")
    tenants = SimpleNamespace(on_quota=lambda _: None, on_lost=on_lost)
    async with asyncio.timeout(10):
        await follower_of(Streams(gone), tenants).run("0-0")
    assert lost == [gone]

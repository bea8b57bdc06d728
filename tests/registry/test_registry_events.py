"""The tenant's stream: nothing lost over a reconnect, and every loss noticed."""

from __future__ import annotations

import asyncio

import pytest

from retire.protocol.errors import RegistryUnavailable, TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry
from retire.registry.interface import CommitKind
from retire.registry.settings import RegistrySettings

KEY = ScopeKey("acme", "plan")


async def commit_many(registry, count, *, first=0, pause_s=0.0):
    for epoch in range(first, first + count):
        await registry.commit(
            CommitKind.SUPERSEDE,
            KEY,
            term=1,
            expected=Version(1, epoch),
            idempotency_key=f"k{epoch}",
            body_digest="d",
            by="test",
        )
        await asyncio.sleep(pause_s)


async def follow(registry, count, *, after="0-0"):
    """Sequences of the next ``count`` commits."""
    sequences = []
    async for event in registry.events("acme", after=after):
        if event.kind == "commit":
            sequences.append(int(event.fields["sequence"]))
            if len(sequences) == count:
                break
    return sequences


async def test_events_arrive_in_order_from_any_position(registry):
    """From the start, after an id, and from now on."""
    await registry.register(KEY, term=1)
    now = registry.events("acme", after="$")
    coming = asyncio.ensure_future(anext(now))
    await asyncio.sleep(0.2)
    await commit_many(registry, 3)
    assert (await asyncio.wait_for(coming, 5)).fields["sequence"] == "1"
    await now.aclose()
    events = registry.events("acme", after="0-0")
    seen = [await anext(events) for _ in range(4)]
    await events.aclose()
    assert [event.kind for event in seen] == ["register", "commit", "commit", "commit"]
    assert await follow(registry, 2, after=seen[1].id) == [2, 3]


async def test_nothing_is_lost_over_reconnects(registry, store):
    """The reader's connection is cut again and again while commits go on: no event missing or
    twice."""
    await registry.register(KEY, term=1)
    following = asyncio.ensure_future(follow(registry, 60))
    cuts = 0

    async def cut():
        nonlocal cuts
        with store.admin() as admin:
            while True:
                for client in admin.client_list():
                    if client["cmd"] == "xread":
                        cuts += admin.client_kill_filter(_id=client["id"])
                await asyncio.sleep(0.15)

    cutting = asyncio.ensure_future(cut())
    await commit_many(registry, 60, pause_s=0.02)
    sequences = await asyncio.wait_for(following, 20)
    cutting.cancel()
    assert sequences == list(range(1, 61))
    assert cuts >= 3  # otherwise this test has shown nothing


async def test_a_restart_of_the_server_is_survived(valkey, connect, settings):
    """The reader goes on after the server was killed and came back with its data."""
    registry = connect(valkey.url, settings)
    await registry.hello("acme", term=1)
    await registry.register(KEY, term=1)
    following = asyncio.ensure_future(follow(registry, 10))
    await commit_many(registry, 5)
    await asyncio.sleep(0.1)
    valkey.kill()
    await asyncio.sleep(0.3)
    valkey.start()
    await commit_many(registry, 5, first=5)
    assert await asyncio.wait_for(following, 10) == list(range(1, 11))


async def test_a_trimmed_stream_is_noticed_at_the_start(registry, store, settings):
    """A reader whose position was trimmed away must resync; one whose next event is kept goes
    on."""
    await registry.register(KEY, term=1)
    await commit_many(registry, 6)
    with store.admin() as admin:
        admin.xtrim(f"{settings.prefix}{{acme}}:events", maxlen=3, approximate=False)
        kept = admin.xrange(f"{settings.prefix}{{acme}}:events")
    with pytest.raises(TermMismatch, match="was trimmed up to .* resync with a snapshot"):
        await follow(registry, 1)
    assert await follow(registry, 2, after=kept[0][0]) == [5, 6]


async def test_a_gap_under_a_running_reader_is_noticed(registry, store, settings):
    """An entry deleted in front of a reader is missed by its number, not passed over."""
    await registry.register(KEY, term=1)
    await commit_many(registry, 4)
    stream = f"{settings.prefix}{{acme}}:events"
    with store.admin() as admin:
        admin.xdel(stream, admin.xrange(stream)[3][0])
    with pytest.raises(TermMismatch, match=r"events 4 to 4 of the stream are gone"):
        await follow(registry, 4)


async def test_a_flushed_registry_is_noticed_by_an_idle_reader(valkey, connect, settings):
    """A reader that waits learns of the loss without an event."""
    registry = connect(valkey.url, settings)
    await registry.hello("acme", term=1)
    await registry.register(KEY, term=1)
    following = asyncio.ensure_future(follow(registry, 1))
    await asyncio.sleep(0.2)
    with valkey.admin() as admin:
        admin.flushall()
    with pytest.raises(TermMismatch, match="lost this tenant's data"):
        await asyncio.wait_for(following, 10)


async def test_a_rebuild_ends_the_reader(registry):
    """The rebuild event is delivered, then the reader is told to resync."""
    await registry.register(KEY, term=1)
    kinds = []
    await registry.rebuild("acme", term=2, scopes=(), quota_blocks=None)
    with pytest.raises(TermMismatch, match="rebuilt under term 2"):
        async for event in registry.events("acme", after="0-0"):
            kinds.append(event.kind)
    assert kinds == ["register", "rebuild"]


async def test_an_id_the_stream_never_held_is_refused(registry):
    """A position from another history, between or past the ids here, is not silently accepted."""
    await registry.register(KEY, term=1)
    await commit_many(registry, 2)
    tail = (await registry.snapshot("acme")).tail
    for after in (f"{tail}9", "99999999999999-0"):
        with pytest.raises(TermMismatch, match="rolled back"):
            await follow(registry, 1, after=after)


async def test_first_contact_with_nothing_is_an_error():
    """events() says that it cannot reach the registry instead of waiting for ever."""
    registry = AsyncRegistry("redis://127.0.0.1:1", RegistrySettings(retries=0, timeout_s=0.5))
    with pytest.raises(RegistryUnavailable, match=r"redis://127\.0\.0\.1:1 "):
        await anext(registry.events("acme", after="$"))
    await registry.close()

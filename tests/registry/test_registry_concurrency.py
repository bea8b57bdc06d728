"""Many callers at once: one winner, one record, no lost update."""

from __future__ import annotations

import asyncio
import threading

from retire.protocol.errors import QuotaExceeded, RetireError, VersionConflict
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import SyncRegistry
from retire.registry.interface import Commit, CommitKind

KEY = ScopeKey("acme", "plan")
CALLERS = 64


def request(name, epoch=0):
    return {
        "term": 1,
        "expected": Version(1, epoch),
        "idempotency_key": name,
        "body_digest": "d",
        "by": name,
    }


async def together(*attempts):
    return await asyncio.gather(*attempts, return_exceptions=True)


async def test_one_of_many_wins(registry):
    """64 callers commit from the same version: one moves it, 63 learn the current version."""
    await registry.register(KEY, term=1)
    for epoch in range(3):
        answers = await together(
            *(
                registry.commit(CommitKind.SUPERSEDE, KEY, **request(f"{epoch}-{i}", epoch))
                for i in range(CALLERS)
            )
        )
        won = [answer for answer in answers if isinstance(answer, Commit)]
        lost = [answer for answer in answers if isinstance(answer, VersionConflict)]
        assert (len(won), len(lost)) == (1, CALLERS - 1), answers
        assert {answer.current for answer in lost} == {won[0].to_version}
    assert (await registry.get(KEY)).version == Version(1, 3)
    assert (await registry.snapshot("acme")).sequence == 3


async def test_one_key_used_by_many_is_one_commit(registry):
    """64 callers with the same key and body get the same commit; exactly one made it."""
    await registry.register(KEY, term=1)
    answers = await together(
        *(registry.commit(CommitKind.SUPERSEDE, KEY, **request("same")) for _ in range(CALLERS))
    )
    assert all(isinstance(answer, Commit) for answer in answers), answers
    assert len({answer.event_id for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    assert (await registry.get(KEY)).version == Version(1, 1)


async def test_concurrent_reservations_never_exceed_the_quota(registry):
    """64 owners ask for 3 of 100 blocks: 33 get them."""
    await registry.set_quota("acme", term=1, blocks=100)
    answers = await together(
        *(
            registry.reserve("acme", term=1, owner=f"o{i}", blocks=3, lease_s=30)
            for i in range(CALLERS)
        )
    )
    refused = [answer for answer in answers if isinstance(answer, QuotaExceeded)]
    assert len(answers) - len(refused) == 33
    assert sum(r.blocks for r in (await registry.snapshot("acme")).reservations) == 99


async def test_many_first_hellos_agree(connect, store, settings):
    """Clients that open the same new tenant at once end with one incarnation."""
    clients = [connect(store.url, settings) for _ in range(8)]
    answers = await together(*(client.hello("acme", term=1) for client in clients))
    assert len(set(answers)) == 1
    assert not isinstance(answers[0], RetireError)


def test_threads_share_one_blocking_client(store, settings):
    """64 threads on one SyncRegistry: one winner, and no connection is left over."""
    registry = SyncRegistry(store.url, settings)
    registry.hello("acme", term=1)
    registry.register(KEY, term=1)
    outcomes: list[object] = []
    start = threading.Barrier(CALLERS)

    def attempt(index: int) -> None:
        start.wait()
        try:
            outcomes.append(registry.commit(CommitKind.SUPERSEDE, KEY, **request(f"t{index}")))
        except VersionConflict as conflict:
            outcomes.append(conflict)

    threads = [threading.Thread(target=attempt, args=(index,)) for index in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, Commit) for outcome in outcomes) == 1
    assert len(outcomes) == CALLERS
    registry.close()

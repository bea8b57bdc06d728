"""Durable before ack: no acknowledged commit is lost to kill -9, and a server that may is
refused."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from retire.protocol.errors import RegistryUnavailable, TermMismatch
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry, SyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.registry.interface import Commit, CommitKind
from retire.registry.settings import Durability, RegistrySettings

WRITERS = 4
EVERYSEC = ("appendonly", "yes", "appendfsync", "everysec")
VOLATILE = ("appendonly", "no")


class Load:
    """Writers that commit without pause, each its own scope, and remember what was acknowledged."""

    def __init__(self, url: str, settings: RegistrySettings) -> None:
        self.registry = SyncRegistry(url, settings)
        self.registry.hello("acme", term=1)
        self.acknowledged: list[Commit] = []
        self.retried = 0
        self._stop = threading.Event()
        keys = [ScopeKey("acme", f"s{index}") for index in range(WRITERS)]
        for key in keys:
            self.registry.register(key, term=1)
        self._threads = [threading.Thread(target=self._write, args=(key,)) for key in keys]

    def run(self, disturb: Callable[[], None]) -> None:
        for thread in self._threads:
            thread.start()
        disturb()
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def _write(self, key: ScopeKey) -> None:
        version, attempt_until = Version(1, 0), 0.0
        while not self._stop.is_set():
            try:
                commit = self.registry.commit(
                    CommitKind.SUPERSEDE,
                    key,
                    term=1,
                    expected=version,
                    idempotency_key=f"{key.scope}-{version}",
                    body_digest="d",
                    by="load",
                )
            except RegistryUnavailable:
                self.retried += 1
                attempt_until = attempt_until or time.monotonic() + 10
                if time.monotonic() > attempt_until:
                    return
                time.sleep(0.02)
                continue
            except TermMismatch:
                return
            self.acknowledged.append(commit)
            version, attempt_until = commit.to_version, 0.0

    def missing(self) -> list[Commit]:
        """Acknowledged commits that the registry does not hold."""
        held: set[tuple[str, str]] = set()
        for event in self._events():
            if event.kind == "commit":
                held.add((event.fields["scope"], event.fields["to"]))
        return [c for c in self.acknowledged if (c.key.scope, str(c.to_version)) not in held]

    def _events(self):
        tail = self.registry.snapshot("acme").tail
        if tail == "0-0":
            return
        for event in self.registry.events("acme", after="0-0"):
            yield event
            if event.id == tail:
                return


def kill_repeatedly(server: EmbeddedServer, times: int) -> None:
    for _ in range(times):
        time.sleep(0.3)
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while server.pid in (None, pid) or not server.answers():
            assert time.monotonic() < deadline, "the child was not restarted"
            time.sleep(0.01)
    time.sleep(0.2)


def test_no_acknowledged_commit_is_lost_to_kill_9(tmp_path):
    """Writers commit while the server is killed three times and comes back: everything is there."""
    with EmbeddedServer(tmp_path / "r") as server:
        load = Load(server.url, RegistrySettings(retries=1))
        load.run(lambda: kill_repeatedly(server, 3))
        assert server.restarts == 3
        assert load.retried > 0  # otherwise no commit met a dead server
        assert len(load.acknowledged) > 100
        assert load.missing() == []
        last = {c.key: c.to_version for c in load.acknowledged}
        held = {r.key: r.version for r in load.registry.list_scopes("acme")}
        assert all(held[key] >= version for key, version in last.items())
        sequences = [c.sequence for c in load.acknowledged]
        assert len(sequences) == len(set(sequences))
        load.registry.close()


def test_waitaof_is_durable_too(make_server):
    """On a server that does not fsync always, WAITAOF guards every ack, also of a replay."""
    server = make_server("valkey9", *EVERYSEC)
    load = Load(server.url, RegistrySettings(retries=1))
    assert load.registry.check_durability() is Durability.WAITAOF
    assert load.registry.check_durability() is Durability.WAITAOF

    def disturb():
        time.sleep(1.5)
        server.kill()
        time.sleep(0.1)
        server.start()
        time.sleep(0.5)

    load.run(disturb)
    scripts, waits = calls(server, "eval", "evalsha"), calls(server, "waitaof")
    assert waits == scripts > WRITERS  # since the restart: every write waited
    assert len(load.acknowledged) > 2 * WRITERS
    assert load.missing() == []
    load.registry.close()


def calls(server, *commands: str) -> int:
    with server.admin() as admin:
        stats = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in commands)


def test_control_a_volatile_server_loses_acknowledged_commits(make_server):
    """Negative control: without AOF the same check finds lost commits, and renewals find the
    loss."""
    server = make_server("valkey9", *VOLATILE)
    load = Load(server.url, RegistrySettings(retries=1, allow_volatile=True))

    def disturb():
        time.sleep(0.3)
        server.kill()

    stopper = threading.Timer(0.6, load._stop.set)
    stopper.start()
    load.run(disturb)
    server.start()
    acknowledged = len(load.acknowledged)
    assert acknowledged > 10
    with pytest.raises(TermMismatch, match="lost"):
        load.registry.renew("n", term=1, boot_id="b", lease_s=1, tenants={"acme": acknowledged})
    fresh = SyncRegistry(server.url, RegistrySettings(allow_volatile=True))
    fresh.hello("acme", term=1)
    load.registry.close()
    load.registry = fresh
    assert len(load.missing()) == acknowledged
    fresh.close()


def test_control_a_cut_aof_is_found(valkey):
    """Negative control: bytes cut from the end of the AOF are missing commits, and a rollback."""
    load = Load(valkey.url, RegistrySettings())
    load.run(lambda: time.sleep(0.3))
    valkey.kill()
    (aof,) = valkey.folder.glob("appendonlydir/*.incr.aof")
    os.truncate(aof, aof.stat().st_size - 3000)
    valkey.start()
    assert load.missing()
    top = max(c.sequence for c in load.acknowledged)
    with pytest.raises(TermMismatch, match="rolled back"):
        load.registry.renew("n", term=1, boot_id="b", lease_s=1, tenants={"acme": top})
    load.registry.close()


async def test_what_each_server_gives(make_server, store):
    """fsync always needs nothing more; Redis 7.0 without it, or no AOF at all, is refused."""
    for kind, options, expected in (
        ("valkey9", EVERYSEC, Durability.WAITAOF),
        ("valkey9", VOLATILE, "appendonly is off; set"),
        ("valkey9", ("appendonly", "yes", "appendfsync", "no"), "appendfsync is no; set"),
        ("redis7", EVERYSEC, "appendfsync is everysec and it has no WAITAOF; set"),
        ("redis7", VOLATILE, "appendonly is off; set"),
    ):
        server = make_server(kind, *options)
        for registry in (AsyncRegistry(server.url), SyncRegistry(server.url)):
            await expect(registry, expected)
    registry = AsyncRegistry(store.url)
    assert await registry.check_durability() is Durability.FSYNC_ALWAYS
    await registry.close()


async def expect(registry, expected):
    async def value(result):
        return await result if hasattr(result, "__await__") else result

    if isinstance(expected, Durability):
        assert await value(registry.check_durability()) is expected
    else:
        with pytest.raises(RegistryUnavailable, match=f"may lose acknowledged commits: {expected}"):
            await value(registry.check_durability())
        with pytest.raises(RegistryUnavailable, match="may lose acknowledged commits"):
            await value(registry.hello("acme", term=1))  # checked before the first write, too
    await value(registry.close())


async def test_volatile_is_allowed_on_request_only(make_server):
    """allow_volatile is the only way past the check, and the answer says what it is."""
    server = make_server("redis7", *VOLATILE)
    registry = AsyncRegistry(server.url, RegistrySettings(allow_volatile=True))
    assert await registry.check_durability() is Durability.VOLATILE
    assert await registry.hello("acme", term=1)
    await registry.close()
    with pytest.raises(Exception, match="used with allow_volatile=True"):
        RegistrySettings(durability=Durability.VOLATILE)


def test_an_unconfirmed_fsync_is_not_an_ack(make_server):
    """When WAITAOF reports no local fsync in time, the commit is not acknowledged."""
    server = make_server("valkey9", *EVERYSEC)
    registry = SyncRegistry(server.url, RegistrySettings(timeout_s=0.5, retries=0))
    assert registry.check_durability() is Durability.WAITAOF
    with server.admin() as admin:
        admin.config_set("appendfsync", "no")
    with pytest.raises(RegistryUnavailable, match="did not confirm its fsync in time"):
        registry.hello("acme", term=1)
    registry.close()


def test_the_stream_carries_what_a_restart_needs(valkey, settings):
    """After kill -9 the idempotency record still answers, so a caller that lost its reply can
    ask."""
    registry = SyncRegistry(valkey.url, settings)
    registry.hello("acme", term=1)
    key = ScopeKey("acme", "plan")
    registry.register(key, term=1)
    request = {
        "term": 1,
        "expected": Version(1, 0),
        "idempotency_key": "a",
        "body_digest": json.dumps({"x": 1}),
        "by": "t",
    }
    first = registry.commit(CommitKind.SUPERSEDE, key, **request)
    valkey.kill()
    valkey.start()
    again = registry.commit(CommitKind.SUPERSEDE, key, **request)
    assert again.replayed
    assert again.event_id == first.event_id
    registry.close()

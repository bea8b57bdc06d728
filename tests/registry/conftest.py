"""Real servers for the registry's tests, and one face for both clients."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from retire.registry.client import AsyncRegistry, SyncRegistry
from retire.registry.embedded import server_binary
from retire.registry.settings import RegistrySettings

_prefixes = itertools.count()

DURABLE = ("appendonly", "yes", "appendfsync", "always")


class Server:
    """A server process on loopback: ``binary`` with one configuration directive a pair of
    ``options``."""

    def __init__(self, binary: Path, folder: Path, *options: str) -> None:
        self.binary, self.folder, self.options = binary, folder, options
        self.port = 0
        self.bus_port = 0  # of a cluster node
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Server:
        self.port = self.port or free_port()
        directives = {
            "dir": str(self.folder),
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": "",
            "logfile": str(self.folder / "log"),
            "maxmemory-policy": "noeviction",
            **dict(zip(self.options[::2], self.options[1::2], strict=True)),
        }
        if "cluster-enabled" in directives:
            self.bus_port = self.bus_port or free_port()
            directives["cluster-port"] = str(self.bus_port)
        command = [str(self.binary)]
        for name, value in directives.items():
            command += [f"--{name}", *(value.split(" ") if name == "user" else [value])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait_ready()
        return self

    def _wait_ready(self) -> None:
        for _ in range(1000):
            assert self.process is not None
            if self.process.poll() is not None:
                break
            try:
                with socket.create_connection(("127.0.0.1", self.listening_port), 1) as probe:
                    if self.listening_port != self.port:
                        return  # TLS: it listens
                    probe.sendall(b"PING\r\n")
                    reply = probe.recv(64)
                    if reply.startswith((b"+PONG", b"-NOAUTH")):
                        return
            except OSError:
                pass
            time.sleep(0.01)
        log = (self.folder / "log").read_text() if (self.folder / "log").exists() else "(no log)"
        pytest.fail(f"{self.binary} did not start:\n{log[-2000:]}")

    @property
    def listening_port(self) -> int:
        options = dict(zip(self.options[::2], self.options[1::2], strict=True))
        return int(options.get("tls-port", self.port))

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
        if self.process is not None:
            self.process.wait(20)

    def admin(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def redis_binary() -> Path:
    found = shutil.which("redis-server")
    if found is None:
        pytest.fail("redis-server is missing; install it with: apt-get install redis-server")
    return Path(found)


BINARIES = {"valkey9": server_binary, "redis7": redis_binary}


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.kill(signal.SIGTERM)


@pytest.fixture
def server_class() -> type[Server]:
    return Server


@pytest.fixture(params=sorted(BINARIES))
def store(
    request: pytest.FixtureRequest, shared_servers: dict[str, Server], tmp_path_factory
) -> Server:
    """A durable server of each kind, shared by the session; tests keep apart by their prefix."""
    name = request.param
    if name not in shared_servers:
        folder = tmp_path_factory.mktemp(name)
        shared_servers[name] = Server(BINARIES[name](), folder, *DURABLE).start()
    return shared_servers[name]


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Server]:
    """A durable Valkey of this test alone, on a port that survives restarts."""
    server = Server(server_binary(), tmp_path / "valkey", *DURABLE).start()
    yield server
    server.kill()


def server_maker(folder: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def make(kind: str, *options: str) -> Server:
        started.append(Server(BINARIES[kind](), folder / f"{kind}-{len(started)}", *options))
        return started[-1].start()

    yield make
    for server in started:
        server.kill()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start further servers: ``make_server("redis7", "appendonly", "no")``."""
    yield from server_maker(tmp_path)


@pytest.fixture(scope="module")
def make_module_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Server]]:
    """The same for servers that a whole module shares."""
    yield from server_maker(tmp_path_factory.mktemp("servers"))


@pytest.fixture
def settings() -> RegistrySettings:
    """Settings with a prefix that no other test uses, so that each test sees a new registry."""
    return RegistrySettings(prefix=f"t{os.getpid()}-{next(_prefixes)}:")


class Threaded:
    """SyncRegistry behind the asyncio face, so that one suite runs over both clients."""

    def __init__(self, registry: SyncRegistry) -> None:
        self._registry = registry

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._registry, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call

    async def events(self, tenant: str, *, after: str) -> AsyncIterator[Any]:
        following = self._registry.events(tenant, after=after)
        end = object()
        try:
            while (event := await asyncio.to_thread(next, following, end)) is not end:
                yield event
        finally:
            await asyncio.to_thread(following.close)


@pytest.fixture(params=["async", "sync"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Connect a client of each kind; closed at the end."""
    opened: list[Any] = []

    def connect(url: str, settings: RegistrySettings) -> Any:
        if request.param == "async":
            opened.append(AsyncRegistry(url, settings))
        else:
            opened.append(Threaded(SyncRegistry(url, settings)))
        return opened[-1]

    yield connect
    for registry in opened:
        await registry.close()


@pytest.fixture
async def registry(connect: Any, store: Server, settings: RegistrySettings) -> Any:
    """An open registry of term 1 with the tenant acme: each store, each client."""
    registry = connect(store.url, settings)
    await registry.hello("acme", term=1)
    return registry

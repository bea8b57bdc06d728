"""Fixtures of the sidecar's tests; their parts are in ``sidecar_world.py``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The tests fork servers while gRPC runs; its own fork handlers may end such a child at once.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# importmode=importlib puts nothing there: the folder's own modules, e2e.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from sidecar_world import Sidecar

from retire.registry.embedded import EmbeddedServer


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def calm() -> Iterator[Sidecar]:
    """One node for the tests of a module that harm nothing; each uses scopes of its own."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    with EmbeddedServer(made / "registry") as server:
        sidecar = Sidecar(made, server.url).start()
        yield sidecar
        sidecar.end()
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def calm_nodes() -> Iterator[tuple[EmbeddedServer, Sidecar, Sidecar]]:
    """A registry and two nodes for tests that harm neither."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    with EmbeddedServer(made / "registry") as server:
        nodes = [Sidecar(made, server.url, node=n, RETIRE_FENCE_WAIT_S="1").start() for n in "ab"]
        yield server, nodes[0], nodes[1]
        for node in nodes:
            node.end()
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def registry(folder: Path) -> Iterator[EmbeddedServer]:
    """A real Valkey, durable before it answers."""
    with EmbeddedServer(folder / "registry") as server:
        yield server


@pytest.fixture
def start_at(folder: Path) -> Iterator[Callable[..., Sidecar]]:
    """Start sidecar processes on a registry URL; they are gone after the test."""
    started: list[Sidecar] = []

    def make(url: str, node: str = "a", **env: str) -> Sidecar:
        sidecar = Sidecar(folder, url, node=node, **env)
        started.append(sidecar.start())
        return sidecar

    yield make
    for sidecar in started:
        print(f"--- log of {sidecar.node}\n{sidecar.log.read_text()}")
        if sidecar.process is not None and sidecar.process.poll() is None:
            sidecar.kill()


@pytest.fixture
def start(registry: EmbeddedServer, start_at: Callable[..., Sidecar]) -> Callable[..., Sidecar]:
    """The same on the test's registry."""
    return lambda node="a", **env: start_at(registry.url, node, **env)

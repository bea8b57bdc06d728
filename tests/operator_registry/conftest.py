"""A real Valkey a test, the world around a guard, and a real API server where one is asked for."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client as kubernetes
from kubernetes import config

# The tests fork servers while gRPC runs; its own fork handlers may end such a child at once.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# importmode=importlib puts nothing there: the folder's own modules, and the harness.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from operator_registry_world import World

from e2e.fixtures import cluster, crd, namespace
from retire.registry.embedded import EmbeddedServer

__all__ = ["cluster", "crd", "namespace"]


@pytest.fixture
def leases() -> Iterator[Callable[..., kubernetes.CoordinationV1Api]]:
    """Make clients of the API server, as a kubeconfig or a configuration says; closed again."""
    opened: list[kubernetes.ApiClient] = []

    def make(kubeconfig: Path | None, **settings: object) -> kubernetes.CoordinationV1Api:
        configuration = kubernetes.Configuration()
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        for name, value in settings.items():
            setattr(configuration, name, value)
        opened.append(kubernetes.ApiClient(configuration))
        return kubernetes.CoordinationV1Api(opened[-1])

    yield make
    for client in opened:
        client.rest_client.pool_manager.clear()
        client.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets."""
    made = Path(tempfile.mkdtemp(prefix="ro-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedServer]:
    """A real Valkey, durable before it answers."""
    with EmbeddedServer(folder / "registry") as running:
        yield running


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EmbeddedServer]:
    """One for the tests of a module that empty it themselves."""
    made = Path(tempfile.mkdtemp(prefix="ro-"))
    with EmbeddedServer(made / "registry") as running:
        yield running
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
async def world(server: EmbeddedServer) -> AsyncIterator[World]:
    """Everything that a guard talks to; nothing is opened yet."""
    made = World(server.url)
    yield made
    await made.close()

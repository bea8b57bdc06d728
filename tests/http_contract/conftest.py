"""Fixtures of the HTTP contract's tests: one node of two tenants, our API process over it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# The folder's own modules, those of the page and of the API process, e2e.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "page"))
sys.path.insert(2, str(Path(__file__).parents[1] / "engine_api"))
sys.path.insert(3, str(Path(__file__).parents[2]))

from http_contract_world import Api, api_at, world_at
from page_world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="rh-"))
    with world_at(folder) as started:
        os.environ["RETIRE_MAILBOX"] = str(started.sidecar.mailbox)
        yield started
        del os.environ["RETIRE_MAILBOX"]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def api(world: World) -> Iterator[Api]:
    with api_at(world) as serving:
        yield serving

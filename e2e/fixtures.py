"""The pytest fixtures of everything that needs a Kubernetes API server.

A folder's conftest puts the repository's root on ``sys.path`` and imports them: ``from e2e.fixtures
import cluster, crd, namespace``. One cluster a pytest process. Must never import the product.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Final

import pytest

from e2e.api import ApiError
from e2e.binaries import ROOT
from e2e.cluster import ExistingCluster, connect
from e2e.waiting import wait_condition

if TYPE_CHECKING:
    from collections.abc import Iterator

CRD: Final = ROOT / "crds" / "servingscopes.yaml"
CRD_NAME: Final = "servingscopes.serving.retire.dev"
CRD_PATH: Final = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
_counter = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[ExistingCluster]:
    """A real API server with its controllers, shared by the session."""
    with connect() as running:
        yield running


@pytest.fixture(scope="session")
def crd(cluster: ExistingCluster) -> str:
    """The CRD ServingScope, established; its name."""
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    wait_condition(cluster.api, CRD_PATH, "Established")
    return CRD_NAME


@pytest.fixture
def namespace(cluster: ExistingCluster) -> Iterator[str]:
    """An empty namespace for one test, under restricted Pod Security."""
    name = cluster.create_namespace(f"t{os.getpid()}-{next(_counter)}")
    yield name
    with contextlib.suppress(ApiError):  # the test may have deleted it
        cluster.api.delete(f"/api/v1/namespaces/{name}")

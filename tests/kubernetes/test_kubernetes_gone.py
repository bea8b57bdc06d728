"""How the API server answers whoever speaks of a pod that another one has replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.api import ApiError
from e2e.node.pods import gone

if TYPE_CHECKING:
    from e2e.cluster import Cluster

POD: dict[str, Any] = {
    "metadata": {"name": "one"},
    "spec": {"containers": [{"name": "one", "image": "one"}]},
}


def refused(cluster: Cluster, path: str, body: dict[str, Any]) -> ApiError:
    """The answer to a status that the server does not take."""
    with pytest.raises(ApiError) as error:
        cluster.api.merge(f"{path}/status", body)
    return error.value


def test_a_replaced_pod_is_gone(cluster: Cluster) -> None:
    """Of another uid, or not there: gone. A status that is wrong says nothing of the kind."""
    namespace = cluster.create_namespace("gone", level="privileged")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.api.create(pods, POD)
    other = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}, "status": {}}
    assert gone(refused(cluster, f"{pods}/one", other))
    assert gone(refused(cluster, f"{pods}/two", {"status": {}}))
    wrong = {"status": {"qosClass": "Guaranteed", "podIP": "no address"}}
    assert not gone(refused(cluster, f"{pods}/one", wrong))

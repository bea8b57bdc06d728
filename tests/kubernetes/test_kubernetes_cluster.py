"""The control plane for tests: real in what matters, gone without a trace, clear in failure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes_pods import SLEEPER, container, pod_spec

from e2e import cluster as clusters
from e2e.api import Api, ApiError
from e2e.binaries import BinaryMissing, binary
from e2e.cluster import Cluster, CommandFailed, ExistingCluster, connect
from e2e.kubeconfig import write
from e2e.waiting import NotInTime, wait_for

if TYPE_CHECKING:
    from pathlib import Path

PRIVILEGED = container("main", SLEEPER, securityContext={"privileged": True})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [PRIVILEGED]}, 'violates PodSecurity "restricted'),
        ({"containers": []}, "spec.containers: Required value"),
    ],
)
def test_admission_is_on(
    cluster: ExistingCluster, namespace: str, spec: dict[str, Any], words: str
):
    """Pod Security and validation refuse what a real cluster refuses."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(ApiError, match=words):
        cluster.api.create(path, {"metadata": {"name": "p"}, "spec": spec}, dryRun="All")
    good = {"metadata": {"name": "p"}, "spec": pod_spec(container("main", SLEEPER))}
    cluster.api.create(path, good, dryRun="All")


def test_rbac_is_on(cluster: ExistingCluster, namespace: str, tmp_path: Path):
    """A service account may do nothing; nobody less."""
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    token = cluster.api.create(account, {"spec": {}})["status"]["token"]
    ca = tmp_path / "ca.crt"
    ca.write_bytes(cluster.ca_file.read_bytes() if isinstance(cluster, Cluster) else b"")
    for user, code in (({"token": token}, 403), ({"token": "forged"}, 401)):
        path = write(tmp_path / "config", cluster.api.server, ca, user)
        api = Api(path)
        with pytest.raises(ApiError) as caught:
            api.get(f"/api/v1/namespaces/{namespace}/secrets")
        assert caught.value.code == code
        api.close()


def test_controllers_work(cluster: ExistingCluster, namespace: str):
    """Endpoints of a service, garbage of a deleted owner, the namespace's CA."""
    base = f"/api/v1/namespaces/{namespace}"
    wait_for("the CA", lambda: cluster.api.exists(f"{base}/configmaps/kube-root-ca.crt"))
    owner = cluster.api.create(f"{base}/configmaps", {"metadata": {"name": "owner"}})["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    child = {"metadata": {"name": "child", "ownerReferences": [reference]}}
    cluster.api.create(f"{base}/configmaps", child)
    cluster.api.delete(f"{base}/configmaps/owner")
    wait_for("the child to go", lambda: not cluster.api.exists(f"{base}/configmaps/child"))


def test_kubectl_tells_why_it_failed(cluster: ExistingCluster):
    """Its own words are in the exception."""
    assert "default" in cluster.kubectl("get", "namespaces")
    with pytest.raises(CommandFailed, match="the server doesn't have a resource type"):
        cluster.kubectl("get", "nonsense")


def test_a_cluster_keeps_its_data_and_leaves_nothing():
    """A killed API server comes back with what it had; after stop nothing is left."""
    with Cluster() as own:
        own.create_namespace("kept")
        own.api_server.stop(9)
        assert not own.api.ready()
        own.start_api_server()
        assert own.api.exists("/api/v1/namespaces/kept")
        pids = [one.pid for one in (own.etcd, own.api_server, own.controller_manager)]
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert not own.folder.exists()


def test_an_existing_cluster_is_used_and_left_alone(
    cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch
):
    """E2E_KUBECONFIG: the same API server, which still runs afterwards."""
    monkeypatch.setenv("E2E_KUBECONFIG", str(cluster.kubeconfig))
    with connect() as found:
        assert type(found) is ExistingCluster
        assert found.api.exists("/api/v1/namespaces/default")
    assert cluster.api.ready()


def test_a_missing_binary_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Assets go before what was built, what was built before the PATH."""
    monkeypatch.setattr("e2e.binaries.BUILT", tmp_path / "built")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    with pytest.raises(BinaryMissing, match="run scripts/kube-tools"):
        binary("kube-nothing")
    for folder in ("built", "assets"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kube-nothing").touch(mode=0o755)
        assert binary("kube-nothing") == tmp_path / folder / "kube-nothing"


def test_a_server_that_cannot_start_shows_its_log(monkeypatch: pytest.MonkeyPatch):
    """No waiting for a dead process; its last words are in the error, and nothing is left."""
    monkeypatch.setattr(clusters.control_plane, "etcd", lambda *_: ["--no-such-flag"])
    own = Cluster()
    with pytest.raises(clusters.ProcessFailed, match="(?s)^etcd ended.*no-such-flag"):
        own.start()
    assert not own.folder.exists()


def test_a_wait_ends_with_what_it_saw():
    """The last value or error is in the failure."""
    with pytest.raises(
        NotInTime, match=r"a thing: not within 0 s; last seen: LookupError\('why'\)"
    ):
        wait_for("a thing", lambda: (_ for _ in ()).throw(LookupError("why")), 0)

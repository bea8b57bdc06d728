"""Nothing stays behind but what the documentation says. Runs when no scenario needs it any more."""

from __future__ import annotations

import json
import os

from e2e_plans import Plan

from e2e.deployment import NAMESPACE, NODES, REGISTRY, Deployment
from e2e.waiting import wait_for, wait_gone

KEPT = {
    "leases.coordination.k8s.io/retire-term",
    f"persistentvolumeclaims/data-{REGISTRY}",
}
PROMPT = "Say goodbye to every file. " * 8


def test_a_deleted_scope_ends_its_streams(deployment: Deployment, tenant: str) -> None:
    """The finalizer cancels the scope, and then lets the object go."""
    plan = Plan(deployment, tenant).opened()
    flow = plan.runs(PROMPT)
    plan.kubectl("delete", "servingscope", plan.name, "--timeout=60s")
    flow.ended()
    assert flow.error is not None and flow.error["code"] == "cancelled"
    assert not deployment.cluster.api.exists(plan.path)


def test_everything_goes(deployment: Deployment, tenant: str) -> None:
    """Scopes without any node, then the release: bounded; the history of it all is in order."""
    running = _pids(deployment)
    plan = Plan(deployment, tenant).opened()
    deployment.cluster.kubectl("-n", NAMESPACE, "scale", "statefulset/retire-node", "--replicas=0")
    for node in NODES:
        wait_gone(deployment.cluster.api, f"/api/v1/namespaces/{NAMESPACE}/pods/{node}", 120)
    deployment.cluster.kubectl(
        *("delete", "servingscopes", "--all", "--all-namespaces", "--timeout=110s")
    )
    warning = plan.has_event("DeletedUnfinished")
    assert warning["type"] == "Warning" and "no pod carries" in warning["message"]
    deployment.release.uninstall()
    wait_for("the end of every process", lambda: not [pid for pid in running if _alive(pid)], 60)
    wait_for("the end of its pods", lambda: not [one for one in _left(deployment) if "Pod/" in one])
    assert _left(deployment) == KEPT
    assert _cluster_wide(deployment) == set()
    print(f"{deployment.history.judge(at_least=100)} records are in order")


def _pids(deployment: Deployment) -> set[int]:
    """Of every process of the release."""
    found: set[int] = set()
    for component, containers in (
        ("node", ("sidecar", "vllm")),
        ("operator", ("operator",)),
        ("registry", ("registry",)),
    ):
        for pod in deployment.pods(component):
            for container in containers:
                found |= set(deployment.harness.processes(f"{NAMESPACE}/{pod}", container))
    assert len(found) >= 7, found
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _left(deployment: Deployment) -> set[str]:
    """Objects of the release's namespace, without those that every namespace has, and Events."""
    kinds = deployment.cluster.kubectl(
        *("api-resources", "--namespaced", "--verbs=list", "-o", "name")
    ).split()
    listed = [kind for kind in kinds if not kind.startswith("events")]
    names = deployment.cluster.kubectl(*("-n", NAMESPACE, "get", ",".join(listed), "-o", "json"))
    of_kind = {
        "Lease": "leases.coordination.k8s.io",
        "PersistentVolumeClaim": "persistentvolumeclaims",
    }
    found = {
        f"{of_kind.get(one['kind'], one['kind'])}/{one['metadata']['name']}"
        for one in json.loads(names)["items"]
    }
    return found - {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}


def _cluster_wide(deployment: Deployment) -> set[str]:
    """ClusterRoles, their bindings and whatever else carries the release's label."""
    kinds = deployment.cluster.kubectl(
        *("api-resources", "--namespaced=false", "--verbs=list", "-o", "name")
    ).split()
    selector = "app.kubernetes.io/instance=retire"
    found = deployment.cluster.kubectl("get", ",".join(kinds), "-l", selector, "-o", "name")
    return set(found.split())

"""What one `helm install` brought up: pods, their rights, and the chart's own test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from e2e.cluster import CommandFailed
from e2e.deployment import NAMESPACE, NODES, REGISTRY
from e2e.waiting import condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.deployment import Deployment

OPERATOR = f"system:serviceaccount:{NAMESPACE}:retire-operator"
NODE = f"system:serviceaccount:{NAMESPACE}:retire-node"


def test_everything_is_up(deployment: Deployment) -> None:
    """Two operators, two nodes with their sidecars, one registry, nothing restarted."""
    assert len(deployment.operators()) == 2
    assert deployment.pods("node") == list(NODES)
    assert deployment.pods("registry") == [REGISTRY]
    for pod in _pods(deployment):
        assert condition(pod, "Ready").get("status") == "True", pod["status"]
    node = deployment.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{NODES[0]}")
    (sidecar,) = node["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("sidecar", "Always")
    assert node["metadata"]["labels"]["serving.retire.dev/pool"] == "default"


def test_the_chart_tests_itself(deployment: Deployment) -> None:
    """`helm test` passes, and leaves no pod behind."""
    assert "Succeeded" in deployment.release.test()
    assert deployment.pods("test") == []


def test_the_term_is_kept_outside_of_the_registry(deployment: Deployment) -> None:
    """One Lease, at its first term."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/retire-term"
    assert deployment.cluster.api.get(path)["spec"]["leaseTransitions"] >= 1


@pytest.mark.parametrize(
    ("account", "verb", "what", "allowed"),
    [
        (OPERATOR, "patch", "servingscopes.serving.retire.dev/status", True),
        (OPERATOR, "list", "namespaces", True),
        (OPERATOR, "delete", "servingscopes.serving.retire.dev", False),
        (OPERATOR, "delete", "pods", False),
        (OPERATOR, "list", "secrets", False),
        (OPERATOR, "patch", "namespaces", False),
        (NODE, "create", "tokenreviews.authentication.k8s.io", False),  # auth.mode is none
        (NODE, "patch", "servingscopes.serving.retire.dev", False),
        (NODE, "update", "leases.coordination.k8s.io", False),
        (NODE, "get", "secrets", False),
    ],
)
def test_rights_are_the_least(
    deployment: Deployment, account: str, verb: str, what: str, allowed: bool
) -> None:
    """As the API server answers for the pods' service accounts."""
    resource, _, sub = what.partition("/")
    more = [f"--subresource={sub}"] if sub else []
    asked = ["auth", "can-i", verb, resource, *more, f"--as={account}", "-n", NAMESPACE]
    if allowed:
        assert deployment.cluster.kubectl(*asked).strip() == "yes"
        return
    with pytest.raises(CommandFailed, match=r"no\b"):
        deployment.cluster.kubectl(*asked)


def test_pods_are_restricted(deployment: Deployment) -> None:
    """The namespace enforces it; root, escalation and capabilities are nowhere."""
    space = deployment.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, container, security in _containers(deployment):
        told = (name, container["name"], security)
        assert security["runAsNonRoot"] is True and security.get("runAsUser") != 0, told
        assert security["allowPrivilegeEscalation"] is False, told
        assert security["readOnlyRootFilesystem"] is True, told
        assert security["capabilities"] == {"drop": ["ALL"]}, told
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, told


def _containers(deployment: Deployment) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Pod, container, and the security that holds for it."""
    for pod in _pods(deployment):
        of_pod = pod["spec"].get("securityContext", {})
        for one in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            yield pod["metadata"]["name"], one, of_pod | one.get("securityContext", {})


def _pods(deployment: Deployment) -> list[dict[str, Any]]:
    selector = "app.kubernetes.io/component in (node,operator,registry)"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={quote(selector)}"
    items = deployment.cluster.api.get(path)["items"]
    assert len(items) == len(NODES) + 3, [one["metadata"]["name"] for one in items]
    return items

"""helm on a real API server: what it takes, what an upgrade keeps, what a rotation changes."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import uuid

import pytest
from chart_render import CHART, VALUES

from e2e.binaries import binary

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


class Release:
    """One release in a namespace of its own, which enforces the restricted profile."""

    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self.namespace = f"chart-{uuid.uuid4().hex[:8]}"
        cluster.create_namespace(self.namespace, level="restricted")

    def helm(self, *arguments: str) -> str:
        """Run helm; AssertionError with what it said."""
        done = subprocess.run(
            [str(binary("helm")), *arguments, "--namespace", self.namespace],
            env=self._cluster.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def upgrade(self, *options: str) -> None:
        """Install or upgrade, without waiting: nothing runs the pods here."""
        values = str(VALUES / "default-values.yaml")
        fixed = ("--install", "retire", str(CHART), "--values", values)
        self.helm("upgrade", *fixed, *(word for one in options for word in ("--set", one)))

    def get(self, *what: str) -> dict:
        """One object or list."""
        told = self._cluster.kubectl("get", "-n", self.namespace, *what, "-o", "json")
        return json.loads(told)

    def secret(self, name: str) -> dict[str, str]:
        """Its values."""
        found = self.get("secret", f"retire-{name}")["data"]
        return {key: base64.b64decode(value).decode() for key, value in found.items()}

    def may(self, account: str, verb: str, what: str, *options: str) -> bool:
        """Whether a ServiceAccount of the release has a right, by the API server's own word."""
        user = f"system:serviceaccount:{self.namespace}:{account}"
        done = subprocess.run(
            [str(binary("kubectl")), "auth", "can-i", verb, what, "--as", user, *options],
            env=self._cluster.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout.strip() == "yes"


@pytest.fixture(scope="module")
def release(cluster):
    """Installed with the defaults; uninstalled at the end, when nothing of it may be left."""
    one = Release(cluster)
    one.upgrade()
    yield one
    one.helm("uninstall", "retire")
    kinds = "deployment,statefulset,service,secret,configmap,role,rolebinding,networkpolicy,pdb"
    left = one.get(kinds, "-l", "app.kubernetes.io/instance=retire")["items"]
    assert left == []
    cluster.api.delete(f"/api/v1/namespaces/{one.namespace}")


def test_the_api_server_takes_it_all(release):
    """Installed, and the controllers could make the pods: restricted Pod Security lets them in."""
    assert release.get("crd", "servingscopes.serving.retire.dev")
    for _ in range(300):
        pods = release.get("pods")["items"]
        made = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in pods}
        if made == {"operator", "node", "registry"}:
            break
        threading.Event().wait(0.2)
    assert made == {"operator", "node", "registry"}, release.get("events")["items"]
    assert len(pods) == 4


def test_an_upgrade_keeps_passwords_and_certificates(release):
    """Nothing that is random is made again, so nothing restarts."""
    names = ("ca", "operator-tls", "sidecar-tls", "registry-tls")
    names += ("registry-server", "registry-clients")
    before = {name: release.secret(name) for name in names}
    release.upgrade("operator.resyncSeconds=31")
    assert {name: release.secret(name) for name in names} == before


def test_rotation_makes_new_certificates_of_the_same_authority(release):
    """tls.rotation: new leaves, the authority as before; control: once only."""
    ca, leaf = release.secret("ca"), release.secret("sidecar-tls")
    release.upgrade("tls.rotation=2")
    rotated = release.secret("sidecar-tls")
    assert release.secret("ca") == ca
    assert rotated["tls.crt"] != leaf["tls.crt"]
    assert rotated["ca.crt"] == leaf["ca.crt"]
    release.upgrade("tls.rotation=2")
    assert release.secret("sidecar-tls") == rotated


def test_a_new_authority_is_trusted_before_it_signs(release):
    """tls.caRotation: both in the bundle, leaves kept; then tls.rotation: leaves of the new one."""
    release.upgrade("tls.rotation=2")
    old, leaf = release.secret("ca"), release.secret("operator-tls")
    release.upgrade("tls.rotation=2", "tls.caRotation=2")
    new, kept = release.secret("ca"), release.secret("operator-tls")
    assert new["tls.crt"] != old["tls.crt"]
    assert new["ca.crt"] == new["tls.crt"] + old["tls.crt"]
    assert kept["tls.crt"] == leaf["tls.crt"]
    assert kept["ca.crt"] == new["ca.crt"]
    release.upgrade("tls.rotation=3", "tls.caRotation=2")
    assert release.secret("operator-tls")["tls.crt"] != leaf["tls.crt"]
    assert release.secret("ca") == new


def test_password_rotation(release):
    """registry.bundled.passwordRotation: new passwords in both Secrets, and pods that restart."""
    before = release.secret("registry-server"), release.get("statefulset", "retire-node")
    release.upgrade("registry.bundled.passwordRotation=2")
    after = release.secret("registry-server"), release.get("statefulset", "retire-node")
    assert after[0]["sidecar-password"] != before[0]["sidecar-password"]
    assert after[0]["sidecar-password"] in release.secret("registry-clients")["sidecar-url"]
    assert after[1]["spec"]["template"] != before[1]["spec"]["template"]


def test_rights_by_the_api_servers_own_word(release):
    """The operator may do its work and no more; a node reads one Lease; control: refusals."""
    here = ("-n", release.namespace)
    operator, node = "retire-operator", "retire-node"
    assert release.may(operator, "patch", "servingscopes.serving.retire.dev", "-n", "default")
    status = ("patch", "servingscopes.serving.retire.dev", "--subresource=status")
    assert release.may(operator, *status, "-n", "default")
    assert release.may(operator, "update", "leases.coordination.k8s.io/retire-term", *here)
    assert release.may(operator, "watch", "pods", *here)
    assert release.may(operator, "list", "namespaces")
    assert release.may(node, "get", "leases.coordination.k8s.io/retire-term", *here)
    for account, verb, what, *options in (
        (operator, "update", "leases.coordination.k8s.io/other", *here),
        (operator, "list", "secrets", "-n", "default"),
        (operator, "watch", "pods", "-n", "default"),
        (operator, "delete", "servingscopes.serving.retire.dev", "-n", "default"),
        (operator, "patch", "namespaces"),
        (node, "update", "leases.coordination.k8s.io/retire-term", *here),
        (node, "get", "leases.coordination.k8s.io/other", *here),
        (node, "get", "secrets", *here),
        (node, "create", "tokenreviews.authentication.k8s.io"),
    ):
        assert not release.may(account, verb, what, *options), (account, verb, what)

"""Every command of docs/security.md, as it is written, on a real API server with the chart."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from chart_render import ROOT

from e2e.binaries import binary

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
PAGE = ROOT / "docs" / "security.md"
NAMESPACE = "retire"  # the page's own


class Shell:
    """bash where a reader would stand; there are no kubelets to wait for."""

    def __init__(self, cluster, folder: Path) -> None:
        self.cluster, self.text = cluster, PAGE.read_text()
        (folder / "sleep").write_text("#!/bin/sh\n")
        (folder / "sleep").chmod(0o755)
        tools = [str(folder), str(binary("kubectl").parent), str(binary("helm").parent)]
        self._env = {**cluster.env, "PATH": os.pathsep.join([*tools, os.environ["PATH"]])}

    def __call__(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=self._env,
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def snippets(self) -> list[str]:
        """The page's commands, in order."""
        return re.findall(r"(?ms)^```bash\n(.*?)^```$", self.text)

    def secret(self, name: str) -> dict[str, str]:
        """Its values."""
        told = self.cluster.kubectl("get", "secret", name, "-n", NAMESPACE, "-o", "json")
        data = json.loads(told)["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}


@pytest.fixture(scope="module")
def shell(cluster, tmp_path_factory: pytest.TempPathFactory):
    """With the release that the page speaks of."""
    one = Shell(cluster, tmp_path_factory.mktemp("bin"))
    one(f"kubectl create namespace {NAMESPACE}")
    one(f"helm install retire charts/retire --namespace {NAMESPACE} --set model=m")
    yield one
    one(f"helm uninstall retire --namespace {NAMESPACE}")
    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}")


def test_every_command_of_the_page(shell: Shell):
    """Each does what the page says of it: tokens are known by digest only, certificates and the
    registry's passwords change, the namespace enforces the restricted profile."""
    tokens, certificates, authority, password, label = shell.snippets()
    said = shell(f"{tokens}\necho TOKEN=$TOKEN")
    digest = hashlib.sha256(said.rpartition("TOKEN=")[2].strip().encode()).hexdigest()
    (entry,) = json.loads(shell.secret("retire-api-tokens")["tokens.json"])["tokens"]
    assert entry == {"sha256": digest, "tenant": "acme", "name": "ci"}

    before = shell.secret("retire-operator-tls")
    shell(certificates)
    after = shell.secret("retire-operator-tls")
    assert after["tls.crt"] != before["tls.crt"] and after["ca.crt"] == before["ca.crt"]
    shell(authority)
    trusted = shell.secret("retire-operator-tls")["ca.crt"]
    assert trusted != before["ca.crt"] and before["ca.crt"].strip() in trusted

    old = shell.secret("retire-registry-server")
    shell(password)
    new = shell.secret("retire-registry-server")
    assert new.keys() == old.keys() and new != old

    shell(label)
    told = shell.cluster.kubectl("get", "namespace", NAMESPACE, "-o", "json")
    assert json.loads(told)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == (
        "restricted"
    )


def test_a_token_of_a_service_account(shell: Shell):
    """The page's inline command: bound to this API by its audience."""
    (command,) = re.findall(r"`(kubectl -n acme create token [^`]+)`", shell.text)
    shell.cluster.create_namespace("acme", level="restricted")
    shell("kubectl -n acme create serviceaccount agent")
    _, claims, _ = shell(command).strip().split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert told["aud"] == ["retire"]
    assert told["sub"] == "system:serviceaccount:acme:agent"
    shell.cluster.api.delete("/api/v1/namespaces/acme")


def test_a_broken_command_would_be_seen(shell: Shell):
    """CONTROL: a value that the chart does not have fails the snippet."""
    with pytest.raises(AssertionError, match="rotations"):
        shell(shell.snippets()[1].replace("tls.rotation", "tls.rotations"))

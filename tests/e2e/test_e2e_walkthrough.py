"""docs/kubernetes.md, every command of it, from an empty cluster to an empty cluster. Runs last.

The cluster is the one that the uninstall left; ``e2e_pages`` says what is added for this machine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from e2e_pages import Block, PageFailed, Reader, blocks

from bench.tiny_models import tiny_model
from e2e.deployment import NAMESPACE, Deployment, values
from e2e.waiting import wait_gone

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "kubernetes.md"
LIMIT_S = 1500.0
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/servingscopes.serving.retire.dev"


@pytest.fixture
def reader(deployment: Deployment, tmp_path: Path) -> Reader:
    """Somebody with a cluster on which nothing of ours is left, and a machine without a GPU."""
    cluster = deployment.cluster
    if cluster.api.exists(CRD):
        cluster.kubectl("delete", "servingscopes", "--all", "--all-namespaces", "--timeout=110s")
        if deployment.release.helm("list", "--short").strip():
            deployment.release.uninstall()
        cluster.kubectl("delete", "crd", "servingscopes.serving.retire.dev")
    for name in (NAMESPACE, "acme"):
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=110s")
    deployment.history.path.write_text("")  # another registry, which starts at term 1 as well
    model = tiny_model()
    mine = values(model)
    mine["node"] = {**mine["node"], "replicas": 1}
    mine["registry"] = {"bundled": {"persistence": {"size": "64Mi"}}}  # with TLS, as by default
    return Reader.prepare(tmp_path, cluster.env, model=model, values=mine)


@pytest.mark.timeout(LIMIT_S + 300)
def test_every_command_of_the_page(deployment: Deployment, reader: Reader) -> None:
    """Each ends well, in order; what they print is what the page says; nothing is left."""
    found = blocks(PAGE)
    assert len(found) >= 12
    printed = reader.run(found, LIMIT_S)
    for heading, words in printed.items():
        print(f"=== {heading}\n{words}")
    assert "Phase:          Succeeded" in printed["1. Install"]
    assert _row(printed["2. A scope"]) == ["plan", "1.0", "Active", "True", "Current"]
    assert '"id":"tiny"' in printed["3. A stream"]
    receipt = json.loads(printed["4. Change the plan"].splitlines()[-1])
    assert (receipt["fromVersion"], receipt["toVersion"]) == ("1.0", "1.1")
    assert receipt["retiredRequests"] == 1
    last = [line for line in printed["4. Change the plan"].splitlines() if "superseded" in line]
    assert '"current":"1.1"' in last[0].replace(" ", "")
    prewarm = json.loads(printed["5. Pre-warm the successor"].splitlines()[-1])
    assert prewarm["version"] == "1.2" and prewarm["promptTokens"] > 0
    assert deployment.history.judge(at_least=20)
    api = deployment.cluster.api
    for name in ("acme", NAMESPACE):
        wait_gone(api, f"/api/v1/namespaces/{name}")
    assert not api.exists("/apis/serving.retire.dev/v1alpha1")


def test_a_command_that_fails_ends_the_page(tmp_path: Path) -> None:
    """Otherwise every page would pass."""
    reader = Reader(tmp_path, {"PATH": "/usr/bin:/bin"})
    page = [Block("One", "echo one\nsleep 60 &\n"), Block("Two", "false\necho two\n")]
    with pytest.raises(PageFailed, match="=== Two") as caught:
        reader.run(page, 30)
    assert "one" in str(caught.value) and "two" not in str(caught.value)
    assert reader.run(page[:1], 30) == {"One": "one"}


def _row(words: str) -> list[str]:
    """The last line of a table, without its later columns."""
    return words.splitlines()[-1].split()[:5]

"""What the API server makes of a ServingScope: defaults, status apart, columns, names, examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from crd_schema import FILE, Scopes

from e2e.api import ApiError

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster import ExistingCluster

EXAMPLES = sorted((FILE.parent / "examples").glob("*.yaml"))
READY: dict[str, Any] = {
    "observedGeneration": 1,
    "version": "2.7",
    "term": 2,
    "epoch": 7,
    "phase": "Active",
    "inheritedTokens": 7168,
    "pinnedBlocks": 12,
    "conditions": [
        {
            "type": "Fenced",
            "status": "False",
            "lastTransitionTime": "2026-11-30T12:00:00Z",
            "reason": "NeverRetired",
        },
        {
            "type": "Ready",
            "status": "True",
            "lastTransitionTime": "2026-11-30T12:00:00Z",
            "reason": "AtEpoch",
            "message": "",
        },
    ],
}


@pytest.fixture
def scopes(cluster: ExistingCluster, crd: str, namespace: str) -> Scopes:
    """Of the test's namespace."""
    return Scopes(cluster.api, namespace)


@pytest.mark.parametrize("spec", [{}, None], ids=["empty", "absent"])
def test_defaults_are_filled_in(scopes: Scopes, spec: dict[str, Any] | None):
    """What is not said, an empty or absent spec included, is written into the object."""
    assert scopes.create(spec)["spec"] == {
        "epoch": 0,
        "paused": False,
        "cancelled": False,
        "poolRef": {"name": "default"},
        "contract": {
            "equivalence": "exact",
            "inherit": "certified",
            "retention": {"tier": "hbm", "ttlSeconds": 30},
        },
    }


def test_defaults_fill_gaps_only(scopes: Scopes):
    """What is said stays; the key of a reference is filled in."""
    spec = scopes.create(
        {
            "poolRef": {},
            "contract": {"retention": {"tier": "dram"}},
            "context": {"configMapRef": {"name": "plan"}},
        }
    )["spec"]
    assert spec["poolRef"] == {"name": "default"}
    assert spec["contract"]["retention"] == {"tier": "dram", "ttlSeconds": 30}
    assert spec["context"] == {"configMapRef": {"name": "plan", "key": "context"}}
    assert "tenant" not in spec, "the namespace is the tenant, and stays unsaid"
    assert "onNewInput" not in spec


def test_a_status_is_not_written_through_the_object(scopes: Scopes):
    """Whoever may edit the spec cannot claim a status; nor at creation."""
    body = {**scopes.body({}, "plan"), "status": READY}
    assert "status" not in scopes.api.create(scopes.path, body)
    path = f"{scopes.path}/plan"
    scopes.set_status(READY)
    scopes.api.merge(path, {"status": {"epoch": 99}, "spec": {"epoch": 1}})
    stored = scopes.api.get(path)
    assert (stored["spec"]["epoch"], stored["status"]["epoch"]) == (1, 7)


def test_a_spec_is_not_written_through_the_status(scopes: Scopes):
    """The operator's status writes can never revise, pause or cancel."""
    created = scopes.create({"epoch": 1})
    path = f"{scopes.path}/plan"
    scopes.api.merge(f"{path}/status", {"spec": {"epoch": 2, "cancelled": True}, "status": READY})
    stored = scopes.api.get(path)
    assert stored["spec"] == created["spec"]
    assert stored["status"] == READY


def test_the_generation_counts_specs_only(scopes: Scopes):
    """observedGeneration means something: a status write does not raise the generation."""
    assert scopes.create({})["metadata"]["generation"] == 1
    assert scopes.set_status(READY)["metadata"]["generation"] == 1
    assert scopes.update({"epoch": 1})["metadata"]["generation"] == 2


def test_status_writers_of_conditions_do_not_collide(scopes: Scopes):
    """Conditions are a map: two server-side appliers each own theirs."""
    scopes.create({})
    path = f"{scopes.path}/plan/status"
    for one, manager in zip(READY["conditions"], ("a", "b"), strict=True):
        body = {**scopes.body(None, "plan"), "status": {"conditions": [one]}}
        scopes.api.apply(path, body, manager, force=False)
    types = [c["type"] for c in scopes.api.get(f"{scopes.path}/plan")["status"]["conditions"]]
    assert types == ["Fenced", "Ready"]


def test_kubectl_shows_the_columns(cluster: ExistingCluster, scopes: Scopes, namespace: str):
    """Version, Phase, Ready, Reason, Inherited, Pinned, Age, by short name and by category."""
    scopes.create({}, "fresh")
    scopes.create({}, "plan")
    scopes.set_status(READY, "plan")
    for name in ("svscope", "servingscope", "serving"):
        lines = cluster.kubectl("get", name, "-n", namespace).splitlines()
        head, fresh, plan = [line.split() for line in lines]
        assert head == ["NAME", "VERSION", "PHASE", "READY", "REASON", "INHERITED", "PINNED", "AGE"]
        assert plan[:-1] == ["plan", "2.7", "Active", "True", "AtEpoch", "7168", "12"]
        assert fresh[0] == "fresh"
        assert len(fresh) == 2, "nothing is claimed before there is a status"


def test_kubectl_waits_for_ready(cluster: ExistingCluster, scopes: Scopes, namespace: str):
    """`kubectl wait --for=condition=Ready` works, and times out when it is not so."""
    scopes.create({})
    scopes.set_status(READY)
    wait = ["wait", "-n", namespace, "svscope/plan", "--timeout=2s"]
    assert "condition met" in cluster.kubectl(*wait, "--for=condition=Ready")
    with pytest.raises(Exception, match="timed out"):
        cluster.kubectl(*wait, "--for=condition=Fenced")


def test_kubectl_explains_a_field(cluster: ExistingCluster, crd: str):
    """The schema is published with its descriptions and enums."""
    text = cluster.kubectl("explain", "servingscope.spec.contract.retention.tier")
    assert "hbm" in text
    assert "dram" in text
    assert "one for every revision" in cluster.kubectl("explain", "servingscope.spec.epoch")


def test_the_crd_is_structural(cluster: ExistingCluster, crd: str):
    """Established, names accepted, and no complaint about the schema."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}"
    conditions = cluster.api.get(path)["status"]["conditions"]
    assert {c["type"] for c in conditions if c["status"] == "True"} == {
        "Established",
        "NamesAccepted",
    }


def test_there_are_examples():
    """What the documentation shows is what is tested."""
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted(cluster: ExistingCluster, crd: str, namespace: str, path: Path):
    """kubectl's strict validation takes every document of it, without a warning."""
    documents = [doc for doc in yaml.safe_load_all(path.read_text()) if doc]
    kinds = {doc["kind"] for doc in documents}
    assert "ServingScope" in kinds
    for doc in documents:
        if doc["kind"] == "Namespace":
            cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(doc))
            continue
        doc["metadata"]["namespace"] = namespace
        flags = ("--validate=strict", "--warnings-as-errors")
        cluster.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(doc))


def test_a_scope_of_another_version_is_unknown(scopes: Scopes):
    """Only v1alpha1 is served."""
    with pytest.raises(ApiError) as caught:
        scopes.api.get(scopes.path.replace("v1alpha1", "v1"))
    assert caught.value.code == 404

"""Every object of every variant is one that two Kubernetes versions know."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import yaml
from chart_render import CHART, ROOT, VARIANTS
from chart_schemas import VERSIONS, problems

# Kinds of other projects, and the fields of their spec that we use.
FOREIGN = {
    ("cert-manager.io/v1", "Issuer"): {"selfSigned", "ca"},
    ("cert-manager.io/v1", "Certificate"): {
        *("isCA", "commonName", "secretName", "duration", "renewBefore", "privateKey"),
        *("issuerRef", "dnsNames", "usages"),
    },
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {"selector", "podTargetLabels", "endpoints"},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {"groups"},
}


@pytest.fixture(scope="module", autouse=True)
def schemas():
    """Fetched once; nothing is done when they are there."""
    subprocess.run([sys.executable, str(ROOT / "scripts" / "chart-schemas")], check=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_object_is_valid(name: str, version: str, variant):
    """No unknown field, no wrong type, no missing field, no kind that the version lacks."""
    refused: dict[str, list[str]] = {}
    for one in variant(name).objects:
        if allowed := FOREIGN.get((one["apiVersion"], one["kind"])):
            assert set(one["spec"]) <= allowed, one["metadata"]["name"]
        elif found := problems(one, version):
            refused[f"{one['kind']} {one['metadata']['name']}"] = found
    assert refused == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_crds_are_valid(version: str):
    """The CustomResourceDefinitions too."""
    for path in (CHART / "crds").glob("*.yaml"):
        assert problems(yaml.safe_load(path.read_text()), version) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrong_object_would_be_refused(version: str, variant):
    """Control: a misspelt field deep inside, a wrong type, a missing field, an unknown kind."""
    right = variant("default").one("StatefulSet", "retire-node")
    for path, value in (
        (("spec", "template", "spec", "containers", 0, "imagePullPolice"), "Always"),
        (("spec", "template", "spec", "volumes", 0, "emptyDir", "medium"), 1),
        (("spec", "replicas"), "one"),
        (("spec", "selector"), None),
        (("apiVersion",), "apps/v1beta1"),
    ):
        wrong = copy.deepcopy(right)
        place = wrong
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        assert problems(wrong, version), path


def test_no_objects_of_one_release_share_a_name(variant):
    """Two objects of one kind and name would overwrite each other."""
    for name in VARIANTS:
        keys = [
            (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
            for one in variant(name).objects
        ]
        assert len(keys) == len(set(keys))

"""Wrong values are refused with the field named; right ones do what they say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from chart_render import CHART, containers, refusal, render_variant, secret, template

MODEL = ("--set", "model=m")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("node.gpuz=1", "'/node': additional properties 'gpuz' not allowed"),
        ("nod.gpus=1", "additional properties 'nod' not allowed"),
        ("node.gpus=two", "'/node/gpus': got string, want integer"),
        ("node.gpus=-1", "'/node/gpus': minimum: got -1, want 0"),
        ("auth.mode=oidc", "'/auth/mode': value must be one of"),
        ("tls.mode=off", "'/tls/mode'"),
        ("registry.mode=redis", "'/registry/mode'"),
        ("sidecar.leaseSeconds=61", "'/sidecar/leaseSeconds': maximum"),
        ("sidecar.leaseSeconds=2s", "'/sidecar/leaseSeconds': '2s' does not match"),
        ("pool.name=Large_Pool", "'/pool/name'"),
        ("registry.external.urls.sidecar=http://x", "'/registry/external/urls/sidecar'"),
        ("registry.bundled.maxMemory=1TiB", "'/registry/bundled/maxMemory'"),
        ("registry.bundled.passwords.operator=a b", "'/registry/bundled/passwords/operator'"),
        ("node.cache.size=big", "'/node/cache/size'"),
        ("image.operator.digest=latest", "'/image/operator/digest'"),
        ("networkPolicy.apiServer.ports[0]=0", "'/networkPolicy/apiServer/ports/0'"),
        ("networkPolicy.apiServer.cidrs[0]=host", "'/networkPolicy/apiServer/cidrs/0'"),
        ("auth.static.tokens[0].tenant=acme", "'/auth/static/tokens/0': missing properties"),
        ("extraArgs=--enforce-eager", "'/extraArgs': got string, want array"),
        ("operator.watchNamespaces[0]=Team", "'/operator/watchNamespaces/0'"),
    ],
)
def test_the_schema_names_the_field(given: str, said: str):
    """One wrong value each."""
    assert said in refusal(*MODEL, "--set", given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("model=", "model: must name the model"),
        ("registry.mode=external", "registry.external: set existingSecret, or all of urls"),
        ("auth.mode=static", "auth.static: set existingSecret or tokens"),
        (
            "tls.mode=existing,tls.existing.registrySecret=r,tls.existing.sidecarSecret=s",
            "tls.existing.operatorSecret must name a Secret",
        ),
        (
            "operator.enabled=false",
            "registry.mode: must be external when operator.enabled is false",
        ),
        ("registry.bundled.passwords.sidecar=x", "passwords: set all three or none"),
        ("node.cache.persistent=true,node.cache.existingClaim=c", "node.cache: set persistent or"),
        (
            "operator.enabled=false,registry.mode=external,registry.external.existingSecret=s",
            "tls.mode: must be existing or certManager when operator.enabled is false",
        ),
    ],
)
def test_what_cannot_be_together_is_refused(given: str, said: str):
    """Each right by itself, wrong together; the message names the field and what to set."""
    assert said in refusal(*MODEL, "--set", given)


def open_objects(schema: dict, path: str = "") -> list[str]:
    """Objects with named properties that would take any other name too."""
    found = (
        [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
    )
    for part in ("properties", "$defs"):
        for name, inner in schema.get(part, {}).items():
            found += open_objects(inner, f"{path}/{name}")
    return found + (open_objects(schema["items"], path + "/*") if "items" in schema else [])


def test_no_typo_is_taken():
    """Every object of the schema is closed; control: one that is open is found."""
    assert open_objects(SCHEMA) == []
    assert open_objects({"properties": {"a": {"properties": {}}}}) == ["", "/a"]


def test_every_value_is_in_the_schema_and_has_a_default():
    """values.yaml and the schema name the same fields; only free maps and lists may differ."""

    def paths(schema: dict, path: str = "") -> set[str]:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        inner = schema.get("properties", {})
        return {path} | {p for name, one in inner.items() for p in paths(one, f"{path}/{name}")}

    def given(value: object, path: str = "") -> set[str]:
        inner = value if isinstance(value, dict) else {}
        return {path} | {p for name, one in inner.items() for p in given(one, f"{path}/{name}")}

    values = given(yaml.safe_load((CHART / "values.yaml").read_text()))
    described = paths(SCHEMA)
    free = {"/dashboards/labels/grafana_dashboard"}
    free |= {"/node/resources/requests/cpu", "/node/resources/requests/memory"}
    for part in ("operator", "sidecar", "registry/bundled"):
        free |= {f"/{part}/resources/{at}" for at in ("requests/cpu", "requests/memory")}
        free |= {f"/{part}/resources/limits/memory"}
    assert values - described == free
    assert described - values == {"/global"}


def test_gpus(variant):
    """One by default, none when it is 0, and the resource's name can be changed."""

    def limits(*options: str) -> dict:
        rendered = template(*MODEL, *options)
        (vllm,) = rendered.one("StatefulSet", "retire-node")["spec"]["template"]["spec"][
            "containers"
        ]
        return vllm["resources"].get("limits", {})

    assert limits() == {"nvidia.com/gpu": 1}
    assert limits("--set", "node.gpus=0") == {}
    assert limits("--set", "node.gpuResource=amd.com/gpu,node.gpus=2") == {"amd.com/gpu": 2}
    with_memory = limits("--set", "node.resources.limits.memory=64Gi")
    assert with_memory == {"nvidia.com/gpu": 1, "memory": "64Gi"}


def test_the_drain_is_in_order(variant):
    """Endpoints first (preStop), then vLLM's streams, and the grace period covers both."""
    spec = dict(variant("default").pods())["retire-node"]["spec"]
    (sidecar,), (vllm,) = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always", "a native sidecar ends after the containers"
    assert "lifecycle" not in sidecar
    wait = vllm["lifecycle"]["preStop"]["sleep"]["seconds"]
    streams = int(vllm["args"][vllm["args"].index("--shutdown-timeout") + 1])
    assert wait > 0
    assert streams > 0
    assert spec["terminationGracePeriodSeconds"] >= wait + streams + 30


def test_budgets_only_where_a_second_pod_can_be_ready(variant):
    """A budget for one replica would only keep hosts from being drained."""

    def budgets(name: str) -> set[str]:
        return {one["metadata"]["name"] for one in variant(name).of("PodDisruptionBudget")}

    assert budgets("default") == {"retire-operator"}
    assert budgets("cpu") == {"retire-node"}
    assert budgets("production") == {"retire-operator", "retire-node"}
    assert budgets("static") == {"retire-operator", "retire-registry"}


def test_images(variant):
    """Operator and sidecar are one image; a digest wins over a tag; the appVersion is the tag."""
    images = {
        one["name"]: one["image"] for _, pod in variant("default").pods() for one in containers(pod)
    }
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert images["operator"] == images["sidecar"] == f"ghcr.io/retire-dev/operator:{version}"
    assert images["vllm"] == f"ghcr.io/retire-dev/node:{version}"
    pinned = dict(variant("production").pods())["retire-operator"]["spec"]["containers"][0]
    assert pinned["image"] == "ghcr.io/retire-dev/operator@sha256:" + 64 * "0"


def test_every_dashboard_becomes_a_config_map(tmp_path: Path):
    """dashboards/*.json, when dashboards.enabled; Grafana's label is on it."""
    chart = tmp_path / "retire"
    shutil.copytree(CHART, chart)
    (chart / "dashboards" / "guarantee.json").write_text('{"uid": "{{ not a template }}"}')
    on = template(*MODEL, "--set", "dashboards.enabled=true", chart=chart)
    one = on.one("ConfigMap", "retire-dashboard-guarantee")
    assert json.loads(one["data"]["guarantee.json"]) == {"uid": "{{ not a template }}"}
    assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
    off = template(*MODEL, chart=chart)
    assert not [one for one in off.of("ConfigMap") if "dashboard" in one["metadata"]["name"]]


def test_what_is_scraped(variant):
    """Every node once, by its headless Service, on both ports."""
    rendered = variant("production")
    monitor = rendered.one("ServiceMonitor", "retire-node")["spec"]
    assert [one["port"] for one in monitor["endpoints"]] == ["http", "health"]
    wanted = monitor["selector"]["matchLabels"] | {"serving.retire.dev/scrape": "true"}
    services = [
        one["metadata"]["name"]
        for one in rendered.of("Service")
        if wanted.items() <= one["metadata"]["labels"].items()
    ]
    assert services == ["retire-node"]
    assert variant("default").of("ServiceMonitor") == []


def test_tokens_come_from_a_secret(variant):
    """auth.static.tokens makes tokens.json; only digests are in it."""
    tokens = json.loads(secret(variant("static").one("Secret", "retire-tokens"), "tokens.json"))
    assert [sorted(one) for one in tokens["tokens"]] == [["name", "sha256", "tenant"]]
    assert len(tokens["tokens"][0]["sha256"]) == 64


def test_extra_objects_are_templates():
    """They see the release's names and values."""
    extra = render_variant("production").one("ConfigMap", "retire-extra")
    assert extra["data"] == {"pool": "large"}


def test_pools_of_one_namespace_do_not_take_each_others_pods(variant):
    """Two releases: selectors differ by instance, the pool's label by value."""
    first, second = variant("default"), variant("pool")
    labels = [dict(one.pods())["retire-node"]["metadata"]["labels"] for one in (first, second)]
    assert [one["serving.retire.dev/pool"] for one in labels] == ["default", "small"]
    other = template(*MODEL, "--set", "fullnameOverride=other")
    selector = other.one("Service", "other-node")["spec"]["selector"]
    assert selector["app.kubernetes.io/instance"] == "retire"

"""Restricted pods, closed networks, and no token where none is needed."""

from __future__ import annotations

import copy

import pytest
from chart_render import VARIANTS, containers
from chart_security import selects, violations

WITH_NETWORK = [name for name in VARIANTS if name != "static"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_pod_is_restricted(name: str, variant):
    """The restricted Pod Security Standard, read-only root file systems, uid 65532."""
    pods = dict(variant(name).pods())
    assert pods
    assert {pod: found for pod, one in pods.items() if (found := violations(one))} == {}
    assert {one["spec"]["securityContext"]["runAsUser"] for one in pods.values()} == {65532}


WRONG = {
    "hostNetwork": lambda spec: spec.update(hostNetwork=True),
    "volume bad": lambda spec: spec["volumes"].append({"name": "bad", "hostPath": {"path": "/"}}),
    "sysctl a": lambda spec: spec["securityContext"].update(sysctls=[{"name": "a", "value": "1"}]),
    "seccompProfile": lambda spec: spec["securityContext"].pop("seccompProfile"),
    "runAsUser": lambda spec: spec["securityContext"].update(runAsUser=0),
    "privileged": lambda spec: _context(spec).update(privileged=True),
    "allowPrivilegeEscalation": lambda spec: _context(spec).pop("allowPrivilegeEscalation"),
    "capabilities.drop": lambda spec: _context(spec).pop("capabilities"),
    "capabilities.add": lambda spec: _context(spec)["capabilities"].update(add=["SYS_ADMIN"]),
    "runAsNonRoot": lambda spec: _context(spec).update(runAsNonRoot=False),
    "readOnlyRootFilesystem": lambda spec: _context(spec).pop("readOnlyRootFilesystem"),
    "hostPort": lambda spec: spec["containers"][0]["ports"][0].update(hostPort=80),
}


def _context(spec):
    return spec["containers"][0]["securityContext"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_laxer_pod_would_be_seen(wrong: str, variant):
    """Control: each rule of the profile is looked at."""
    pod = copy.deepcopy(dict(variant("default").pods())["retire-node"])
    assert violations(pod) == []
    WRONG[wrong](pod["spec"])
    assert [what for what in violations(pod) if what.removeprefix("spec.").endswith(wrong)]


def test_what_is_written_has_a_place(variant):
    """The root file system is read-only: vLLM's caches, /tmp and shared memory are volumes."""
    node = dict(variant("default").pods())["retire-node"]
    vllm = node["spec"]["containers"][0]
    mounts = {one["mountPath"]: one["name"] for one in vllm["volumeMounts"]}
    volumes = {one["name"]: one for one in node["spec"]["volumes"]}
    assert {"/run/retire", "/dev/shm", "/tmp", "/cache"} <= set(mounts)
    for path in ("/run/retire", "/dev/shm"):
        assert volumes[mounts[path]]["emptyDir"]["medium"] == "Memory"
    written = {"HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    env = {one["name"]: one.get("value") for one in vllm["env"]}
    assert {name for name in written if not str(env.get(name)).startswith("/cache")} == set()


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_api_server_are_held_by_two_containers_only(name: str, variant):
    """The operator and the sidecar; vLLM, the registry and the test never see one."""
    holders = set()
    for pod, one in variant(name).pods():
        assert one["spec"]["automountServiceAccountToken"] is False, pod
        holders |= {
            container["name"]
            for container in containers(one)
            if any(mount["name"] == "kube-api" for mount in container.get("volumeMounts", ()))
        }
    assert holders <= {"operator", "sidecar"}
    assert holders
    accounts = variant(name).of("ServiceAccount")
    assert [one for one in accounts if one["automountServiceAccountToken"] is not False] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_keys_are_held_by_their_owners_only(name: str, variant):
    """A private key is mounted by one process; of the registry others see the authority only."""
    for pod, one in variant(name).pods():
        volumes = {volume["name"]: volume for volume in one["spec"].get("volumes", ())}
        if "registry-tls" in volumes:
            items = volumes["registry-tls"]["secret"]["items"]
            assert [item["key"] for item in items] == ["ca.crt"], pod
        for container in containers(one):
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert "tls" not in mounted or container["name"] in ("operator", "sidecar", "registry")


@pytest.mark.parametrize("name", WITH_NETWORK)
def test_every_pod_is_under_a_policy_of_its_own(name: str, variant):
    """The default denial takes every pod, in both directions; another one opens its needs."""
    policies = variant(name).of("NetworkPolicy")
    for pod, one in variant(name).pods():
        labels = one["metadata"]["labels"]
        taken = [p for p in policies if selects(p["spec"]["podSelector"], labels)]
        assert {"retire-default-deny"} < {p["metadata"]["name"] for p in taken}, pod
        assert all(p["spec"]["policyTypes"] == ["Ingress", "Egress"] for p in taken), pod
    (denial,) = (p for p in policies if p["metadata"]["name"] == "retire-default-deny")
    assert not {"ingress", "egress"} & set(denial["spec"])


def test_a_foreign_pod_is_under_no_policy_of_ours(variant):
    """Control of the selectors: they take our pods, not the namespace's."""
    policies = variant("default").of("NetworkPolicy")
    foreign = {"app.kubernetes.io/name": "retire", "app.kubernetes.io/instance": "another"}
    assert not [p for p in policies if selects(p["spec"]["podSelector"], foreign)]


def test_only_their_clients_reach_the_registry_and_the_sidecars(variant):
    """6379: operators, nodes, the test. 7070: operators. Everybody: nothing but the API."""
    rendered = variant("default")

    def opened(name: str) -> dict[int, list[str] | None]:
        rules = rendered.one("NetworkPolicy", name)["spec"]["ingress"]
        peers = "app.kubernetes.io/component"
        return {
            port["port"]: [p["podSelector"]["matchLabels"][peers] for p in rule["from"]]
            if "from" in rule
            else None
            for rule in rules
            for port in rule["ports"]
        }

    assert opened("retire-registry") == {6379: ["operator", "node", "test"]}
    assert opened("retire-node") == {8000: None, 7070: ["operator"]}
    assert opened("retire-operator") == {}


def test_no_policies_when_they_are_switched_off(variant):
    """networkPolicy.enabled=false leaves none behind."""
    assert variant("static").of("NetworkPolicy") == []

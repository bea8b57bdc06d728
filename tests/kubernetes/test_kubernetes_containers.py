"""What a container sees: environment, files, user, names, the API server."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes_pods import SECURE, SLEEPER, Pods, container, pod_spec, server

from e2e.binaries import ROOT
from e2e.waiting import wait_for

if TYPE_CHECKING:
    from e2e.node.harness import Harness

ENV: list[dict[str, Any]] = [
    {"name": "PLAIN", "value": "one"},
    {"name": "JOINED", "value": "$(PLAIN)-$(FROM_MAP)-$(NOBODY)-$$(PLAIN)"},
    {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "a"}}},
    {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    {"name": "AGAIN", "value": "$(FROM_MAP)"},
]


@pytest.fixture
def sources(pods: Pods) -> Pods:
    """A ConfigMap and a Secret."""
    pods.put("configmaps", "conf", data={"a": "alpha", "b": "beta"})
    pods.put("secrets", "keys", stringData={"token": "s3cret"})
    return pods


def sleeper(name: str = "main", **fields: Any) -> dict[str, Any]:
    return container(name, SLEEPER, **fields)


def test_the_environment_is_the_kubelets(sources: Pods):
    """valueFrom of every kind, envFrom with a prefix, $(VAR) in order; in args as well."""
    show = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    one = container(
        "main",
        show,
        env=ENV,
        envFrom=[{"prefix": "C_", "configMapRef": {"name": "conf"}}],
        resources={"limits": {"cpu": "1500m"}},
        args=["$(PLAIN)", "$$(PLAIN)"],
    )
    sources.create("env", pod_spec(one, restartPolicy="Never"))
    pod = sources.ended("env", "Succeeded")
    env, argv = json.loads(sources.harness.log(sources.key("env"), "main"))
    assert argv == ["one", "$(PLAIN)"]
    assert env["JOINED"] == "one-$(FROM_MAP)-$(NOBODY)-$(PLAIN)", "only what stands before"
    assert (env["FROM_MAP"], env["FROM_SECRET"], env["AGAIN"]) == ("alpha", "s3cret", "alpha")
    assert (env["NAME"], env["APP"], env["CPU"]) == ("env", "env", "2")
    assert env["IP"] == pod["status"]["podIP"]
    assert (env["C_a"], env["C_b"]) == ("alpha", "beta")
    assert not {"VIRTUAL_ENV", "PYTEST_CURRENT_TEST"} & set(env), "nothing of the harness leaks"


def test_service_links_are_set_unless_refused(pods: Pods):
    """A service's variables, which real pods see too, and a program may mistake for its own."""
    pods.service("retire-registry", 6379)
    pods.create("first", pod_spec(sleeper()))
    pods.ready("first")

    def known() -> bool:
        return "retire-registry" in pods.run("first", "main", "cat", "/etc/hosts")

    wait_for("the harness to know the service", known)
    for name, wanted in (("linked", True), ("plain", False)):
        pods.create(name, pod_spec(sleeper(), enableServiceLinks=wanted))
        pods.ready(name)
        env = pods.run(name, "main", "env")
        assert ("RETIRE_REGISTRY_PORT=tcp://" in env) is wanted


def test_volumes_of_every_kind(sources: Pods):
    """ConfigMap, Secret with items and modes, projected, downward API, shared and memory."""
    volumes = [
        {"name": "map", "configMap": {"name": "conf"}},
        {
            "name": "secret",
            "secret": {
                "secretName": "keys",
                "items": [{"key": "token", "path": "deep/t", "mode": 0o440}],
            },
        },
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"configMap": {"name": "conf", "items": [{"key": "b", "path": "b"}]}},
                    {"secret": {"name": "keys"}},
                ]
            },
        },
        {
            "name": "down",
            "downwardAPI": {
                "items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
            },
        },
        {"name": "shared", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/v/{one['name']}"} for one in volumes]
    mounts.append({"name": "map", "mountPath": "/v/one-file", "subPath": "a"})
    spec = pod_spec(
        sleeper("writer", volumeMounts=mounts),
        sleeper("reader", volumeMounts=mounts),
        volumes=volumes,
    )
    spec["securityContext"] |= {"fsGroup": 4321}
    sources.create("volumes", spec)
    sources.ready("volumes")
    read = "cat /v/map/a /v/secret/deep/t /v/all/b /v/all/token /v/down/labels /v/one-file"
    assert sources.run("volumes", "writer", "sh", "-c", read) == (
        'alphas3cretbetas3cretapp="volumes"alpha'
    )
    stat = sources.run("volumes", "writer", "stat", "-Lc", "%a %g", "/v/secret/deep/t")
    assert stat.split() == ["440", "4321"]
    for folder in ("shared", "memory"):
        write = f"umask 0; echo hello > /v/{folder}/x"
        sources.run("volumes", "writer", "sh", "-c", write)
        assert sources.run("volumes", "reader", "cat", f"/v/{folder}/x") == "hello\n"
    kind = sources.run("volumes", "reader", "stat", "-fc", "%T", "/v/memory")
    assert kind.strip() == "tmpfs"


def test_a_live_source_is_swapped_at_once(sources: Pods):
    """A changed Secret arrives without a restart, all its files together; a subPath stays."""
    mounts = [
        {"name": "keys", "mountPath": "/keys"},
        {"name": "keys", "mountPath": "/fixed", "subPath": "token"},
    ]
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    sources.create("live", pod_spec(sleeper(volumeMounts=mounts), volumes=volumes))
    sources.ready("live")
    before = sources.run("live", "main", "readlink", "/keys/..data")
    new = {"stringData": {"token": "fresh", "second": "2"}}
    sources.cluster.api.merge(sources.path("keys", "secrets"), new)

    def fresh() -> bool:
        return sources.run("live", "main", "cat", "/keys/token") == "fresh"

    wait_for("the new Secret in the container", fresh)
    assert sources.run("live", "main", "cat", "/keys/second", "/fixed") == "2s3cret"
    assert sources.run("live", "main", "readlink", "/keys/..data") != before
    assert sources.status("live", "main")["restartCount"] == 0


def test_the_security_context_holds(pods: Pods):
    """User, groups, a read-only root but for volumes, no way back to privileges."""
    spec = pod_spec(
        sleeper(volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}]),
        volumes=[{"name": "tmp", "emptyDir": {}}],
    )
    spec["securityContext"] |= {"runAsUser": 1234, "runAsGroup": 99, "fsGroup": 77}
    pods.create("secure", spec)
    pods.ready("secure")
    assert pods.run("secure", "main", "id", "-u").strip() == "1234"
    assert set(pods.run("secure", "main", "id", "-G").split()) == {"99", "77"}
    assert pods.run("secure", "main", "sh", "-c", "echo x > /tmp/x; cat /tmp/x") == "x\n"
    code, output = pods.harness.exec(pods.key("secure"), "main", "touch", "/etc/x")
    assert (code, "Read-only file system" in output) == (1, True)
    status = pods.run("secure", "main", "cat", "/proc/self/status")
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status


def test_a_writable_root_is_the_containers_own(pods: Pods, cluster: Any):
    """What a container writes beside its volumes is gone with it, and the host never sees it."""
    cluster.api.merge(
        f"/api/v1/namespaces/{pods.namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    )
    root = {"runAsUser": 0, "runAsNonRoot": False, "readOnlyRootFilesystem": False}
    pods.create("root", pod_spec(sleeper(securityContext=root)))
    pods.ready("root")
    pods.run("root", "main", "sh", "-c", "echo x > /etc/harness-was-here; rm /etc/hostname")
    assert not os.path.exists("/etc/harness-was-here")
    assert os.path.exists("/etc/hostname")
    pods.harness.kill(pods.key("root"), "main")
    wait_for("the restart", lambda: pods.status("root", "main")["restartCount"] == 1)
    pods.ready("root")
    code, _ = pods.harness.exec(pods.key("root"), "main", "cat", "/etc/harness-was-here")
    assert code == 1


def test_a_volume_over_the_checkout_hides_no_software(pods: Pods):
    """Somebody cloned into /tmp, and the containers mount a volume there."""
    above = str(ROOT.parent)
    mounts = [{"name": "over", "mountPath": above}]
    pods.create(
        "over", pod_spec(sleeper(volumeMounts=mounts), volumes=[{"name": "over", "emptyDir": {}}])
    )
    pods.ready("over")
    pods.run("over", "main", "sh", "-c", f"echo x > {above}/x; cat {above}/x")
    assert not os.path.exists(f"{above}/x")
    code, output = pods.harness.exec(pods.key("over"), "main", "touch", str(ROOT / "x"))
    assert (code, "Read-only file system" in output) == (1, True)


def test_a_container_sees_its_own_processes_only(pods: Pods):
    """It is PID 1, and its neighbour in the pod is not there."""
    pods.create("two", pod_spec(sleeper("a"), sleeper("b")))
    pods.ready("two")
    listing = "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit())[0], "
    listing += "len([p for p in os.listdir('/proc') if p.isdigit()]))"
    assert pods.run("two", "a", "python", "-c", listing) == "1 2\n"
    assert pods.run("two", "a", "hostname") == "two\n"


def test_two_pods_may_listen_on_all_addresses(pods: Pods):
    """Each has a network of its own: the same port twice, and localhost means the pod."""
    for name in ("one", "two"):
        pods.create(name, pod_spec(server(), sleeper("beside")))
    for name in ("one", "two"):
        pods.ready(name)
        code, output = pods.fetch(name, "beside", "http://localhost:8000/")
        assert code == 0, output
    assert pods.harness.address(pods.key("one")) != pods.harness.address(pods.key("two"))


def test_a_service_is_found_by_every_name(pods: Pods):
    """Short, with namespace, fully qualified, by named target port; from another node's pod."""
    pods.service("web", 80)
    pods.create("web", pod_spec(server()))
    pods.create("client", pod_spec(sleeper()))
    pods.ready("web")
    pods.ready("client")
    short = f"web.{pods.namespace}"
    for name in ("web", short, f"{short}.svc", f"{short}.svc.cluster.local"):
        assert pods.fetch("client", "main", f"http://{name}/")[0] == 0, name
    code, output = pods.fetch("client", "main", "http://nobody/")
    assert code != 0
    assert "resolution" in output or "not known" in output, "an unknown name is unknown at once"


def test_a_headless_service_names_each_pod(pods: Pods):
    """pod.service, as a StatefulSet's pods call each other; the service itself is the pods."""
    pods.service("web", 8000, clusterIP="None")
    pods.create("web", pod_spec(server(), hostname="web", subdomain="web"))
    pods.create("client", pod_spec(sleeper()))
    pods.ready("web")
    pods.ready("client")

    def named() -> bool:
        return pods.fetch("client", "main", "http://web.web:8000/")[0] == 0

    wait_for("web.web to be known", named)
    own = pods.run("client", "main", "getent", "hosts", f"web.{pods.namespace}.svc")
    assert own.split()[0] == pods.harness.address(pods.key("web"))


def test_a_pod_talks_to_the_api_server(pods: Pods):
    """In-cluster configuration works: its token, the CA, the address; RBAC holds."""
    ask = """
import json, ssl, sys, urllib.error, urllib.request as u, os
at = "/var/run/secrets/kubernetes.io/serviceaccount/"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
headers = {"authorization": "Bearer " + open(at + "token").read()}
context = ssl.create_default_context(cafile=at + "ca.crt")
try:
    request = u.Request(f"https://{host}:{port}/api/v1/" + sys.argv[1], headers=headers)
    u.urlopen(request, context=context)
    print("allowed")
except urllib.error.HTTPError as error:
    print(json.load(error)["message"])
"""
    pods.create("client", pod_spec(sleeper()))
    pods.ready("client")
    path = f"namespaces/{pods.namespace}/pods"
    refused = pods.run("client", "main", "python", "-c", ask, path)
    assert f"system:serviceaccount:{pods.namespace}:default" in refused
    assert "cannot list resource" in refused
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{pods.namespace}/rolebindings"
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": pods.namespace}
    role = {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}
    pods.cluster.api.create(
        rbac, {"metadata": {"name": "v"}, "subjects": [subject], "roleRef": role}
    )

    def allowed() -> bool:
        return pods.run("client", "main", "python", "-c", ask, path) == "allowed\n"

    wait_for("the role", allowed)


def test_a_pods_token_is_bound_to_it(pods: Pods):
    """TokenReview knows the pod, and refuses its token when the pod is gone."""
    pods.create("client", pod_spec(sleeper()))
    pods.ready("client")
    token = pods.run("client", "main", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")

    def review() -> dict[str, Any]:
        body = {"spec": {"token": token}}
        return pods.cluster.api.create("/apis/authentication.k8s.io/v1/tokenreviews", body)[
            "status"
        ]

    assert review()["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["client"]
    pods.cluster.api.delete(pods.path("client"))
    pods.gone("client")
    wait_for("the token to be void", lambda: not review().get("authenticated"))


def test_root_is_refused_where_the_pod_says_so(pods: Pods, harness: Harness):
    """runAsNonRoot with user 0 is a configuration error, not a root process."""
    spec = pod_spec(sleeper(securityContext=SECURE | {"runAsUser": 0}))
    pods.cluster.api.merge(
        f"/api/v1/namespaces/{pods.namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    )
    pods.create("root", spec)
    wait_for("the refusal", lambda: pods.waiting("root", "main").get("reason"))
    wait_for(
        "the reason",
        lambda: pods.waiting("root", "main").get("reason") == "CreateContainerConfigError",
    )
    assert "runAsNonRoot" in pods.waiting("root", "main")["message"]

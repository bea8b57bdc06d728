"""The life of pods: order, restarts, probes, graceful ends, workloads of the controllers."""

from __future__ import annotations

import os
from typing import Any

import pytest
from kubernetes_pods import SLEEPER, Pods, container, pod_spec, server

from e2e.waiting import wait_condition, wait_for, wait_replicas

NOTE = "import sys, time; print(f'{sys.argv[1]} {time.monotonic_ns()}', flush=True)"
# Says when it starts and when SIGTERM comes, and then takes its time.
SLOW_END = """
import signal, sys, time
def end(*_):
    print("term", time.monotonic_ns(), flush=True); time.sleep(float(sys.argv[1])); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("start", time.monotonic_ns(), flush=True)
time.sleep(600)
"""
DEAF = "import time; print('start', flush=True); time.sleep(600)"


def moment(pods: Pods, pod: str, of: str, word: str) -> int:
    """When a container said a word, on the machine's monotonic clock; waits for it."""

    def said() -> int:
        lines = pods.harness.log(pods.key(pod), of).splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(word)), 0)

    return wait_for(f"{of} to say {word}", said)


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_init_containers_and_sidecars_start_in_order(pods: Pods):
    """Each init container ends before the next; a native sidecar has started by then."""
    spec = pod_spec(
        container("main", NOTE + "; time.sleep(600)", "main"),
        initContainers=[
            container("one", NOTE, "one"),
            server("side", restartPolicy="Always", startupProbe=server()["readinessProbe"]),
            container("two", NOTE, "two"),
        ],
    )
    pods.create("order", spec)
    pods.ready("order")
    said = [moment(pods, "order", name, name) for name in ("one", "two", "main")]
    assert said == sorted(said)
    assert pods.status("order", "one")["state"]["terminated"]["reason"] == "Completed"
    side = pods.status("order", "side")
    assert (side["started"], side["ready"], "running" in side["state"]) == (True, True, True)


def test_a_sidecar_ends_after_the_main_containers(pods: Pods):
    """SIGTERM reaches a native sidecar only when the containers it serves have ended."""
    spec = pod_spec(
        container("main", SLOW_END, "1"),
        initContainers=[container("side", SLOW_END, "0", restartPolicy="Always")],
    )
    pods.create("ends", spec)
    pods.ready("ends")
    wait_for("main to start", lambda: "start" in pods.harness.log(pods.key("ends"), "main"))
    pods.cluster.api.delete(pods.path("ends"))
    pods.gone("ends")
    later = moment(pods, "ends", "side", "term") - moment(pods, "ends", "main", "term")
    assert later >= 1e9


def test_a_sidecar_is_restarted_alone(pods: Pods):
    """Its death restarts it, and nothing else of the pod."""
    side = container("side", SLEEPER, restartPolicy="Always")
    pods.create("pod", pod_spec(container("main", SLEEPER), initContainers=[side]))
    pods.ready("pod")
    main = pods.harness.pid(pods.key("pod"), "main")
    pods.harness.kill(pods.key("pod"), "side")
    wait_for("the restart", lambda: pods.status("pod", "side")["restartCount"] == 1)
    pods.ready("pod")
    assert pods.harness.pid(pods.key("pod"), "main") == main
    assert pods.status("pod", "side")["lastState"]["terminated"]["exitCode"] == 137


def test_a_crashing_container_backs_off(pods: Pods):
    """Restarts are counted, the last end is shown, the wait has its name."""
    pods.create("crash", pod_spec(container("main", "raise SystemExit(3)")))
    wait_for("three restarts", lambda: pods.status("crash", "main")["restartCount"] >= 3)

    def waits() -> bool:
        return pods.waiting("crash", "main").get("reason") == "CrashLoopBackOff"

    wait_for("CrashLoopBackOff", waits)
    assert pods.status("crash", "main")["lastState"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize(
    ("policy", "code", "phase", "restarts"),
    [
        ("Never", 0, "Succeeded", 0),
        ("Never", 4, "Failed", 0),
        ("OnFailure", 0, "Succeeded", 0),
    ],
)
def test_a_pod_ends_by_its_restart_policy(
    pods: Pods, policy: str, code: int, phase: str, restarts: int
):
    """Phase and exit code; the log outlives the process."""
    body = container("main", f"print('bye', flush=True); raise SystemExit({code})")
    pods.create("once", pod_spec(body, restartPolicy=policy))
    pods.ended("once", phase)
    status = pods.status("once", "main")
    assert status["state"]["terminated"]["exitCode"] == code
    assert status["restartCount"] == restarts
    assert pods.harness.log(pods.key("once"), "main") == "bye\n"


def test_a_failing_init_container_holds_the_pod(pods: Pods):
    """The main container never starts while it fails."""
    failing = container("init", "raise SystemExit(1)")
    pods.create("held", pod_spec(container("main", NOTE, "main"), initContainers=[failing]))
    wait_for("two restarts", lambda: pods.status("held", "init")["restartCount"] >= 2)
    assert pods.get("held")["status"]["phase"] == "Pending"
    assert pods.harness.log(pods.key("held"), "main") == ""


def test_readiness_gates_the_service(pods: Pods):
    """A pod that is not ready gets no connection; when it is again, it does."""
    probe = {
        "exec": {"command": ["test", "-e", "/gate/open"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    mount = [{"name": "gate", "mountPath": "/gate"}]
    spec = pod_spec(
        server(readinessProbe=probe, volumeMounts=mount),
        volumes=[{"name": "gate", "emptyDir": {}}],
    )
    pods.service("web", 80)
    pods.create("web", spec)
    pods.create("client", pod_spec(container("main", SLEEPER)))
    pods.ready("client")
    wait_for("web to run", lambda: "running" in pods.status("web", "web")["state"])
    assert pods.fetch("client", "main", "http://web/")[0] != 0
    pods.run("web", "web", "touch", "/gate/open")
    pods.ready("web")
    wait_for("the way to web", lambda: pods.fetch("client", "main", "http://web/")[0] == 0)
    pods.run("web", "web", "rm", "/gate/open")
    wait_condition(pods.cluster.api, pods.path("web"), "Ready", status="False")
    wait_for("no way to web", lambda: pods.fetch("client", "main", "http://web/")[0] != 0)


@pytest.mark.parametrize(
    "probe",
    [
        {"exec": {"command": ["sh", "-c", "! test -e /gate/sick"]}},
        {"httpGet": {"port": "http", "path": "/gate/well"}},
    ],
    ids=["exec", "httpGet"],
)
def test_liveness_restarts(pods: Pods, probe: dict[str, Any]):
    """A container that fails its liveness probe is ended and started again."""
    probe = {**probe, "periodSeconds": 1, "failureThreshold": 2}
    spec = pod_spec(
        server(livenessProbe=probe, volumeMounts=[{"name": "gate", "mountPath": "/gate"}]),
        container(
            "maker",
            "open('/gate/well', 'w'); " + SLEEPER,
            volumeMounts=[{"name": "gate", "mountPath": "/gate"}],
        ),
        volumes=[{"name": "gate", "emptyDir": {}}],
    )
    pods.create("sick", spec)
    pods.ready("sick")
    pods.run("sick", "maker", "sh", "-c", "touch /gate/sick; rm -f /gate/well")
    wait_for("the restart", lambda: pods.status("sick", "web")["restartCount"] >= 1)
    pods.run("sick", "maker", "sh", "-c", "rm -f /gate/sick; touch /gate/well")
    pods.ready("sick")


def test_a_tcp_probe_sees_a_port(pods: Pods):
    """Not ready before anybody listens; the control is a port that nobody opens."""
    for name, port in (("good", 8000), ("bad", 8001)):
        probe = {"tcpSocket": {"port": port}, "periodSeconds": 1}
        pods.create(name, pod_spec(server(readinessProbe=probe)))
    pods.ready("good")
    assert pods.status("bad", "web")["ready"] is False


def test_the_end_is_graceful_and_has_a_bound(pods: Pods):
    """preStop runs, then SIGTERM; who does not hear it is killed when the grace period ends."""
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo pre-stop > /proc/1/fd/1"]}}}
    polite = container("polite", SLOW_END, "0", lifecycle=hook)
    spec = pod_spec(polite, container("deaf", DEAF), terminationGracePeriodSeconds=3)
    pods.create("ends", spec)
    pods.ready("ends")
    for name in ("polite", "deaf"):
        wait_for(name, lambda name=name: "start" in pods.harness.log(pods.key("ends"), name))
    pids = [pods.harness.pid(pods.key("ends"), name) for name in ("polite", "deaf")]
    pods.cluster.api.delete(pods.path("ends"))
    pods.gone("ends")
    assert not any(map(alive, pids))
    log = pods.harness.log(pods.key("ends"), "polite")
    assert log.index("pre-stop") < log.index("term")


def test_a_forced_deletion_leaves_no_process(pods: Pods):
    """gracePeriodSeconds 0: the object is gone at once, and so are its processes, children too."""
    fork = "import os, time; os.fork(); os.setsid() if not os.getppid() else None; time.sleep(600)"
    pods.create("forced", pod_spec(container("main", fork)))
    pods.ready("forced")
    key = pods.key("forced")
    wait_for("its child", lambda: len(pods.harness.processes(key, "main")) == 2)
    pids = [*pods.harness.processes(key, "main")]
    pods.cluster.api.call("DELETE", pods.path("forced"), {"gracePeriodSeconds": 0})
    wait_for("its processes to be gone", lambda: not any(map(alive, pids)))


def test_a_stateful_set_keeps_its_data(pods: Pods):
    """Claims are bound to folders, pods come back under their name with their data."""
    code = (
        "open('/data/log', 'a').write('x'); print(open('/data/log').read(), flush=True); " + SLEEPER
    )
    mount = [{"name": "data", "mountPath": "/data"}]
    template = pod_spec(container("main", code, volumeMounts=mount))
    template["securityContext"] |= {"fsGroup": 500}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/apis/apps/v1/namespaces/{pods.namespace}/statefulsets"
    spec = {
        "serviceName": "db",
        "replicas": 2,
        "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": template},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
    }
    api = pods.cluster.api
    api.create(path, {"metadata": {"name": "db"}, "spec": spec})
    wait_replicas(api, f"{path}/db")
    hosts = {pods.get(f"db-{n}")["spec"]["nodeName"] for n in (0, 1)}
    assert len(hosts) == 2, "pods are spread over the nodes"
    uid = pods.get("db-0")["metadata"]["uid"]
    api.delete(pods.path("db-0"))
    wait_for("the new db-0", lambda: pods.get("db-0")["metadata"]["uid"] != uid)
    pods.ready("db-0")
    wait_for("the data", lambda: pods.harness.log(pods.key("db-0"), "main").split()[-1:] == ["xx"])
    assert pods.harness.log(pods.key("db-1"), "main").split() == ["x"]
    api.delete(f"{path}/db", propagationPolicy="Foreground")
    volumes = "/api/v1/persistentvolumes"
    wait_for("its volumes to be gone", lambda: not api.get(volumes)["items"])


def test_a_deployment_replaces_what_dies(pods: Pods):
    """The controllers see the status that the harness writes."""
    path = f"/apis/apps/v1/namespaces/{pods.namespace}/deployments"
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec(server())},
    }
    api = pods.cluster.api
    api.create(path, {"metadata": {"name": "web"}, "spec": spec})
    wait_replicas(api, f"{path}/web")
    wait_condition(api, f"{path}/web", "Available")
    listing = f"/api/v1/namespaces/{pods.namespace}/pods"
    names = {one["metadata"]["name"] for one in api.get(listing)["items"]}
    api.delete(pods.path(sorted(names)[0]))
    pods.gone(sorted(names)[0])
    wait_replicas(api, f"{path}/web")
    after = {one["metadata"]["name"] for one in api.get(listing)["items"]}
    assert len(after - names) == 1


def test_a_job_completes(pods: Pods):
    """As `helm test` pods and hooks do."""
    path = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs"
    template = {"spec": pod_spec(container("main", "print(1)"), restartPolicy="Never")}
    body = {"metadata": {"name": "job"}, "spec": {"template": template}}
    pods.cluster.api.create(path, body)
    wait_condition(pods.cluster.api, f"{path}/job", "Complete")

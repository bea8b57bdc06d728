"""Faults that scenarios make, and what a pod says that cannot run: each is seen, each ends."""

from __future__ import annotations

import signal

import pytest
from kubernetes_pods import SLEEPER, Pods, container, pod_spec, server

from e2e.node.harness import Harness
from e2e.waiting import wait_condition, wait_for

# Says every second word only if the service answered: a connection that stands, and new ones.
TALKER = """
import http.client, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
connection = http.client.HTTPConnection("web", 80, timeout=2)
while True:
    try:
        connection.request("GET", "/"); connection.getresponse().read(); print("ok", flush=True)
    except OSError as error:
        print("lost", type(error).__name__, flush=True); connection.close()
    time.sleep(0.1)
"""


def last(pods: Pods, name: str) -> str:
    """The last line a pod's main container wrote."""
    return (pods.harness.log(pods.key(name), "main").splitlines() or [""])[-1]


def test_a_partition_is_silent_and_for_one_pod(pods: Pods):
    """The cut pod hears nothing on old and new connections; its neighbour does; then it heals."""
    pods.service("web", 80)
    pods.create("web", pod_spec(server()))
    pods.ready("web")
    for name in ("cut", "free"):
        pods.create(name, pod_spec(container("main", TALKER)))
        pods.ready(name)
        wait_for(f"{name} to talk", lambda name=name: last(pods, name) == "ok")
    pods.harness.partition(pods.key("cut"), "web")
    wait_for("the partition", lambda: last(pods, "cut") == "lost TimeoutError")
    assert last(pods, "free") == "ok"
    pods.harness.heal(pods.key("cut"), "web")
    wait_for("the healing", lambda: last(pods, "cut") == "ok")


def test_a_pod_is_cut_off_from_the_api_server(pods: Pods):
    """The same with kubernetes.default, which is a service like any other."""
    pods.create("client", pod_spec(container("main", SLEEPER)))
    pods.ready("client")
    url = "https://kubernetes.default.svc/healthz"

    def answers() -> bool:  # its certificate is not of a public authority
        return "CERTIFICATE_VERIFY_FAILED" in pods.fetch("client", "main", url)[1]

    wait_for("an answer", answers)
    pods.harness.partition(pods.key("client"), "kubernetes.default")
    assert "timed out" in pods.fetch("client", "main", url)[1]
    pods.harness.heal(pods.key("client"), "kubernetes.default")
    wait_for("an answer again", answers)


def test_the_network_holds_while_pods_come_and_go(pods: Pods):
    """Hardware addresses stay: nobody loses the way to a service because another pod has ended."""
    pods.service("web", 80)
    pods.create("web", pod_spec(server()))
    pods.create("client", pod_spec(container("main", TALKER)))
    pods.ready("web")
    pods.ready("client")
    wait_for("it to talk", lambda: last(pods, "client") == "ok")

    def way() -> str:
        return pods.run("client", "main", "ip", "neigh", "show", "nud", "reachable", "dev", "eth0")

    gateway = wait_for("the gateway's address", way)
    for n in range(3):
        pods.create(f"other-{n}", pod_spec(container("main", SLEEPER)))
        pods.ready(f"other-{n}")
        pods.cluster.api.delete(pods.path(f"other-{n}"))
        pods.gone(f"other-{n}")
    assert wait_for("the gateway's address", way).split()[:4] == gateway.split()[:4]
    assert "lost" not in pods.harness.log(pods.key("client"), "main").partition("ok")[2]


def test_pods_are_separated(pods: Pods):
    """Two pods do not reach each other by address, others do, until they are reunited."""
    for name in ("web", "client"):
        pods.create(name, pod_spec(server()))
    for name in ("web", "client"):
        pods.ready(name)
    url = f"http://{pods.harness.address(pods.key('web'))}:8000/"
    assert pods.fetch("client", "web", url)[0] == 0
    pods.harness.separate(pods.key("web"), pods.key("client"))
    assert "timed out" in pods.fetch("client", "web", url)[1]
    pods.harness.reunite(pods.key("web"), pods.key("client"))
    wait_for("the way back", lambda: pods.fetch("client", "web", url)[0] == 0)


def test_an_isolated_pod_is_not_ready(pods: Pods):
    """Unplugged, its probes fail as well, and its process lives on; then it is ready again."""
    pods.create("web", pod_spec(server()))
    pods.ready("web")
    pid = pods.harness.pid(pods.key("web"), "web")
    pods.harness.isolate(pods.key("web"))
    wait_condition(pods.cluster.api, pods.path("web"), "Ready", status="False")
    pods.harness.rejoin(pods.key("web"))
    pods.ready("web")
    assert pods.harness.pid(pods.key("web"), "web") == pid


def test_a_frozen_container_goes_on(pods: Pods):
    """SIGSTOP to all of it, and SIGCONT: the same process, later."""
    pods.service("web", 80)
    pods.create("web", pod_spec(server()))
    pods.ready("web")
    pods.create("client", pod_spec(container("main", TALKER)))
    pods.ready("client")
    wait_for("it to talk", lambda: last(pods, "client") == "ok")
    pid = pods.harness.pid(pods.key("web"), "web")
    pods.harness.freeze(pods.key("web"), "web")
    wait_for("silence", lambda: last(pods, "client") == "lost TimeoutError")
    pods.harness.thaw(pods.key("web"), "web")
    wait_for("it to talk again", lambda: last(pods, "client") == "ok")
    assert pods.harness.pid(pods.key("web"), "web") == pid


def test_one_process_of_a_container_is_killed(pods: Pods):
    """By its command line; the others live."""
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; "
    parent += "time.sleep(600)', 'the-worker']); " + SLEEPER
    pods.create("two", pod_spec(container("main", parent)))
    pods.ready("two")
    key = pods.key("two")

    def workers() -> int:
        lines = pods.harness.processes(key, "main").values()
        return len([line for line in lines if line.endswith("the-worker")])

    wait_for("the worker", lambda: workers() == 1)
    pids = [p for p, line in pods.harness.processes(key, "main").items() if "-worker" in line]
    first = pods.harness.pid(key, "main")
    killed = pods.harness.kill(key, "main", signal.SIGKILL, match="time.sleep(600) the-worker")
    assert set(killed) <= set(pids)
    assert first not in killed
    wait_for("its end", lambda: workers() == 0)
    assert pods.harness.pid(key, "main") == first
    with pytest.raises(LookupError, match="nothing-like-it"):
        pods.harness.kill(key, "main", match="nothing-like-it")


def test_what_is_missing_is_said_and_waited_for(pods: Pods):
    """A volume's ConfigMap, an environment's Secret key: named in the status; then the pod runs."""
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]
    spec = pod_spec(
        container("main", SLEEPER, env=env, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        volumes=[{"name": "v", "configMap": {"name": "late"}}],
    )
    pods.create("waits", spec)

    def says(reason: str, words: str) -> bool:
        waiting = pods.waiting("waits", "main")
        return waiting.get("reason") == reason and words in waiting.get("message", "")

    wait_for("the ConfigMap", lambda: says("ContainerCreating", 'configmap "late" not found'))
    pods.put("configmaps", "late", data={"a": "1"})
    wait_for("the Secret", lambda: says("CreateContainerConfigError", 'secret "late" not found'))
    pods.put("secrets", "late", stringData={"other": "1"})
    wait_for("the key", lambda: says("CreateContainerConfigError", "couldn't find key k"))
    pods.cluster.api.merge(pods.path("late", "secrets"), {"stringData": {"k": "1"}})
    pods.ready("waits")


def test_an_unknown_image_is_not_pulled(pods: Pods):
    """The status names it and what is known."""
    pods.create("pod", pod_spec({**container("main", SLEEPER), "image": "example.org/x:1"}))

    def message() -> str:
        waiting = pods.waiting("pod", "main")
        return waiting.get("message", "") if waiting.get("reason") == "ErrImagePull" else ""

    assert "example.org/x:1" in wait_for("ErrImagePull", message)


def test_a_missing_command_is_an_end(pods: Pods):
    """The container cannot start: an exit with the reason, and the backoff."""
    pods.create("pod", pod_spec({**container("main", SLEEPER), "command": ["/no/such"]}))

    def message() -> str:
        ended = pods.status("pod", "main")["lastState"].get("terminated", {})
        return ended.get("message", "")

    assert "/no/such" in wait_for("the reason", message)


def test_a_pod_that_fits_nowhere_says_why(pods: Pods):
    """A node selector, or more GPUs than there are: PodScheduled False, by node; others go on."""
    pods.create("label", pod_spec(container("main", SLEEPER), nodeSelector={"zone": "moon"}))
    gpus = {"limits": {"nvidia.com/gpu": "1"}}
    for n in range(3):
        pods.create(f"gpu-{n}", pod_spec(container("main", SLEEPER, resources=gpus)))
    path = pods.path("label")
    pod = wait_condition(
        pods.cluster.api, path, "PodScheduled", status="False", reason="Unschedulable"
    )
    assert "no label zone" in str(pod["status"])

    def without_a_place() -> list[str]:
        names = [f"gpu-{n}" for n in range(3)]
        return [name for name in names if "insufficient nvidia.com/gpu" in str(pods.get(name))]

    (left,) = wait_for("one of three pods to have no GPU", without_a_place)
    first = next(name for name in ("gpu-0", "gpu-1", "gpu-2") if name != left)
    pods.ready(first)
    pods.cluster.api.delete(pods.path(first))
    pods.ready(left)


def test_the_api_server_restarts_under_running_pods(pods: Pods):
    """Processes go on, the harness finds its way back, what happened meanwhile is published."""
    pods.create("web", pod_spec(server()))
    pods.ready("web")
    pid = pods.harness.pid(pods.key("web"), "web")
    pods.cluster.api_server.stop(signal.SIGKILL)
    pods.harness.kill(pods.key("web"), "web")
    pods.cluster.start_api_server()
    wait_for("the restart to be told", lambda: pods.status("web", "web")["restartCount"] == 1)
    pods.ready("web")
    assert pods.harness.pid(pods.key("web"), "web") != pid


def test_a_wrong_name_is_explained(pods: Pods, harness: Harness):
    """What runs is listed; a pod without its namespace is refused."""
    pods.create("web", pod_spec(server()))
    pods.ready("web")
    with pytest.raises(KeyError, match=f"{pods.namespace}/web"):
        harness.pid(pods.key("webb"), "web")
    with pytest.raises(KeyError, match="it has web"):
        harness.pid(pods.key("web"), "wib")
    with pytest.raises(ValueError, match="namespace/name"):
        harness.pid("web", "web")

"""The commands on a real API server: its admission, its conflicts, its RBAC, its watches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kubectl_world import Plugin, ready, receipt

from retire_operator.kubectl.app import main

HERE = Path(sys.executable).parent


def test_supersede_waits_for_the_receipt(plugin: Plugin, answering):
    """spec.epoch rises by one, the trace is joined, the receipt is shown with its stages."""
    answering()
    plugin.create()
    code, out, err = plugin("supersede", "plan", "--prompt", "a better plan")
    assert (code, err) == (0, "")
    assert f"{plugin.namespace}/plan  1.0 -> 1.1" in out
    for stage in ("commit", "unpublishable", "fence"):
        assert re.search(rf"^{stage} +[0-9.]+ ms +[░▒█]+$", out, re.MULTILINE), out
    body = plugin.get()
    assert body["spec"]["epoch"] == 1
    assert body["spec"]["context"] == {"inline": {"prompt": "a better plan"}}
    trace = body["metadata"]["annotations"]["serving.retire.dev/traceparent"]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", trace)


def test_supersede_for_a_machine(plugin: Plugin, answering, tmp_path: Path):
    """One JSON object; the context from a file, the trace as given."""
    answering()
    plugin.create()
    file = tmp_path / "context.json"
    file.write_text('{"messages": [{"role": "user", "content": "hi"}], "model": "m"}')
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    code, out, _ = plugin(
        "supersede", "plan", "--context-file", str(file), "--traceparent", trace, "-o", "json"
    )
    found = json.loads(out)
    assert (code, found["version"], found["epoch"]) == (0, "1.1", 1)
    assert found["receipt"]["unpublishableMs"] == receipt()["unpublishableMs"]
    body = plugin.get()
    assert body["spec"]["context"]["model"] == "m"
    assert body["metadata"]["annotations"]["serving.retire.dev/traceparent"] == trace


def test_the_context_comes_from_wherever_it_is_now(plugin: Plugin, monkeypatch):
    """Inline, then a ConfigMap, then stdin: one source at a time, as the CRD wants it."""
    plugin.create(context={"inline": {"messages": [{"role": "user", "content": "x"}]}})
    assert plugin("supersede", "plan", "--from-configmap", "plans/v2", "--no-wait")[0] == 0
    assert plugin.get()["spec"]["context"] == {"configMapRef": {"name": "plans", "key": "v2"}}
    reading, writing = os.pipe()
    os.write(writing, b"from stdin")
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert plugin("supersede", "plan", "--context-file", "-", "--no-wait")[0] == 0
    assert plugin.get()["spec"]["context"] == {"inline": {"prompt": "from stdin"}}
    assert plugin.get()["spec"]["epoch"] == 2


def test_without_waiting(plugin: Plugin):
    """Nobody answers, nobody is waited for."""
    plugin.create()
    code, out, _ = plugin("supersede", "plan", "--no-wait")
    assert (code, out) == (0, f"{plugin.namespace}/plan: epoch 1 is asked for\n")


def test_an_agent_was_faster(plugin: Plugin, answering):
    """The runtime is at 1.7 while the spec says 0: the next epoch is 8."""
    plugin.create()
    plugin.set_status(version="1.7", term=1, epoch=7)
    answering()
    assert plugin("supersede", "plan")[0] == 0
    assert plugin.get()["spec"]["epoch"] == 8


def test_revisions_at_once_are_all_made(plugin: Plugin):
    """Six at the same time: conflicts are read again, every one gets an epoch of its own."""
    plugin.create()
    line = ["--kubeconfig", plugin.kubeconfig, "-n", plugin.namespace]
    codes: list[object] = []

    def revise() -> None:
        try:
            main([*line, "supersede", "plan", "--no-wait"])
        except SystemExit as ended:
            codes.append(ended.code)

    threads = [threading.Thread(target=revise) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert codes == [0] * 6
    assert plugin.get()["spec"]["epoch"] == 6


def test_too_late(plugin: Plugin):
    """What stands in the way is on stderr; the exit status is 1; the revision is written."""
    plugin.create()
    plugin.set_status(
        version="1.0", term=1, epoch=0, conditions=[ready("False", "NoReadyNode", "no node")]
    )
    code, out, err = plugin("supersede", "plan", "--timeout", "1")
    assert (code, out) == (1, "")
    assert "still at 1.0; Ready=False NoReadyNode: no node" in err
    assert plugin.get()["spec"]["epoch"] == 1


def test_cancel_is_final(plugin: Plugin, answering):
    """The receipt of the cancel; another revision is refused in the CRD's own words."""
    answering()
    plugin.create()
    code, out, _ = plugin("cancel", "plan")
    assert code == 0
    assert "cancel by revision" in out
    assert plugin("cancel", "plan")[0] == 0  # twice is once
    code, out, err = plugin("supersede", "plan")
    assert (code, out) == (1, "")
    assert err == (
        "error: spec.epoch of a cancelled scope must stay: create another ServingScope to go on\n"
    )


def test_pause_and_resume(plugin: Plugin, answering):
    """Each waits until the operator has seen it."""
    answering()
    plugin.create()
    assert plugin("pause", "plan")[1] == f"{plugin.namespace}/plan is Paused at 1.0\n"
    assert plugin.get()["spec"]["paused"] is True
    code, out, _ = plugin("resume", "plan", "-o", "json")
    assert (code, json.loads(out)["phase"]) == (0, "Active")
    assert plugin.get()["spec"]["paused"] is False


def test_status_and_top(plugin: Plugin):
    """Of the namespace, of one scope, of all namespaces; as a table and as JSON."""
    assert plugin("status")[1] == f"No ServingScopes found in namespace '{plugin.namespace}'.\n"
    plugin.create("plan")
    plugin.create("side", quota={"pinnedBlocks": 5})
    plugin.set_status("side", version="1.2", phase="Active", pinnedBlocks=9, conditions=[ready()])
    code, out, _ = plugin("status")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["NAME", "VERSION"],
        ["plan", "<none>"],
        ["side", "1.2"],
    ]
    assert re.search(rf"{plugin.namespace} +side", plugin("status", "-A")[1])
    assert json.loads(plugin("status", "side", "-o", "json")[1])["spec"]["epoch"] == 0
    assert len(json.loads(plugin("status", "-o", "json")[1])["items"]) == 2
    rows = json.loads(plugin("top", "-o", "json")[1])
    assert [(row["name"], row["pinnedBlocks"], row["askedBlocks"]) for row in rows] == [
        ("side", 9, 5),
        ("plan", 0, None),
    ]
    assert plugin("top")[1].splitlines()[1].split()[:5] == [plugin.namespace, "2", "0", "9", "5"]


def test_describe_and_its_events(plugin: Plugin):
    """Events of this object only."""
    uid = plugin.create()["metadata"]["uid"]
    plugin.set_status(version="1.4", phase="Active", receipts=[receipt()], conditions=[ready()])
    for name, about in (("a", "plan"), ("b", "other")):
        plugin.cluster.api.create(
            f"/api/v1/namespaces/{plugin.namespace}/events",
            {
                "metadata": {"name": name},
                "involvedObject": {
                    "kind": "ServingScope",
                    "name": about,
                    "namespace": plugin.namespace,
                    "uid": uid,
                },
                "type": "Normal",
                "reason": "Superseded",
                "message": f"about {about}",
                "lastTimestamp": "2026-11-30T00:50:00Z",
            },
        )
    code, out, _ = plugin("describe", "plan")
    assert code == 0
    assert "1.3 -> 1.4" in out
    assert "about plan" in out
    assert "about other" not in out
    found = json.loads(plugin("describe", "plan", "-o", "json")[1])
    assert [event["message"] for event in found["events"]] == ["about plan"]


def test_trace_links(plugin: Plugin, monkeypatch):
    """Trace ids, or links where a URL is known; none is an error."""
    plugin.create()
    code, _, err = plugin("trace", "plan")
    assert (code, err) == (
        1,
        "error: servingscope 'plan' has no trace yet: no transition of it was recorded\n",
    )
    plugin.set_status(version="1.4", receipts=[receipt(4), receipt(3)])
    out = plugin("trace", "plan")[1]
    assert receipt(4)["traceId"] in out
    assert "http" not in out
    linked = plugin("trace", "plan", "--jaeger-url", "http://jaeger:16686/", "-o", "json")[1]
    url = f"http://jaeger:16686/trace/{receipt(4)['traceId']}"
    assert json.loads(linked)[0]["url"] == url
    monkeypatch.setenv("RETIRE_JAEGER_URL", "http://jaeger:16686")
    assert url in plugin("trace", "plan")[1]


@pytest.mark.parametrize(
    "command", ["supersede", "cancel", "pause", "resume", "status", "describe", "trace"]
)
def test_not_found(plugin: Plugin, command: str):
    """The name and the namespace."""
    code, out, err = plugin(command, "nope")
    assert (code, out) == (1, "")
    assert f"servingscope 'nope': not found in namespace '{plugin.namespace}'" in err


def test_a_rule_of_the_schema_names_its_field(plugin: Plugin):
    """The API server's own words, with the field that they are about."""
    plugin.create()
    code, _, err = plugin("supersede", "plan", "--from-configmap", "x" * 300)
    assert code == 1
    assert err.startswith("error: spec.context.configMapRef.name: Too long: ")


def test_deleted_while_waiting(plugin: Plugin):
    """The wait ends at once."""
    plugin.create()
    deletion = threading.Timer(1.0, plugin.cluster.api.delete, [f"{plugin.path}/plan"])
    deletion.start()
    code, _, err = plugin("supersede", "plan", "--timeout", "60")
    deletion.join()
    assert (code, err) == (1, "error: servingscope 'plan' was deleted\n")


@pytest.fixture
def reader(plugin: Plugin, tmp_path: Path) -> str:
    """A kubeconfig of a user who may read ServingScopes and nothing else."""
    space, api = plugin.namespace, plugin.cluster.api
    api.create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": "reader"}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    rule = {
        "apiGroups": ["serving.retire.dev"],
        "resources": ["servingscopes"],
        "verbs": ["get", "list", "watch"],
    }
    api.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": space}
    body = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]}
    api.create(f"{rbac}/rolebindings", body)
    token = api.create(f"/api/v1/namespaces/{space}/serviceaccounts/reader/token", {"spec": {}})
    admin = Path(plugin.kubeconfig).read_text()
    path = tmp_path / "reader.kubeconfig"
    path.write_text(_with_token(admin, token["status"]["token"], space))
    return str(path)


def _with_token(text: str, token: str, namespace: str) -> str:
    import yaml

    config = yaml.safe_load(text)
    config["users"][0]["user"] = {"token": token}
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    return yaml.safe_dump(config)


def test_no_permission(plugin: Plugin, reader: str, capsys: pytest.CaptureFixture[str]):
    """Reading works, from the context's own namespace; writing says which right is missing."""
    plugin.create()
    plugin.set_status(version="1.0", receipts=[receipt()])

    def run(*arguments: str) -> tuple[object, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--kubeconfig", reader, *arguments])
        return (ended.value.code, *capsys.readouterr())

    code, out, _ = run("status")
    assert code == 0
    assert "plan" in out
    code, out, err = run("supersede", "plan")
    assert (code, out) == (1, "")
    assert "cannot patch resource" in err
    assert plugin.get()["spec"]["epoch"] == 0
    code, out, _ = run("describe", "plan")
    assert code == 0
    assert "cannot list resource" in out  # the events; the rest is shown
    code, _, err = run("status", "-A")
    assert code == 1
    assert "cannot list resource" in err


def test_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    """A missing kubeconfig, a missing context, a server that is away."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 1
        return capsys.readouterr().err

    assert "no cluster to talk to" in run("status", "--kubeconfig", str(tmp_path / "none"))
    away = kubeconfig_of(tmp_path, "http://127.0.0.1:9")
    assert "no cluster to talk to" in run("status", "--kubeconfig", away, "--context", "nope")
    assert "list servingscopes: the cluster does not answer" in run("status", "--kubeconfig", away)


def kubeconfig_of(folder: Path, server: str) -> str:
    path = folder / "away.kubeconfig"
    path.write_text(
        f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{}}}}]
current-context: c
"""
    )
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["supersede"], "Missing argument 'name'"),
        (["supersede", "x", "--prompt", "a", "--from-configmap", "b"], "not several"),
        (["status", "-o", "yaml"], "'yaml' is not one of"),
        (["revise", "x"], "No such command 'revise'"),
        (["status", "-n"], "flag needs an argument: -n"),
        (["supersede", "x", "--timeout", "0"], "greater than or equal to 0.1"),
    ],
)
def test_bad_command_lines(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    """Exit status 2, before anything is asked of a cluster."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    err = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().err).split())
    assert ended.value.code == 2
    assert why in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "must be UTF-8"),
        (b"x" * (2**20 + 1), "use --from-configmap"),
        (None, "No such file"),
    ],
)
def test_bad_context_files(plugin: Plugin, tmp_path: Path, content: bytes | None, why: str):
    """Nothing is written."""
    plugin.create()
    file = tmp_path / "context"
    if content is not None:
        file.write_bytes(content)
    code, _, err = plugin("supersede", "plan", "--context-file", str(file))
    assert code == 1
    assert why in err
    assert plugin.get()["spec"]["epoch"] == 0


def test_without_the_crd(cluster, namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch):
    """Say that it is not installed, instead of "not found"."""
    from retire_operator.kubectl import cluster as plugin_cluster

    monkeypatch.setattr(plugin_cluster, "PLURAL", "servingscopez")
    with pytest.raises(SystemExit):
        main(["--kubeconfig", str(cluster.kubeconfig), "-n", namespace, "status"])
    assert "install the chart (or its CRD) first" in capsys.readouterr().err


def test_top_watches_until_interrupted(plugin: Plugin):
    """A process of its own; Ctrl-C ends it with the shell's status for that."""
    plugin.create()
    command = [sys.executable, "-m", "retire_operator.kubectl", "top", "--watch"]
    command += ["--interval", "0.1", "--kubeconfig", plugin.kubeconfig, "-n", plugin.namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = ""
        while "plan" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        process.send_signal(2)
        process.stdout.read()
    assert process.returncode == 130


@pytest.mark.skipif(not (HERE / "kubectl-retire").exists(), reason="the operator is not installed")
def test_as_a_plugin_of_kubectl(plugin: Plugin):
    """kubectl finds it by its name and hands it the rest of the line."""
    plugin.create()
    kubectl = shutil.which("kubectl", path=plugin.cluster.env["PATH"])
    assert kubectl is not None
    env = {**plugin.cluster.env, "PATH": f"{HERE}{os.pathsep}{plugin.cluster.env['PATH']}"}
    done = subprocess.run(
        [kubectl, "retire", "status", "-n", plugin.namespace],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert "plan" in done.stdout

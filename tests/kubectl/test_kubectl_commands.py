"""The commands on a real API server: its admission, its conflicts, its RBAC, its watches."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

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


def test_top_watches_until_interrupted(plugin: Plugin):
    """A process of its own; Ctrl-C ends it with the shell's status for that."""
    plugin.create()
    command = [sys.executable, "-m", "retire_operator.kubectl", "top", "--watch"]
    command += ["--interval", "0.1", "--kubeconfig", plugin.kubeconfig, "-n", plugin.namespace]
    # Whoever runs the tests may ignore interrupts, and a child would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        seen = ""
        while "plan" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        while process.poll() is None:  # an interrupt that meets a finalizer is lost, as anywhere
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
    assert process.returncode == 130


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

"""What is refused, missing or away: one line each, as clear as it can be said."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path

import pytest
import yaml
from kubectl_world import Plugin, receipt

from retire_operator.kubectl import cluster as plugin_cluster
from retire_operator.kubectl.app import main


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
    gc.collect()  # a connection that the error kept alive is a warning here, not in a later test


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
    monkeypatch.setattr(plugin_cluster, "PLURAL", "servingscopez")
    with pytest.raises(SystemExit):
        main(["--kubeconfig", str(cluster.kubeconfig), "-n", namespace, "status"])
    assert "install the chart (or its CRD) first" in capsys.readouterr().err

"""The chart and the programs agree: variables, values, addresses, the registry's users."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from chart_render import ROOT, VARIANTS, containers, secret

from retire.protocol.versions import ScopeKey
from retire.registry.acl import Role, acl_line, acl_rule
from retire.registry.settings import Durability
from retire.sidecar.config import Settings as SidecarSettings
from retire_operator.settings import Settings as OperatorSettings

NODE = ROOT / "node" / "retire"
READERS = {
    "operator": (ROOT / "operator" / "retire_operator", NODE / "registry", NODE / "telemetry"),
    "sidecar": (NODE / "sidecar", NODE / "registry", NODE / "telemetry"),
    "vllm": (NODE / "engine", NODE / "mailbox", NODE / "telemetry"),
}


def texts(folders: tuple[Path, ...]) -> set[str]:
    """Every string constant of the Python sources."""
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    return {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variable_is_read_by_its_program(name: str, variant):
    """A RETIRE_ variable that nobody reads is a misspelt one."""
    for _, pod in variant(name).pods():
        for one in containers(pod):
            if one["name"] not in READERS:
                continue
            known = texts(READERS[one["name"]])
            given = {env["name"] for env in one["env"] if env["name"].startswith("RETIRE_")}
            assert given, one["name"]
            assert given - known == set(), one["name"]


def test_a_misspelt_variable_would_be_seen():
    """Control: the constants of the sidecar hold its variables and no others."""
    known = texts(READERS["sidecar"])
    assert "RETIRE_LEASE_S" in known
    assert "RETIRE_LEASE_MS" not in known


def environment(one: dict, folder: Path, url: str) -> dict[str, str]:
    """What the kubelet would make of a container's ``env``; certificates are empty files."""
    fields = {"metadata.name": "retire-node-0", "status.podIP": "10.0.0.7"}
    found: dict[str, str] = {}
    for env in one["env"]:
        source = env.get("valueFrom", {})
        if "fieldRef" in source:
            found[env["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            found[env["name"]] = url
        else:
            found[env["name"]] = env["value"].replace("$(POD_IP)", found.get("POD_IP", ""))
        if env["name"].startswith("RETIRE_TLS_") and env.get("value", "").startswith("/etc/retire"):
            path = folder / Path(env["value"]).name
            path.touch()
            found[env["name"]] = str(path)
        if env["name"] == "RETIRE_TOKENS_FILE":
            path = folder / "tokens.json"
            path.write_text('{"tokens": []}')
            found[env["name"]] = str(path)
    found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"] = "10.0.0.1", "443"
    return found


URL = "rediss://sidecar:x@retire-registry.serving.svc:6379/0"


@pytest.mark.parametrize("name", VARIANTS)
def test_the_sidecar_takes_its_environment(name: str, variant, tmp_path: Path):
    """Every value passes the sidecar's own checks and arrives as meant."""
    (sidecar,) = dict(variant(name).pods())["retire-node"]["spec"]["initContainers"]
    settings = SidecarSettings.from_env(environment(sidecar, tmp_path, URL))
    assert settings.node == "retire-node-0"
    assert settings.listen == "10.0.0.7:7070"
    assert settings.socket == Path("/run/retire/node/node.sock")
    assert settings.mailbox == Path("/run/retire/node/mailbox")
    assert settings.lease_s == (0.5 if name == "cpu" else 2.0)
    assert settings.pin_quota_blocks == (0 if name == "cpu" else None)
    stated = Durability.DETECT if name == "production" else Durability.FSYNC_ALWAYS
    assert settings.registry_durability is stated


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "pool"])
def test_the_operator_takes_its_environment(name: str, variant, tmp_path: Path):
    """The same of the operator."""
    (operator,) = dict(variant(name).pods())["retire-operator"]["spec"]["containers"]
    settings = OperatorSettings.from_env(environment(operator, tmp_path, URL))
    assert settings.term_lease == "serving/retire-term"
    assert settings.node_namespace == "serving"
    assert settings.watch_namespaces == (("team-a", "team-b") if name == "cpu" else ())
    assert settings.sidecar_port == 7070


def test_the_engine_finds_its_sidecar(variant):
    """Both containers name the same socket and mailbox, in the volume that both mount."""
    node = dict(variant("default").pods())["retire-node"]["spec"]
    sidecar, vllm = node["initContainers"][0], node["containers"][0]
    env = {one["name"]: one.get("value", "") for one in vllm["env"]}
    assert env["RETIRE_SIDECAR"] == "unix:/run/retire/node/node.sock"
    assert env["RETIRE_MAILBOX"] == "/run/retire/node/mailbox"
    shared = [
        next(mount["name"] for mount in one["volumeMounts"] if mount["mountPath"] == "/run/retire")
        for one in (sidecar, vllm)
    ]
    assert shared == ["run", "run"]


def test_the_default_tenant_is_one(variant):
    """The value of RETIRE_TENANT is a tenant's name."""
    vllm = dict(variant("default").pods())["retire-node"]["spec"]["containers"][0]
    (tenant,) = (one["value"] for one in vllm["env"] if one["name"] == "RETIRE_TENANT")
    assert ScopeKey(tenant, "-")


@pytest.mark.parametrize("name", ["default", "static"])
@pytest.mark.parametrize("role", list(Role))
def test_the_registrys_users_are_those_of_the_code(role: Role, name: str, variant):
    """The ACL file holds, word for word, what retire.registry.acl renders for that password."""
    server = variant(name).one("Secret", "retire-registry-server")
    password = secret(server, f"{role.value}-password")
    lines = secret(server, "users.acl").splitlines()
    assert acl_line(role.value, acl_rule(role, password=password)) in lines
    url = secret(variant(name).one("Secret", "retire-registry-clients"), f"{role.value}-url")
    assert url.startswith(f"rediss://{role.value}:{password}@retire-registry.serving.svc:6379/0")
    assert len(lines) == len(Role) + 2
    assert lines[:2] == [
        "user default reset off",
        "user probe reset on nopass resetchannels +ping",
    ]

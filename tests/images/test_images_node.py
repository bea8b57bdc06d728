"""The steps of the image `node`: versions that stay, versions that come from the lock."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib

import pytest
from images_podman import RESTRICTED, ROOT, podman

spec = importlib.util.spec_from_file_location("images_node", ROOT / "scripts" / "images_node.py")
assert spec
assert spec.loader
images_node = importlib.util.module_from_spec(spec)
spec.loader.exec_module(images_node)

PRESENT = {"torch": "2.11.0+cu130", "vllm": "0.26.0", "typing-extensions": "4.15.0"}
LOCKED = "\n".join(
    (
        "# by uv",
        "grpcio==1.85.3",
        "typing_extensions==4.16.0",
        "uvloop==0.21 ; sys_platform != 'win32'",
        "-e .",
    )
)


def lock_has_another(name: str, version: str) -> bool:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return version not in {one["version"] for one in packages if one["name"] == name}


def test_constraints():
    """torch and vLLM as they are; the locked version of what is missing, and of nothing else."""
    assert images_node.constraints(PRESENT, LOCKED) == [
        "torch==2.11.0+cu130",
        "vllm==0.26.0",
        "grpcio==1.85.3",
        "uvloop==0.21",
    ]


def test_an_image_without_vllm_is_refused(monkeypatch, tmp_path):
    """The message says what is missing."""
    monkeypatch.setattr(images_node, "installed", lambda: {"torch": "2.11.0"})
    with pytest.raises(SystemExit, match="no vLLM image: it lacks vllm"):
        images_node.main(tmp_path)


def test_a_changed_version_fails_the_build(monkeypatch, tmp_path):
    """Control of the comparison: an installation that replaced torch."""
    (tmp_path / "retire-0.1.0-py3-none-any.whl").touch()
    (tmp_path / "constraints.txt").write_text(LOCKED)
    monkeypatch.setattr(images_node, "installed", lambda: PRESENT)
    told = subprocess.CompletedProcess([], 0, stdout="torch==2.12.0\nvllm==0.26.0\n")
    monkeypatch.setattr(images_node.subprocess, "run", lambda *_, **__: told)
    with pytest.raises(SystemExit, match="changed .*2.11.0.*2.12.0"):
        images_node.main(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_steps_on_a_stand_in():
    """Really built, on a Debian with a torch and a vllm in name only: uid, versions, the plugin."""
    done = subprocess.run(
        [ROOT / "scripts" / "images", "node"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    image = "localhost/retire-node:local"
    source = "import os, importlib.metadata as m; print(os.getuid(), os.environ.get('HOME'))\n"
    source += "print(*(d.name.lower() + '==' + d.version for d in m.distributions()))\n"
    source += "print(*(e.name for e in m.entry_points(group='vllm.general_plugins')))\n"
    source += "import retire.sidecar.client, pwd; print(pwd.getpwuid(os.getuid()).pw_name)"
    told = podman("run", "--rm", *RESTRICTED, image, "python3", "-c", source).stdout.splitlines()
    assert told[0].startswith("65532 ")
    pairs = (one.split("==") for one in told[1].split())
    installed = {name.replace("_", "-"): version for name, version in pairs}
    assert installed["torch"] == "2.11.0"
    assert installed["vllm"] == "0.26.0"
    assert installed["idna"] == "3.10", "what is there and will do stays"
    assert lock_has_another("idna", "3.10")
    lock = {
        one["name"]: one["version"]
        for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    assert installed["grpcio"] == lock["grpcio"]
    assert told[2:] == ["retire", "retire"]

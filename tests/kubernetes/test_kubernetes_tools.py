"""scripts/kube-tools: nothing is built that is there, and what is missing is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from e2e.binaries import CLIENTS, CONTROL_PLANE, ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The script and its module; no Go on the PATH until a test puts a fake one there."""
    for name in ("scripts/kube-tools", "tools/kubernetes/go.mod", "tools/kubernetes/go.sum"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "path").mkdir()
    for name in ("bash", "env", "sed", "dirname", "mkdir", "flock", "grep", "cat", "cut", "du"):
        (tmp_path / "path" / name).symlink_to(shutil.which(name) or name)
    for name in ("sha256sum", "rm", "mv", "rmdir", "wc", "sleep", "tail"):
        (tmp_path / "path" / name).symlink_to(shutil.which(name) or name)
    return tmp_path


def run(clone: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The script of the clone."""
    command = [str(clone / "scripts" / "kube-tools")]
    env = {"PATH": str(clone / "path"), "HOME": str(clone), **env}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def fake_go(clone: Path) -> None:
    """Makes an empty executable for each package it is asked to build."""
    go = clone / "path" / "go"
    go.write_text(
        """#!/bin/bash
case "$*" in
  *env*) echo go1.26.8 amd64 ;;
  *list\\ -deps*) echo one ;;
  *list*) echo v1.36.3 ;;
  *build*)
    echo "$*" >> "$HOME/asked"
    while [[ $1 != -o ]]; do shift; done
    for package in "${@:3}"; do
      name=${package##*/}; [[ $name == v3 ]] && name=server
      echo > "$2/$name"; /bin/chmod +x "$2/$name"
    done ;;
esac
"""
    )
    go.chmod(0o755)


def test_without_go_it_says_what_to_install(clone: Path):
    """A clear end, not a missing command somewhere in the middle."""
    done = run(clone)
    assert done.returncode == 1
    assert "Go is not installed: install Go 1.26" in done.stderr


def test_everything_is_built_once(clone: Path):
    """All five, in one go build; the second run asks for nothing."""
    fake_go(clone)
    done = run(clone)
    assert done.returncode == 0, done.stderr
    built = clone / ".cache" / "kube" / "bin"
    names = {path.name for path in built.iterdir() if os.access(path, os.X_OK)}
    assert names == {*CONTROL_PLANE, *CLIENTS}
    asked = (clone / "asked").read_text()
    assert run(clone).returncode == 0
    assert (clone / "asked").read_text() == asked
    assert len(asked.splitlines()) == 1


def test_other_versions_are_built_again(clone: Path):
    """go.mod decides; a comment in it does not."""
    fake_go(clone)
    run(clone)
    module = clone / "tools" / "kubernetes" / "go.mod"
    for text, builds in (("// a word\n" + module.read_text(), 1), (module.read_text(), 2)):
        module.write_text(text if builds == 1 else text.replace("v1.36.3", "v1.36.4"))
        run(clone)
        assert len((clone / "asked").read_text().splitlines()) == builds


def test_a_lost_binary_is_built_alone(clone: Path):
    """Only what is missing."""
    fake_go(clone)
    run(clone)
    (clone / ".cache" / "kube" / "bin" / "helm").unlink()
    run(clone)
    last = (clone / "asked").read_text().splitlines()[-1]
    assert "helm" in last
    assert "kube-apiserver" not in last


def test_assets_are_not_built(clone: Path):
    """What KUBEBUILDER_ASSETS has is taken from there; with all of it, Go is not even needed."""
    assets = clone / "assets"
    assets.mkdir()
    for name in (*CONTROL_PLANE, *CLIENTS):
        (assets / name).touch(mode=0o755)
    assert run(clone, KUBEBUILDER_ASSETS=str(assets)).returncode == 0
    (assets / "helm").unlink()
    fake_go(clone)
    assert run(clone, KUBEBUILDER_ASSETS=str(assets)).returncode == 0
    assert "kubectl" not in (clone / "asked").read_text()


def test_a_failed_build_shows_its_end(clone: Path):
    """The compiler's words, and a status that make stops at."""
    fake_go(clone)
    go = clone / "path" / "go"
    go.write_text(go.read_text().replace('echo "$*" >>', "echo syntax error >&2; exit 1; echo"))
    done = run(clone)
    assert done.returncode == 1
    assert "go build failed: syntax error" in done.stderr

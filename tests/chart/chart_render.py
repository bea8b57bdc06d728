"""Runs helm on charts/retire and looks things up in what comes out. Changes nothing."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.binaries import binary

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "retire"
VALUES = CHART / "ci"
VARIANTS = tuple(sorted(path.stem.removesuffix("-values") for path in VALUES.glob("*-values.yaml")))
NAMESPACE = "serving"
WORKLOADS = ("Deployment", "StatefulSet")


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one render."""

    objects: tuple[dict[str, Any], ...]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """The object of that name; a test that looks for another one fails."""
        found = [
            one for one in self.objects if one["kind"] == kind and one["metadata"]["name"] == name
        ]
        assert len(found) == 1, (kind, name, [one["metadata"]["name"] for one in self.objects])
        return found[0]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Every object of a kind."""
        return [one for one in self.objects if one["kind"] == kind]

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and pod (metadata and spec) of every workload, and of the test's pod."""
        for one in self.objects:
            if one["kind"] in WORKLOADS:
                yield one["metadata"]["name"], one["spec"]["template"]
            elif one["kind"] == "Pod":
                yield one["metadata"]["name"], one


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller judges the status."""
    command = [str(binary("helm")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def template(*arguments: str, chart: Path = CHART) -> Rendered:
    """``helm template``; AssertionError with what helm said when it refuses."""
    done = helm("template", "retire", str(chart), "--namespace", NAMESPACE, *arguments)
    assert done.returncode == 0, done.stderr
    return Rendered(tuple(one for one in yaml.safe_load_all(done.stdout) if one))


def render_variant(name: str, *arguments: str) -> Rendered:
    """One values file of charts/retire/ci."""
    return template("--values", str(VALUES / f"{name}-values.yaml"), *arguments)


def refusal(*arguments: str) -> str:
    """What helm says of values that it must refuse."""
    done = helm("template", "retire", str(CHART), *arguments)
    assert done.returncode != 0, "these values must be refused"
    return done.stderr


def secret(one: dict[str, Any], key: str) -> str:
    """A value of a Secret, from data or stringData."""
    if key in one.get("stringData", {}):
        return one["stringData"][key]
    return base64.b64decode(one["data"][key]).decode()


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Init containers, sidecars among them, and containers."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def masked(rendered: Rendered) -> str:
    """The objects in a stable order and form, without what differs at every render."""
    ordered = sorted(rendered.objects, key=lambda one: (one["kind"], one["metadata"]["name"]))
    text = yaml.safe_dump_all(ordered, sort_keys=True, width=120)
    for pattern, mask in (
        (r"(tls\.crt|tls\.key|ca\.crt): [A-Za-z0-9+/=]{100,}", r"\1: (made)"),
        (r"#[0-9a-f]{64}", "#(digest)"),
        (r"(-password: )\S{40}\b", r"\1(made)"),
        (r"(://\w+:)[A-Za-z0-9]{40}@", r"\1(made)@"),
    ):
        text = re.sub(pattern, mask, text)
    return text

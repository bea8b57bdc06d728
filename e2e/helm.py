"""Helm releases of one namespace. Must never know the chart's values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from e2e.binaries import binary
from e2e.cluster import CommandFailed, run

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster import ExistingCluster


class Release:
    """One release: installed, upgraded, tested, uninstalled."""

    def __init__(self, cluster: ExistingCluster, chart: Path, name: str, namespace: str) -> None:
        self._cluster, self._chart = cluster, chart
        self.name, self.namespace = name, namespace

    def install(
        self, values: dict[str, Any] | None = None, *flags: str, limit_s: float = 600
    ) -> str:
        """``helm upgrade --install``, waiting until everything is ready unless flags say otherwise.

        CommandFailed shows helm's words, the pods and the latest events.
        """
        argv = ["upgrade", "--install", self.name, str(self._chart), "--values", "-"]
        if not any(flag.startswith("--wait") for flag in flags):
            argv.append("--wait=watcher")
        try:
            return self.helm(
                *argv,
                *(f"--timeout={limit_s:.0f}s", *flags),
                stdin=yaml.safe_dump(values or {}),
                limit_s=limit_s + 30,
            )
        except CommandFailed as error:
            raise CommandFailed(f"{error}\n{self.picture()}") from error

    def uninstall(self, *flags: str, limit_s: float = 300) -> str:
        """``helm uninstall``, until everything is gone."""
        wait = ("--wait=watcher", f"--timeout={limit_s:.0f}s")
        return self.helm("uninstall", self.name, *wait, *flags, limit_s=limit_s + 30)

    def test(self, limit_s: float = 300) -> str:
        """``helm test``."""
        return self.helm("test", self.name, f"--timeout={limit_s:.0f}s", limit_s=limit_s + 30)

    def template(self, values: dict[str, Any] | None = None, *flags: str) -> list[dict[str, Any]]:
        """What would be installed, as objects."""
        argv = ("template", self.name, str(self._chart), "--values", "-", *flags)
        text = self.helm(*argv, stdin=yaml.safe_dump(values or {}))
        return [one for one in yaml.safe_load_all(text) if one]

    def helm(self, *arguments: str, stdin: str = "", limit_s: float = 120.0) -> str:
        """Any other command, in the release's namespace."""
        argv = [str(binary("helm")), *arguments, "--namespace", self.namespace]
        return run(argv, env=self._cluster.env, stdin=stdin, limit_s=limit_s)

    def picture(self) -> str:
        """What a person would look at when it does not come up."""
        space = ("-n", self.namespace)
        pods = self._cluster.kubectl("get", "pods,pvc", "-o", "wide", *space)
        events = self._cluster.kubectl("get", "events", "--sort-by=.lastTimestamp", *space)
        return "\n".join([pods, *self._waiting(), *events.splitlines()[-15:]])

    def _waiting(self) -> list[str]:
        """Why containers do not run."""
        found = json.loads(self._cluster.kubectl("get", "pods", "-o", "json", "-n", self.namespace))
        lines: list[str] = []
        for pod in found["items"]:
            status = pod["status"]
            for kind in ("initContainerStatuses", "containerStatuses"):
                for one in status.get(kind, []):
                    name = f"{pod['metadata']['name']}/{one['name']}"
                    lines.append(f"{name}: {json.dumps(one.get('state'))} {one.get('lastState')}")
        return lines

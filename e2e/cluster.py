"""A real Kubernetes control plane on loopback, or the one that ``E2E_KUBECONFIG`` names.

``Cluster`` starts etcd, kube-apiserver and kube-controller-manager with ports, certificates and
data of its own, and leaves nothing behind. ``ExistingCluster`` only connects. Both give an admin
kubeconfig, a plain REST client and kubectl. There is no node: ``e2e.node`` adds one. Must never
import the product.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx

from e2e import control_plane, kubeconfig
from e2e.api import Api, ApiError
from e2e.binaries import binary, search_path
from e2e.certificates import Authority, signing_key
from e2e.processes import Process, ProcessFailed, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

START_S: Final = 120.0  # about 8 s on two free cores
_POLL_S: Final = 0.05
_STOP_S: Final = 15.0


class CommandFailed(Exception):
    """kubectl or helm refused; what it printed is in the text."""


class ExistingCluster:
    """What every cluster offers; by itself one that somebody else runs."""

    def __init__(self, kubeconfig_path: Path) -> None:
        self.kubeconfig = kubeconfig_path
        self.api = Api(kubeconfig_path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def env(self) -> dict[str, str]:
        """The environment of a client: KUBECONFIG, and a PATH with kubectl and helm."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": search_path()}

    def stop(self) -> None:
        """Ends what this object started: its connections."""
        self.api.close()

    def kubectl(self, *arguments: str, stdin: str = "", limit_s: float = 120.0) -> str:
        """Run kubectl as the administrator; its output, or CommandFailed with its errors."""
        argv = [str(binary("kubectl")), *arguments]
        return run(argv, env=self.env, stdin=stdin, limit_s=limit_s)

    def create_namespace(
        self, name: str, *, annotations: Mapping[str, str] | None = None, level: str = "restricted"
    ) -> str:
        """A namespace of its own under a Pod Security level, with its default service account."""
        labels = {"pod-security.kubernetes.io/enforce": level}
        metadata = {"name": name, "labels": labels, "annotations": dict(annotations or {})}
        self.api.create("/api/v1/namespaces", {"metadata": metadata})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until = time.monotonic() + START_S
        while not self.api.exists(path):
            if time.monotonic() > until:
                raise ProcessFailed(f"no default service account in {name}: no controllers?")
            time.sleep(_POLL_S)
        return name


class Cluster(ExistingCluster):
    """A control plane of our own; ``start()`` and ``stop()``, or ``with``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="retire-e2e-"))
        self.ports = control_plane.Ports(*(free_port() for _ in range(4)))
        authority = Authority.create(self.folder / "pki")
        server = f"https://{control_plane.HOST}:{self.ports.api}"
        admin = kubeconfig.user_of(authority.client("admin", "system:masters"))
        super().__init__(
            kubeconfig.write(self.folder / "admin.kubeconfig", server, authority.ca_file, admin)
        )
        self.ca_file = authority.ca_file
        controllers = kubeconfig.write(
            self.folder / "controllers.kubeconfig",
            server,
            authority.ca_file,
            kubeconfig.user_of(authority.client("system:kube-controller-manager")),
        )
        self._keys = control_plane.Keys(
            authority.ca_file,
            authority.server("kube-apiserver", control_plane.SERVER_NAMES),
            signing_key(authority.folder, "service-accounts"),
        )
        self.etcd = self._process("etcd", control_plane.etcd(self.folder / "etcd", self.ports))
        self.api_server = self._process(
            "kube-apiserver", control_plane.api_server(self.ports, self._keys)
        )
        self.controller_manager = self._process(
            "kube-controller-manager",
            control_plane.controller_manager(self.ports, self._keys, controllers),
        )

    def __enter__(self) -> Self:
        return self.start()

    def start(self) -> Self:
        """Returns when the API server and its controllers work; ProcessFailed otherwise."""
        try:
            self.etcd.start()
            self.etcd.wait_until(self._etcd_listens, START_S)
            self.start_api_server()
            self.controller_manager.start()
            self.controller_manager.wait_until(self._controllers_work, START_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends every process and removes the data."""
        self.controller_manager.stop(limit_s=_STOP_S)
        self.api_server.stop(limit_s=_STOP_S)
        self.etcd.stop(limit_s=_STOP_S)
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_api_server(self) -> None:
        """After ``api_server.stop()``, or at the first start; returns when it is ready."""
        if not self.api_server.running:
            self.api_server.start()
        self.api_server.wait_until(self.api.ready, START_S)

    def _process(self, name: str, arguments: list[str]) -> Process:
        return Process(name, [str(binary(name)), *arguments], self.folder / f"{name}.log")

    def _etcd_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((control_plane.HOST, self.ports.etcd)) == 0

    def _controllers_work(self) -> bool:
        """They made the first namespace's service account: pods can be created there."""
        try:
            return self.api.exists("/api/v1/namespaces/default/serviceaccounts/default")
        except (ApiError, httpx.TransportError):
            return False


def connect() -> ExistingCluster:
    """The cluster of ``E2E_KUBECONFIG``, or a new one, not started yet."""
    if path := os.environ.get("E2E_KUBECONFIG"):
        return ExistingCluster(Path(path))
    return Cluster()


def run(argv: list[str], *, env: Mapping[str, str], stdin: str = "", limit_s: float) -> str:
    """A client command's standard output; CommandFailed when it ends badly or not in time."""
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            env=dict(env),
            text=True,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(argv[:4])}: not done in {limit_s:.0f} s") from error
    if done.returncode:
        words = " ".join([Path(argv[0]).name, *argv[1:]])
        raise CommandFailed(f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout

"""A small installation on a real API server: Valkey, operator processes, sidecar processes with
pods that say where they are. The gates are API processes in miniature (``e2e.sidecar_nodes``).

For tests and benches. Owns its folder, its namespace's objects and every process it starts.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import redis.asyncio
import yaml

from e2e.api import ApiError
from e2e.processes import free_port
from e2e.sidecar_certificates import OPERATOR, SERVER, Authority, env
from e2e.sidecar_nodes import Gate, Sidecar, eventually
from retire.registry.embedded import EmbeddedServer
from retire.sidecar.pb import node_pb2 as pb
from retire_operator.resource import POOL_LABEL

if TYPE_CHECKING:
    from e2e.cluster import ExistingCluster
    from retire.sidecar.config import Tls

LIMIT_S: Final = 60.0
_SCOPES: Final = "/apis/serving.retire.dev/v1alpha1/namespaces/{}/servingscopes"


class Engine(Gate):
    """A gate that can warm."""

    def __init__(self, sidecar: Sidecar, name: str = "g1") -> None:
        super().__init__(sidecar, name)
        self.warmed: list[pb.Warm] = []

    async def warm(self, command: pb.Warm) -> pb.WarmDone:
        """Most of the prompt was there."""
        self.warmed.append(command)
        return pb.WarmDone(prompt_tokens=40, cached_tokens=32)


class LabNode:
    """A sidecar process, its engine's gate, and its pod."""

    def __init__(self, sidecar: Sidecar, engine: Any, port: int) -> None:
        self.sidecar, self.engine, self.port = sidecar, engine, port


class Lab:
    """One namespace."""

    def __init__(self, cluster: ExistingCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.folder = Path(tempfile.mkdtemp(prefix="ro-"))
        self.registry = EmbeddedServer(self.folder / "registry")
        self.nodes: dict[str, LabNode] = {}
        self.operators: list[subprocess.Popen[bytes]] = []
        ca = Authority.make("lab")
        self._server: Tls = ca.issue(self.folder / "server", SERVER)
        self._client: Tls = ca.issue(self.folder / "client", OPERATOR)
        self._account = self.folder / "account"

    async def __aenter__(self) -> Lab:
        self.registry.__enter__()
        await asyncio.to_thread(self._grant)
        return self

    async def __aexit__(self, *_: object) -> None:
        for operator in self.operators:
            operator.kill()
            operator.wait(10)
        for node in self.nodes.values():
            await node.engine.__aexit__()
            node.sidecar.kill()
        self.registry.__exit__(None, None, None)
        await asyncio.to_thread(self._forget)
        shutil.rmtree(self.folder, ignore_errors=True)

    def print_logs(self) -> None:
        """The ends of every log, for a test that failed."""
        for log in self.folder.glob("*/log"):
            print(f"--- {log}\n{log.read_text()[-6000:]}")
        for log in self.folder.glob("operator-*.log"):
            print(f"--- {log}\n{log.read_text()[-12000:]}")

    # -- processes

    def operator(self, **more: str) -> subprocess.Popen[bytes]:
        """Start one operator process, as it runs in a pod."""
        number = len(self.operators)
        variables = {
            **{name: value for name, value in os.environ.items() if "RETIRE" not in name},
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "RETIRE_REGISTRY_URL": self.registry.url,
            "RETIRE_TERM_LEASE": f"{self.namespace}/retire-term",
            "RETIRE_NODE_NAMESPACE": self.namespace,
            "RETIRE_WATCH_NAMESPACES": self.namespace,
            "RETIRE_HTTP_LISTEN": f"127.0.0.1:{free_port()}",
            "RETIRE_RESYNC_S": "5",
            "RETIRE_FINALIZER_TIMEOUT_S": "3",
            **env(self._client),
            **more,
        }
        with (self.folder / f"operator-{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "retire_operator"], env=variables, stdout=log, stderr=log
            )
        self.operators.append(process)
        return process

    async def node(
        self,
        name: str = "node-0",
        *,
        pool: str = "default",
        engine: Callable[[Sidecar], Gate] = Engine,
        **more: str,
    ) -> LabNode:
        """Start a sidecar with a gate; its pod is ready when the node is."""
        port = free_port()
        sidecar = Sidecar(
            self.folder,
            self.registry.url,
            node=name,
            RETIRE_LISTEN=f"127.0.0.1:{port}",
            RETIRE_TERM_FILE="",
            RETIRE_TERM_LEASE=f"{self.namespace}/retire-term",
            RETIRE_KUBE_API=self.cluster.api.server,
            RETIRE_KUBE_ACCOUNT=str(self._account),
            RETIRE_FENCE_WAIT_S="1",
            **env(self._server),
            **more,
        ).start()
        await sidecar.until_held()
        gate = engine(sidecar)
        await gate.__aenter__()
        await sidecar.until(lambda status: status.ready)
        made = self.nodes[name] = LabNode(sidecar, gate, port)
        await asyncio.to_thread(self._pod, name, port, pool)
        return made

    def set_ready(self, name: str, *, ready: bool) -> None:
        """What the kubelet would say."""
        state = "True" if ready else "False"
        body = {
            "status": {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": state}],
            }
        }
        self.cluster.api.merge(f"/api/v1/namespaces/{self.namespace}/pods/{name}/status", body)

    async def wipe(self) -> None:
        """The registry loses everything."""
        client = redis.asyncio.from_url(self.registry.url)
        await client.flushall()
        await client.aclose()

    def delete_pod(self, name: str) -> None:
        """At once: no kubelet ends it."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.cluster.api.delete(path, gracePeriodSeconds=0)

    # -- objects

    def apply(self, name: str, **spec: Any) -> dict[str, Any]:
        """kubectl apply --server-side of a whole spec."""
        body = {
            "apiVersion": "serving.retire.dev/v1alpha1",
            "kind": "ServingScope",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }
        return self.cluster.api.apply(f"{self._path}/{name}", body, "author")

    def get(self, name: str) -> dict[str, Any] | None:
        """The object; None: there is none."""
        try:
            return self.cluster.api.get(f"{self._path}/{name}")
        except ApiError:
            return None

    def delete(self, name: str) -> None:
        """kubectl delete --wait=false."""
        self.cluster.api.delete(f"{self._path}/{name}")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events about the object."""
        found = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")
        return [e for e in found["items"] if e["involvedObject"]["name"] == name]

    async def until(
        self, name: str, holds: Callable[[dict[str, Any]], bool], limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """The object once ``holds(status)``."""

        async def ask() -> Any:
            return await asyncio.to_thread(self.get, name)

        return await eventually(
            ask, lambda body: "status" in body and holds(body["status"]), limit_s
        )

    async def until_ready(self, name: str, version: str) -> dict[str, Any]:
        """Until it is ready at a version."""
        return await self.until(
            name, lambda s: s.get("version") == version and condition(s, "Ready")[0] == "True"
        )

    async def until_reason(self, name: str, reason: str, kind: str = "Ready") -> dict[str, Any]:
        """Until a condition gives a reason."""
        return await self.until(name, lambda s: condition(s, kind)[1] == reason)

    async def until_gone(self, name: str, limit_s: float = LIMIT_S) -> float:
        """Seconds until the object no longer exists."""
        began = time.monotonic()
        while await asyncio.to_thread(self.get, name) is not None:
            assert time.monotonic() - began < limit_s, f"{name} is still there"
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    @property
    def _path(self) -> str:
        return _SCOPES.format(self.namespace)

    def _grant(self) -> None:
        """A service account token for the sidecars, which may read the Lease."""
        name = f"retire-{self.namespace}"
        rules = [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
        ]
        base = "/apis/rbac.authorization.k8s.io/v1"
        self.cluster.api.create(
            f"{base}/clusterroles", {"metadata": {"name": name}, "rules": rules}
        )
        binding = {
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": name,
            },
            "subjects": [
                {"kind": "ServiceAccount", "name": "default", "namespace": self.namespace}
            ],
        }
        self.cluster.api.create(f"{base}/clusterrolebindings", binding)
        token = self.cluster.kubectl("create", "token", "default", "-n", self.namespace)
        self._account.mkdir()
        (self._account / "token").write_text(token.strip())
        (self._account / "ca.crt").write_bytes(_ca_of(self.cluster))

    def _forget(self) -> None:
        base = "/apis/rbac.authorization.k8s.io/v1"
        for kind in ("clusterroles", "clusterrolebindings"):
            self.cluster.api.delete(f"{base}/{kind}/retire-{self.namespace}")
        found = self.cluster.api.get(self._path)
        for item in found["items"]:  # the namespace could not go with our finalizer on them
            if item["metadata"].get("finalizers"):
                path = f"{self._path}/{item['metadata']['name']}"
                self.cluster.api.merge(path, {"metadata": {"finalizers": []}})

    def _pod(self, name: str, port: int, pool: str) -> None:
        container = {
            "name": "sidecar",
            "image": "none",
            "ports": [{"name": "grpc", "containerPort": port}],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        body = {
            "metadata": {"name": name, "labels": {POOL_LABEL: pool}},
            # Unscheduled: a pod of a node that does not exist would be collected.
            "spec": {"containers": [container]},
        }
        self.cluster.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        self.set_ready(name, ready=True)


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    for row in status.get("conditions") or ():
        if row["type"] == kind:
            return row["status"], row["reason"], row.get("message", "")
    return "", "", ""


def stop(process: subprocess.Popen[bytes]) -> int:
    """A clean shutdown's exit status."""
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


def _ca_of(cluster: ExistingCluster) -> bytes:
    entry = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    if "certificate-authority-data" in entry:
        return base64.b64decode(entry["certificate-authority-data"])
    return Path(entry["certificate-authority"]).read_bytes()

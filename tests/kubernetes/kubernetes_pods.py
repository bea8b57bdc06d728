"""Tiny pods for the tests: what they run, how they are made, what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from e2e.waiting import NotInTime, wait_condition, wait_for, wait_gone

if TYPE_CHECKING:
    from e2e.cluster import Cluster
    from e2e.node.harness import Harness

IMAGE: Final = "python"
# Serves the folder /srv if there is one; ends in order on SIGTERM, as a good PID 1 does.
SERVER: Final = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *a): print(self.client_address[0], *a, flush=True)
    def do_POST(self): os._exit(int(self.path[1:]))
where = "/srv" if os.path.isdir("/srv/.") else "/"
http.server.ThreadingHTTPServer(("", 8000), lambda *a: Handler(*a, directory=where)).serve_forever()
"""
SLEEPER: Final = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(600)"
)
FETCH: Final = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read())"
SECURE: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def container(name: str, code: str, *arguments: str, **fields: Any) -> dict[str, Any]:
    """One that runs a line of Python, under restricted Pod Security."""
    command = ["python", "-c", code, *arguments]
    return {
        "name": name,
        "image": f"{IMAGE}:3.11",
        "command": command,
        "securityContext": dict(SECURE),
        **fields,
    }


def server(name: str = "web", **fields: Any) -> dict[str, Any]:
    """A container that serves HTTP on port 8000, called ``http``, and is probed quickly."""
    probe = {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 1}
    defaults = {"ports": [{"name": "http", "containerPort": 8000}], "readinessProbe": probe}
    return container(name, SERVER, **{**defaults, **fields})


def pod_spec(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod's spec under restricted Pod Security."""
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "securityContext": context,
        "terminationGracePeriodSeconds": 10,
        "containers": list(containers),
        **fields,
    }


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of one namespace."""

    cluster: Cluster
    harness: Harness
    namespace: str

    def path(self, name: str, kind: str = "pods") -> str:
        """Of a core object."""
        return f"/api/v1/namespaces/{self.namespace}/{kind}/{name}"

    def key(self, name: str) -> str:
        """As the harness wants it."""
        return f"{self.namespace}/{name}"

    def create(self, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        """A pod, labelled with its name."""
        head = {"name": name, "labels": {"app": name}, **metadata}
        body = {"metadata": head, "spec": spec}
        return self.cluster.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)

    def put(self, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        """Another core object: ``configmaps``, ``secrets``, ``services`` ..."""
        body = {"metadata": {"name": name}, **fields}
        return self.cluster.api.create(f"/api/v1/namespaces/{self.namespace}/{kind}", body)

    def service(self, name: str, port: int = 80, **spec: Any) -> dict[str, Any]:
        """A service for the pod of that name."""
        ports = [{"port": port, "targetPort": "http"}]
        return self.put("services", name, spec={"selector": {"app": name}, "ports": ports, **spec})

    def get(self, name: str) -> dict[str, Any]:
        """The pod."""
        return self.cluster.api.get(self.path(name))

    def status(self, name: str, of: str) -> dict[str, Any]:
        """The status of one container; LookupError before there is one."""
        status = self.get(name)["status"]
        every = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        for one in every:
            if one["name"] == of:
                return one
        raise LookupError(f"no status of {of} in {status}")

    def waiting(self, name: str, of: str) -> dict[str, Any]:
        """Why a container waits; empty when it does not."""
        return self.status(name, of)["state"].get("waiting", {})

    def ready(self, name: str, limit_s: float = 60.0) -> dict[str, Any]:
        """Wait for the pod; one that does not come says what its containers do."""
        try:
            return wait_condition(self.cluster.api, self.path(name), "Ready", limit_s=limit_s)
        except NotInTime as error:
            error.add_note(f"status: {self.get(name)['status']}")
            raise

    def ended(self, name: str, phase: str) -> dict[str, Any]:
        """Wait for a pod's end."""

        def look() -> dict[str, Any] | None:
            pod = self.get(name)
            if pod["status"].get("phase") != phase:
                raise LookupError(pod["status"])
            return pod

        return wait_for(f"{name} {phase}", look) or {}

    def gone(self, name: str) -> None:
        """Wait until the pod does not exist."""
        wait_gone(self.cluster.api, self.path(name))

    def run(self, name: str, of: str, *argv: str) -> str:
        """The output of a command that must succeed in a container."""
        code, output = self.harness.exec(self.key(name), of, *argv)
        assert code == 0, output
        return output

    def fetch(self, name: str, of: str, url: str) -> tuple[int, str]:
        """GET from inside a container; exit status and what it printed."""
        return self.harness.exec(self.key(name), of, "python", "-c", FETCH, url)

"""The chart, installed for real on a cluster whose nodes are the harness: what scenarios run on.

One ``helm install`` with two nodes (real vLLM with a tiny model on the CPU, real sidecars), a real
Valkey and two operators. Owns the values, and how long things may take. Must never judge.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from e2e.binaries import ROOT
from e2e.cluster import Cluster
from e2e.helm import Release
from e2e.history import ClusterHistory
from e2e.node.harness import Harness
from e2e.retire_images import retire_images
from e2e.waiting import wait_condition, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHART: Final = ROOT / "charts" / "retire"
NAMESPACE: Final = "retire"
SCOPES: Final = "/apis/serving.retire.dev/v1alpha1/namespaces/{}/servingscopes"
NODES: Final = ("retire-node-0", "retire-node-1")
REGISTRY: Final = "retire-registry-0"
QUANTUM: Final = 64  # tokens
BLOCK: Final = 32  # tokens
LEASE_S: Final = 4.0  # long enough for a machine that has other work
INSTALL_S: Final = 900.0
_CALL: Final = httpx.Timeout(120.0, connect=10.0)


def values(model: Path, **more: Any) -> dict[str, Any]:
    """Chart values for two nodes on a CPU."""
    return {
        "model": str(model),
        "servedModelName": "tiny",
        "extraArgs": [
            *("--dtype", "float32", "--max-model-len", "16384", "--max-num-batched-tokens", "512"),
            *("--block-size", str(BLOCK), "--enforce-eager", "--enable-prompt-tokens-details"),
            # Engine and worker as two processes would poll each other on all cores there are.
            *("--distributed-executor-backend", "uni"),
        ],
        "sidecar": {"leaseSeconds": LEASE_S},
        "registry": {"bundled": {"tls": False, "persistence": {"size": "64Mi"}}},
        "operator": {"resyncSeconds": 5, "finalizerTimeoutSeconds": 10},
        "node": {
            "replicas": len(NODES),
            "gpus": 0,
            "quantumTokens": QUANTUM,
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            "drain": {"endpointsSeconds": 1, "streamsSeconds": 5, "stopSeconds": 10},
        },
        **more,
    }


@dataclass(frozen=True, slots=True)
class Api:
    """The API of one node, as ``bench.stack_streams`` sees a stack."""

    url: str
    model: str = "tiny"

    @property
    def http(self) -> httpx.Client:
        """A client of its own for each use."""
        return httpx.Client(base_url=self.url, timeout=_CALL)

    def headers(self, scope: str, tenant: str) -> dict[str, str]:
        """The tag of an OpenAI call."""
        return {"x-retire-scope": scope, "x-retire-tenant": tenant}

    def body(self, prompt: str | list[int], **params: Any) -> dict[str, Any]:
        """A greedy completion that does not end by itself."""
        defaults = {"temperature": 0, "max_tokens": 2000, "ignore_eos": True}
        return {"model": self.model, "prompt": prompt, **defaults, **params}

    def complete(
        self, prompt: str | list[int], headers: Mapping[str, str] | None = None, **params: Any
    ) -> dict[str, Any]:
        """A completion in one answer; AssertionError when it is refused."""
        body = self.body(prompt, **params)
        with self.http as client:
            answer = client.post("/v1/completions", json=body, headers=dict(headers or {}))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def scope(self, scope: str, tenant: str) -> dict[str, Any]:
        """GET /v1/scopes/{scope}."""
        with self.http as client:
            answer = client.get(f"/v1/scopes/{scope}", headers={"x-retire-tenant": tenant})
        assert answer.status_code == 200, answer.text
        return answer.json()


class Deployment:
    """``with``, or ``start()`` and ``stop()``."""

    def __init__(self, model: Path, **more: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="retire-deployment-"))
        self.history = ClusterHistory(self.folder / "history.ndjson")
        self.cluster = Cluster()
        self.harness = Harness(
            self.cluster, retire_images(self.history, software=[str(model.parent)])
        )
        self.release = Release(self.cluster, CHART, "retire", NAMESPACE)
        self.values = values(model, **more)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Returns when everything is ready."""
        began = time.monotonic()
        try:
            self.cluster.start()
            self.harness.start()
            self.cluster.create_namespace(NAMESPACE)
            print("helm install ...", flush=True)
            self.release.install(self.values, limit_s=INSTALL_S)
        except BaseException:
            self.stop()
            raise
        print(f"installed in {time.monotonic() - began:.0f} s", flush=True)
        return self

    def stop(self) -> None:
        """Every process is gone afterwards."""
        try:
            self.harness.stop()
        finally:
            self.cluster.stop()

    # --- what is there --------------------------------------------------------------------------

    def api(self, node: str = NODES[0]) -> Api:
        """The API of a node."""
        return Api(f"http://{self.harness.address(f'{NAMESPACE}/{node}')}:8000")

    def operators(self) -> list[str]:
        """Names of the operators' pods."""
        return self.pods("operator")

    def pods(self, component: str) -> list[str]:
        """Names of the running pods of a component."""
        selector = f"app.kubernetes.io/component={component}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        found = self.cluster.api.get(path, labelSelector=selector)
        return sorted(
            one["metadata"]["name"]
            for one in found["items"]
            if "deletionTimestamp" not in one["metadata"]
        )

    # --- ServingScopes --------------------------------------------------------------------------

    def apply(self, name: str, namespace: str, **spec: Any) -> dict[str, Any]:
        """kubectl apply --server-side of a whole spec."""
        body = {
            "apiVersion": "serving.retire.dev/v1alpha1",
            "kind": "ServingScope",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        return self.cluster.api.apply(f"{SCOPES.format(namespace)}/{name}", body, "scenario")

    def scope(self, name: str, namespace: str) -> dict[str, Any]:
        """The object."""
        return self.cluster.api.get(f"{SCOPES.format(namespace)}/{name}")

    @property
    def term(self) -> int:
        """As the operator's Lease counts it."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/retire-term"
        return self.cluster.api.get(path)["spec"]["leaseTransitions"]

    def until(
        self, name: str, namespace: str, version: str, limit_s: float = 60.0
    ) -> dict[str, Any]:
        """The object once its status says this version and Ready."""

        def look() -> dict[str, Any]:
            item = self.scope(name, namespace)
            status = item.get("status", {})
            if status.get("version") != version:
                raise LookupError(status)
            return item

        wait_for(f"{namespace}/{name} at {version}", look, limit_s)
        path = f"{SCOPES.format(namespace)}/{name}"
        return wait_condition(self.cluster.api, path, "Ready", limit_s=limit_s)

    def nodes_ready(self, nodes: Sequence[str] = NODES, limit_s: float = 300.0) -> None:
        """Until these pods are ready."""
        for node in nodes:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{node}"
            wait_condition(self.cluster.api, path, "Ready", limit_s=limit_s)

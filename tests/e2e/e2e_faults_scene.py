"""One scenario's view of the installation: its scopes, its streams, what must hold at its end.

Owns the promises that a client can check. Must never make a fault: the scenarios do.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import httpx
from e2e_faults_history import Tail

from bench.lab import prompt_tokens
from bench.stack_streams import Flow, streamed
from e2e.deployment import NAMESPACE, NODES, REGISTRY, SCOPES
from e2e.waiting import condition, wait_for, wait_replicas
from retire.protocol.versions import ScopeKey, Version

if TYPE_CHECKING:
    from e2e.deployment import Deployment

OLD: Final = prompt_tokens(200, 41)
LONG: Final = 3600  # tokens: a stream that outlives what is done to it
PATIENCE_S: Final = 120.0  # for what takes some seconds on an idle machine
_DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/retire-operator"


def pod(name: str) -> str:
    """As the harness names it."""
    return f"{NAMESPACE}/{name}"


class Scope:
    """A ServingScope of the scenario, and what its client does."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene, self.name = scene, name
        self.key = ScopeKey(scene.tenant, name)
        self.epoch = 0
        self.flows: list[Flow] = []

    @property
    def status(self) -> dict[str, Any]:
        """Of the object, now."""
        return self.scene.deployment.scope(self.name, self.scene.tenant).get("status", {})

    @property
    def version(self) -> Version:
        """As the status tells it."""
        return Version.parse(self.status["version"])

    def revise(self, by: int = 1) -> None:
        """Apply the next epoch; does not wait."""
        self.epoch += by
        self.scene.deployment.apply(self.name, self.scene.tenant, epoch=self.epoch)

    def current(self, limit_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the status says that the last revision is made; the status."""

        def look() -> dict[str, Any]:
            item = self.scene.deployment.scope(self.name, self.scene.tenant)
            status = item.get("status", {})
            ready = condition(item, "Ready")
            version = status.get("version")
            made = version is not None and Version.parse(version).epoch >= self.epoch
            seen = ready.get("observedGeneration") == item["metadata"]["generation"]
            if not (made and seen and ready["status"] == "True"):
                raise LookupError(f"{version} {ready}")
            return status

        return wait_for(f"{self.key} at epoch {self.epoch}", look, limit_s)

    def stream(self, node: str = NODES[0], tokens: int = 3) -> Flow:
        """A stream on a node, once it has published; a refusal that says so is tried again."""

        def admitted() -> Flow:
            flow = self._call(node)
            flow.until(lambda one: one.tokens >= tokens or one.over, PATIENCE_S)
            if flow.status == httpx.codes.SERVICE_UNAVAILABLE:
                raise LookupError(flow.error)
            return flow

        flow = wait_for(f"a stream of {self.key} on {node}", admitted, PATIENCE_S)
        self.flows.append(flow)
        return flow.tokens_at_least(tokens, PATIENCE_S)

    def _call(self, node: str) -> Flow:
        api = self.scene.deployment.api(node)
        tag = api.headers(self.name, self.scene.tenant)
        return Flow(api, streamed(api.body(OLD, max_tokens=LONG)), tag)  # type: ignore[arg-type]


class Scene:
    """``tenant`` is the scenario's namespace as well."""

    def __init__(self, deployment: Deployment, tenant: str) -> None:
        self.deployment, self.tenant = deployment, tenant
        self.harness = deployment.harness
        self.history = Tail(deployment.history.path)
        self._scopes: list[Scope] = []

    def scope(self, name: str = "plan") -> Scope:
        """A scope that is open."""
        scope = Scope(self, name)
        self.deployment.apply(name, self.tenant, epoch=0)
        scope.current()
        self._scopes.append(scope)
        return scope

    @property
    def term(self) -> int:
        """As the Lease counts it."""
        return self.deployment.term

    def end(self) -> None:
        """Healthy again: everything is ready, every scope can be revised, nothing was broken."""
        self.healthy()
        for scope in self._scopes:
            scope.revise()
        for scope in self._scopes:
            status = scope.current()
            assert condition({"status": status}, "RegistrySynced")["status"] == "True"
            once(self.history, scope)
        for flow in (flow for scope in self._scopes for flow in scope.flows):
            flow.close()
        self.deployment.history.judge(at_least=len(self._scopes))

    def healthy(self) -> None:
        """Until the registry, both nodes and both operators are ready."""
        self.deployment.nodes_ready((REGISTRY, *NODES))
        wait_replicas(self.deployment.cluster.api, _DEPLOYMENT, PATIENCE_S)


class Witness:
    """Everything that the statuses of a scene's scopes say, from now on."""

    def __init__(self, scene: Scene) -> None:
        self.statuses: list[tuple[str, dict[str, Any]]] = []  # name, status
        self._events = scene.deployment.cluster.api.watch(SCOPES.format(scene.tenant))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(httpx.HTTPError):  # the API server went away
            for event in self._events:
                item = event["object"]
                self.statuses.append((item["metadata"]["name"], item.get("status", {})))

    def synced(self) -> set[str]:
        """What RegistrySynced was said to be."""
        rows = (condition({"status": status}, "RegistrySynced") for _, status in self.statuses)
        return {row["status"] for row in rows if row}

    def versions(self, scope: Scope) -> list[Version]:
        """Of a scope, as they were told."""
        told = [status.get("version") for name, status in self.statuses if name == scope.name]
        return [Version.parse(version) for version in told if version]


def once(history: Tail, scope: Scope) -> None:
    """Exactly one COMMIT for each epoch of a scope, each above the one before."""
    versions = history.superseded(scope.key)
    epochs = [version.epoch for version in versions]
    assert epochs == list(range(1, scope.epoch + 1)), (scope.key, versions)
    assert versions == sorted(versions)


def retired(flow: Flow, scope: Scope, *, limit_s: float = PATIENCE_S) -> None:
    """The stream ended as superseded: what was published was read, and not a token more.

    On a quick machine it may have been over before: then it is whole, and of one version.
    """
    flow.ended(limit_s)
    error = flow.error
    if flow.done and error is None:
        print(f"a stream of {scope.key} was over before it was superseded")
        assert flow.tokens == LONG
        own_version(flow, Version.parse(next(f.version for f in flow.frames if f.version) or ""))
        return
    assert error is not None and error["code"] == "superseded", flow
    old, current = Version.parse(error["version"]), Version.parse(error["current"])
    assert old < current <= Version(current.term, scope.epoch)
    own_version(flow, old)
    published = error["last_published_index"]
    assert flow.tokens == (0 if published is None else published + 1)


def own_version(flow: Flow, version: Version) -> None:
    """Every token of a stream is of one version."""
    assert {f.version for f in flow.frames if f.tokens} == {str(version)}

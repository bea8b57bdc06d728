"""One ServingScope, driven with kubectl as its owner would, and the agents that stream under it.

Owns how a scenario speaks to the installation. Must never judge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from bench.stack_streams import COMPLETIONS, Agent, Flow, streamed
from e2e.deployment import NODES, SCOPES, Deployment
from e2e.waiting import condition, wait_condition, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

LONG = 15_000  # output tokens: a stream that does not end by itself, however slow kubectl is
SETTLED_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A ServingScope of the tenant's own namespace."""

    deployment: Deployment
    tenant: str
    name: str = "plan"

    # --- the object -----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Of the object, below the API server."""
        return f"{SCOPES.format(self.tenant)}/{self.name}"

    def manifest(self, **spec: Any) -> str:
        """What a person would write into a file."""
        return json.dumps(
            {
                "apiVersion": "serving.retire.dev/v1alpha1",
                "kind": "ServingScope",
                "metadata": {"name": self.name, "namespace": self.tenant},
                "spec": spec,
            }
        )

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """In the tenant's namespace."""
        return self.deployment.cluster.kubectl("-n", self.tenant, *arguments, stdin=stdin)

    def apply(self, **spec: Any) -> str:
        """``kubectl apply -f -`` of the whole spec."""
        return self.kubectl("apply", "-f", "-", stdin=self.manifest(**spec))

    def patch(self, **spec: Any) -> str:
        """``kubectl patch`` of some fields of the spec."""
        change = json.dumps({"spec": spec})
        return self.kubectl("patch", "servingscope", self.name, "--type=merge", "-p", change)

    def opened(self, **spec: Any) -> Self:
        """Applied, and at its first version."""
        self.apply(**{"epoch": 0, **spec})
        self.until(f"{self.deployment.term}.0")
        return self

    @property
    def status(self) -> dict[str, Any]:
        """As it stands now."""
        return self.deployment.scope(self.name, self.tenant).get("status", {})

    def until(self, version: str) -> dict[str, Any]:
        """The status, once it says this version and Ready."""
        return self.deployment.until(self.name, self.tenant, version, SETTLED_S)["status"]

    def shows(self, what: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status, once it fits."""

        def look() -> dict[str, Any]:
            status = self.status
            if not fits(status):
                raise LookupError(status)
            return status

        return wait_for(f"{self.tenant}/{self.name}: {what}", look, SETTLED_S)

    def condition(self, kind: str, status: str, reason: str) -> str:
        """The message of a condition, once it is so."""
        api = self.deployment.cluster.api
        item = wait_condition(api, self.path, kind, status=status, reason=reason, limit_s=SETTLED_S)
        return condition(item, kind)["message"]

    def receipt(self, to_version: str) -> dict[str, Any]:
        """The status's line about the transition to a version, once it is complete."""

        def complete(status: dict[str, Any]) -> bool:
            return any(
                one["toVersion"] == to_version and "unpublishableMs" in one
                for one in status.get("receipts", ())
            )

        status = self.shows(f"the receipt of {to_version}", complete)
        return next(one for one in status["receipts"] if one["toVersion"] == to_version)

    def events(self) -> list[dict[str, Any]]:
        """Kubernetes Events about it."""
        found = self.deployment.cluster.api.get(f"/api/v1/namespaces/{self.tenant}/events")
        return [one for one in found["items"] if one["involvedObject"]["name"] == self.name]

    def has_event(self, reason: str) -> dict[str, Any]:
        """An Event of that reason, once it is written."""

        def look() -> list[dict[str, Any]]:
            return [one for one in self.events() if one["reason"] == reason]

        return wait_for(f"event {reason} of {self.name}", look, SETTLED_S)[0]

    # --- its agents -----------------------------------------------------------------------------

    def agent(self, node: str = NODES[0]) -> Agent:
        """Somebody who works under it, at one node."""
        api = cast("Any", self.deployment.api(node))
        return Agent(api, self.name, self.tenant)

    def runs(self, prompt: str, node: str = NODES[0], **params: Any) -> Flow:
        """A stream that has begun to give tokens and goes on."""
        return self.agent(node).stream(prompt, **{"max_tokens": LONG, **params}).tokens_at_least(3)

    def asks(
        self, prompt: str, node: str = NODES[0], version: str = "", **params: Any
    ) -> httpx.Response:
        """One call without streaming; whatever the answer is."""
        api = self.deployment.api(node)
        tag = api.headers(self.name, self.tenant)
        tag |= {"x-retire-version": version} if version else {}
        body = api.body(prompt, **{"max_tokens": 8, **params})
        with api.http as client:
            return client.post(COMPLETIONS, json=body, headers=tag)

    def view(self, node: str = NODES[0]) -> dict[str, Any]:
        """GET /v1/scopes/{scope} of a node."""
        return self.deployment.api(node).scope(self.name, self.tenant)


def untagged(deployment: Deployment, prompt: str, **params: Any) -> dict[str, Any]:
    """Plain vLLM's answer."""
    return deployment.api().complete(prompt, **{"max_tokens": 8, **params})


def cached(answer: dict[str, Any]) -> int:
    """Prompt tokens that were not computed again."""
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def superseded(flow: Flow, current: str) -> Flow:
    """The stream, once it has ended because of that version."""
    flow.ended()
    assert flow.error is not None, repr(flow)
    found = (flow.error["code"], flow.error["current"])
    assert found == ("superseded", current), flow.error
    return flow


__all__ = ["LONG", "Plan", "cached", "streamed", "superseded", "untagged"]

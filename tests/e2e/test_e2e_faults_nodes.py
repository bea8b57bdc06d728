"""Nodes whose sidecar dies or hangs, that are cut off, and that are deleted in mid-revision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest
from e2e_faults_scene import (
    PATIENCE_S,
    Scene,
    Scope,
    once,
    own_version,
    pod,
    retired,
)

from e2e.deployment import LEASE_S, NAMESPACE, NODES
from e2e.waiting import wait_for
from retire.protocol.history import Published
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from bench.stack_streams import Flow
    from e2e.deployment import Deployment

SIDECAR: Final = "sidecar"
SERVICE: Final = "retire-registry"
NEAR, FAR = NODES
READ_S: Final = 0.5  # from the gate to a client on a machine that has other work
QUIET_S: Final = 1.0  # without a token


def test_sidecar_killed_while_streaming(deployment: Deployment, tenant: str) -> None:
    """The streams of its node go on, or are held until it is back; nothing of them is lost."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flow = scope.stream(NEAR)
    scene.harness.kill(pod(NEAR), SIDECAR)
    read = flow.tokens
    scene.healthy()
    flow.until(lambda one: one.tokens > read + 20 or one.done, PATIENCE_S)
    own_version(flow, scope.version)
    scope.revise()
    scope.current()
    retired(flow, scope)
    scene.end()


def test_sidecar_killed_in_mid_revision(deployment: Deployment, tenant: str) -> None:
    """The one that made the COMMIT dies before UNPUBLISHABLE: the operator's next call, under the
    same key, ends what was begun."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flows = [scope.stream(node) for node in NODES]
    version = scope.version.next_epoch()
    scene.harness.freeze(pod(FAR), SIDECAR)
    scope.revise()
    scene.history.committed(scope.key, version)
    scene.harness.kill(pod(NEAR), SIDECAR)
    scene.harness.thaw(pod(FAR), SIDECAR)
    assert scope.current()["version"] == str(version)
    for flow in flows:
        retired(flow, scope)
    scene.end()


def test_sidecar_that_hangs(deployment: Deployment, tenant: str) -> None:
    """Nobody renews the node's lease: its gates close within it, hold, and open again."""
    scene = Scene(deployment, tenant)
    held, superseded = scene.scope("held"), scene.scope("superseded")
    flow, old = held.stream(FAR), superseded.stream(FAR)
    scene.harness.freeze(pod(FAR), SIDECAR)
    began_s = time.monotonic()
    superseded.revise()
    closed(flow, since_s=began_s)
    superseded.current()
    assert ended_leases(superseded) == 1
    acknowledged = scene.history.acknowledged(superseded.key, superseded.version)
    assert acknowledged.at_ns / 1e9 - began_s > 0.3 * LEASE_S
    read = flow.tokens
    scene.harness.thaw(pod(FAR), SIDECAR)
    retired(old, superseded)
    flow.until(lambda one: one.tokens > read or one.done, PATIENCE_S)
    own_version(flow, held.version)
    scene.end()


def test_cut_off_from_the_registry(deployment: Deployment, tenant: str) -> None:
    """C5: silent within its lease, while the other node goes on; healed, it knows what was
    superseded meanwhile and goes on with the rest."""
    scene = Scene(deployment, tenant)
    held, superseded = scene.scope("held"), scene.scope("superseded")
    flow, old, near = held.stream(FAR), superseded.stream(FAR), held.stream(NEAR)
    scene.harness.partition(pod(FAR), SERVICE)
    began_s = time.monotonic()
    superseded.revise()
    closed(flow, since_s=began_s)
    superseded.current()
    assert ended_leases(superseded) == 1
    after = superseded.stream(NEAR)
    assert after.last_token_s > old.last_token_s
    assert near.done or near.last_token_s > began_s + LEASE_S + READ_S
    read = flow.tokens
    scene.harness.heal(pod(FAR), SERVICE)
    retired(old, superseded)
    flow.until(lambda one: one.tokens > read or one.done, PATIENCE_S)
    own_version(flow, held.version)
    scene.end()


def test_cut_off_from_everybody(deployment: Deployment, tenant: str) -> None:
    """Neither registry, operator nor clients hear the node: its lease ends, revisions go on."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    old = scope.stream(FAR)
    scene.harness.isolate(pod(FAR))
    began_s = time.monotonic()
    try:
        scope.revise()
        scope.current()
        assert ended_leases(scope) == 1
        after = scope.stream(NEAR)
        since_ns = int((began_s + LEASE_S + READ_S) * 1e9)
        assert not published(scene, scope, Version.parse(old_version(old)), since_ns)
    finally:
        scene.harness.rejoin(pod(FAR))
    own_version(after, scope.version)
    old.until(lambda one: one.over, PATIENCE_S)
    if old.broken is None:  # the silence was short enough for the connection
        retired(old, scope)
    scene.end()


@pytest.mark.parametrize("grace", ["graceful", "forced"])
def test_deleted_in_mid_revision(deployment: Deployment, tenant: str, grace: str) -> None:
    """The node comes back as another boot: what the old one held is void, its scopes work there."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flows = [scope.stream(node) for node in NODES]
    old = scope.version
    first, uid = boot(scope, FAR), pod_uid(scene, FAR)
    scene.harness.freeze(pod(FAR), SIDECAR)  # the revision waits for its gates
    scope.revise()
    scene.history.committed(scope.key, old.next_epoch())
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{FAR}"
    if grace == "forced":
        deployment.cluster.api.delete(path, gracePeriodSeconds=0)
    else:
        scene.harness.thaw(pod(FAR), SIDECAR)
        deployment.cluster.api.delete(path)
    scope.current()
    retired(flows[0], scope)
    flows[1].ended(PATIENCE_S)
    own_version(flows[1], old)
    wait_for("another pod", lambda: pod_uid(scene, FAR) not in ("", uid), PATIENCE_S)
    scene.healthy()
    scope.revise()
    scope.current()
    once(scene.history, scope)
    again = scope.stream(FAR)
    assert boot(scope, FAR, other_than=first)
    own_version(again, scope.version)
    scope.revise()
    scope.current()
    retired(again, scope)
    scene.end()


# --- what is looked at ---------------------------------------------------------------------------


def closed(flow: Flow, *, since_s: float) -> None:
    """The stream fell silent within the lease, and it is held, not ended."""
    until_s = since_s + LEASE_S + READ_S + QUIET_S
    wait_for("the end of the lease", lambda: time.monotonic() > until_s)
    took_s = flow.last_token_s - since_s
    print(f"silent {took_s:.2f} s after it was cut off; the lease is {LEASE_S:g} s")
    assert not flow.over
    assert took_s < LEASE_S + READ_S


def published(scene: Scene, scope: Scope, version: Version, since_ns: int) -> list[Published]:
    """What gates let out of a version since a moment."""
    found = scene.history.of(Published, scope.key)
    return [one for one in found if one.version == version and one.at_ns > since_ns]


def ended_leases(scope: Scope) -> int:
    """Gates of the last transition that did not answer: their lease ended."""
    return scope.status["receipts"][0].get("gatesLeaseEnded", 0)


def old_version(flow: Flow) -> str:
    """Of a stream's first token."""
    return next(frame.version for frame in flow.frames if frame.tokens) or ""


def boot(scope: Scope, node: str, *, other_than: str = "") -> str:
    """Wait until the status names the node as a participant; its boot id there."""

    def look() -> str:
        rows = scope.status.get("participants", [])
        found = next((one["bootId"] for one in rows if one["node"] == node), "")
        return "" if found == other_than else found

    return wait_for(f"{node} as a participant of {scope.key}", look, PATIENCE_S)


def pod_uid(scene: Scene, name: str) -> str:
    """Empty while there is no such pod."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
    if not scene.deployment.cluster.api.exists(path):
        return ""
    return scene.deployment.cluster.api.get(path)["metadata"]["uid"]

"""Operators killed at each stage of a revision, and one that was away while the other went on."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from e2e_faults_scene import PATIENCE_S, Scene, Scope, once, pod, retired

from e2e.deployment import NODES
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from e2e.deployment import Deployment

KUBERNETES: Final = "kubernetes.default"
SIDECAR: Final = "sidecar"
SCOPES: Final = 10
ROUNDS: Final = 20


def operators(scene: Scene) -> list[str]:
    """As the harness names them."""
    return [pod(name) for name in scene.deployment.operators()]


def kill(scene: Scene) -> None:
    """Every operator, at once."""
    for name in operators(scene):
        scene.harness.kill(name, "operator")


def held_at_commit(scene: Scene, scope: Scope) -> Version:
    """A revision that stands between COMMIT and UNPUBLISHABLE: a gate's sidecar does not answer."""
    was = scope.version
    scene.harness.freeze(pod(NODES[1]), SIDECAR)
    scope.revise()
    made = scene.history.committed(scope.key, was.next_epoch())
    return made.to_version


def test_killed_before_the_call(deployment: Deployment, tenant: str) -> None:
    """Both operators die with a revision that none of them has acted on: it is made all the
    same."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flow = scope.stream()
    for name in operators(scene):
        scene.harness.freeze(name, "operator")
    scope.revise()
    kill(scene)
    scope.current()
    retired(flow, scope)
    scene.end()


def test_killed_between_commit_and_unpublishable(deployment: Deployment, tenant: str) -> None:
    """Both die while the call waits for a gate: one COMMIT, and the status tells of it."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flows = [scope.stream(node) for node in NODES]
    version = held_at_commit(scene, scope)
    kill(scene)
    scene.harness.thaw(pod(NODES[1]), SIDECAR)
    status = scope.current()
    assert status["version"] == str(version)
    assert status["receipts"][0]["toVersion"] == str(version)
    for flow in flows:
        retired(flow, scope)
    scene.end()


def test_killed_between_unpublishable_and_status(deployment: Deployment, tenant: str) -> None:
    """Both die with a revision that is made and of which the API server knows nothing."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flows = [scope.stream(node) for node in NODES]
    version = held_at_commit(scene, scope)
    mute = operators(scene)
    for name in mute:
        scene.harness.partition(name, KUBERNETES)
    scene.harness.thaw(pod(NODES[1]), SIDECAR)
    scene.history.acknowledged(scope.key, version)
    assert scope.version < version
    kill(scene)
    for name in mute:
        scene.harness.heal(name, KUBERNETES)
    status = scope.current()
    receipt = status["receipts"][0]
    assert (receipt["toVersion"], receipt["by"]) == (str(version), "revision")
    for flow in flows:
        retired(flow, scope)
    scene.end()


def test_killed_at_any_moment(deployment: Deployment, tenant: str) -> None:
    """Kills that are not aimed: one operator or both, some time after a burst of revisions."""
    scene, rng = Scene(deployment, tenant), random.Random(3)
    scope = scene.scope()
    for number in range(6):
        flow = scope.stream()
        for _ in range(2):
            scope.revise()
        threading.Event().wait(rng.uniform(0.0, 0.4))
        for name in operators(scene)[: 1 + number % 2]:
            try:
                scene.harness.kill(name, "operator")
            except (LookupError, KeyError):  # it has not come back from the last kill
                continue
        scope.current()
        retired(flow, scope)
    scene.end()


def test_two_operators_hundreds_of_revisions(deployment: Deployment, tenant: str) -> None:
    """One of two operators stands still for a while in the middle: never two truths."""
    scene = Scene(deployment, tenant)
    with ThreadPoolExecutor(SCOPES) as pool:
        scopes = list(pool.map(lambda n: scene.scope(f"plan-{n}"), range(SCOPES)))
        nodes = [NODES[n % 2] for n in range(SCOPES)]
        flows = list(pool.map(lambda scope, node: scope.stream(node), scopes, nodes))
        began = time.monotonic()
        work = [pool.submit(_revise, scope) for scope in scopes]
        _wait_until(work, scopes, ROUNDS // 4)
        sleeper = operators(scene)[0]
        scene.harness.freeze(sleeper, "operator")
        try:
            _wait_until(work, scopes, 3 * ROUNDS // 4)
        finally:
            scene.harness.thaw(sleeper, "operator")
        seen = [one.result() for one in work]
    print(f"{SCOPES * ROUNDS} revisions applied in {time.monotonic() - began:.1f} s")
    for scope, versions in zip(scopes, seen, strict=True):
        scope.current()
        once(scene.history, scope)
        assert versions == sorted(versions), "a status went back"
    for flow, scope in zip(flows, scopes, strict=True):
        retired(flow, scope)
    scene.end()


def _revise(scope: Scope) -> list[Version]:
    """Revisions as fast as the API server takes them; what the status said after each."""
    seen: list[Version] = []
    for _ in range(ROUNDS):
        scope.revise()
        seen.append(scope.version)
    return seen


def _wait_until(work: list, scopes: list[Scope], epoch: int) -> None:  # type: ignore[type-arg]
    """Until every scope was revised so often."""
    limit_s = time.monotonic() + PATIENCE_S
    while any(scope.epoch < epoch for scope in scopes) and not all(one.done() for one in work):
        assert time.monotonic() < limit_s, [scope.epoch for scope in scopes]
        threading.Event().wait(0.02)

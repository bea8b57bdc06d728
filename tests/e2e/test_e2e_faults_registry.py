"""The registry killed, wiped, rolled back: no acknowledged COMMIT is lost, nothing goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from e2e_faults_scene import PATIENCE_S, Scene, Scope, Witness, own_version, pod, retired

from e2e.deployment import NODES, REGISTRY
from e2e.waiting import wait_for
from retire.protocol.history import RegistryRebuilt
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from e2e.deployment import Deployment

SERVER: Final = "registry"
WIPE: Final = "rm -rf /data/*"
COPY: Final = "cp -a /data/appendonlydir /data/copy"
ROLL_BACK: Final = "rm -rf /data/appendonlydir && mv /data/copy /data/appendonlydir"


def shell(scene: Scene, script: str) -> None:
    """Run in the registry's container."""
    status, output = scene.harness.exec(pod(REGISTRY), SERVER, "sh", "-ec", script)
    assert status == 0, output


def kill(scene: Scene) -> None:
    """The server; its container starts again on the same volume."""
    scene.harness.kill(pod(REGISTRY), SERVER)


def risen(scene: Scene, term: int) -> None:
    """Until the Lease counts another term; one that is only one higher."""
    now = wait_for("a higher term", lambda: scene.term > term and scene.term, PATIENCE_S)
    assert now == term + 1


def test_killed(deployment: Deployment, tenant: str) -> None:
    """Every acknowledged COMMIT is there afterwards, streams go on, the term stays."""
    scene = Scene(deployment, tenant)
    kept, revised = scene.scope("kept"), scene.scope("revised")
    flow, old = kept.stream(NODES[0]), revised.stream(NODES[1])
    term = scene.term
    kept_version = kept.version
    for _ in range(3):
        revised.revise()
    revised.current()
    kill(scene)
    revised.revise()
    revised.current()
    retired(old, revised)
    assert (kept.version, revised.version) == (kept_version, Version(term, 4))
    read = flow.tokens
    flow.until(lambda one: one.tokens > read or one.done, PATIENCE_S)
    own_version(flow, kept_version)
    assert scene.term == term
    scene.end()


def test_wiped(deployment: Deployment, tenant: str) -> None:
    """An empty registry is written anew under the next term, from what everybody else knows."""
    scene = Scene(deployment, tenant)
    scopes = [scene.scope(f"plan-{n}") for n in range(3)]
    for _ in range(2):
        scopes[0].revise()
    scopes[0].current()
    term = scene.term
    flows = [scope.stream(NODES[n % 2]) for n, scope in enumerate(scopes)]
    witness = Witness(scene)
    shell(scene, WIPE)
    kill(scene)
    scopes[1].revise()  # of a registry that is lost: it waits for the next one
    risen(scene, term)
    assert scopes[1].current()["version"] == f"{term + 1}.1"
    nothing_went_back(scopes, term + 1)
    for flow, scope in zip(flows, scopes, strict=True):
        retired(flow, scope)
    scene.end()
    assert witness.synced() == {"False", "True"}
    for scope in scopes:
        told = witness.versions(scope)
        assert told == sorted(told)
        assert told[-1].term == term + 1
    assert scene.term == term + 1


def test_rolled_back(deployment: Deployment, tenant: str) -> None:
    """A failover to a replica that missed the last COMMITs: they were acknowledged, so they
    stand."""
    scene = Scene(deployment, tenant)
    scopes = [scene.scope(f"plan-{n}") for n in range(2)]
    term = scene.term
    shell(scene, COPY)
    for _ in range(3):
        scopes[0].revise()
    scopes[0].current()
    flow = scopes[0].stream(NODES[1])
    shell(scene, ROLL_BACK)
    kill(scene)
    risen(scene, term)
    nothing_went_back(scopes, term + 1)
    retired(flow, scopes[0])
    scopes[0].revise()
    assert scopes[0].current()["version"] == f"{term + 1}.4"
    scene.end()
    assert scene.term == term + 1


def nothing_went_back(scopes: list[Scope], term: int) -> None:
    """Each scope stands at its epoch under the new term, which was written once."""
    for scope in scopes:
        wait_for(f"{scope.key} under term {term}", lambda s=scope: s.version.term == term)
        assert scope.version == Version(term, scope.epoch)
    scene = scopes[0].scene
    rebuilt = [one for one in scene.history.of(RegistryRebuilt) if one.tenant == scene.tenant]
    assert [one.term for one in rebuilt] == [term]

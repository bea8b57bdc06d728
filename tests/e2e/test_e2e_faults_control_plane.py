"""The API server and etcd go away during revisions: none is lost, and streams do not notice."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from e2e_faults_scene import PATIENCE_S, Scene, once, own_version, retired

from bench.stack_streams import Agent
from e2e.deployment import NODES
from e2e.waiting import wait_for
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from e2e.deployment import Deployment

SCOPES: Final = 5


def test_api_server_restarted(deployment: Deployment, tenant: str) -> None:
    """Revisions that it took just before it died are made; one of a runtime needs no API server,
    and is told by the status afterwards."""
    scene = Scene(deployment, tenant)
    scopes = [scene.scope(f"plan-{n}") for n in range(SCOPES)]
    kept, called, *revised = scopes
    flow, old = kept.stream(NODES[0]), called.stream(NODES[1])
    version = called.version
    for scope in revised:
        scope.revise()
    deployment.cluster.api_server.stop(signal.SIGKILL)
    try:
        read = flow.tokens
        agent = Agent(deployment.api(NODES[0]), called.name, tenant)  # type: ignore[arg-type]
        agent.supersede(str(version))
        called.epoch += 1
        retired(old, called)
        flow.until(lambda one: one.tokens > read or one.done, PATIENCE_S)
    finally:
        deployment.cluster.start_api_server()
    for scope in revised:
        scope.current()
        once(scene.history, scope)
    wait_for("the runtime's version", lambda: called.version == version.next_epoch(), PATIENCE_S)
    assert called.status["receipts"][0]["by"] == "runtime"
    own_version(flow, kept.version)
    scene.end()


def test_etcd_restarted(deployment: Deployment, tenant: str) -> None:
    """The same when only its store is gone for a while."""
    scene = Scene(deployment, tenant)
    scopes = [scene.scope(f"plan-{n}") for n in range(SCOPES)]
    kept, *revised = scopes
    flow = kept.stream(NODES[1])
    for scope in revised:
        scope.revise()
    deployment.cluster.etcd.stop(signal.SIGKILL)
    try:
        read = flow.tokens
        flow.until(lambda one: one.tokens > read or one.done, PATIENCE_S)
    finally:
        deployment.cluster.etcd.start()
        deployment.cluster.start_api_server()
    for scope in revised:
        scope.revise()
    for scope in revised:
        assert scope.current()["version"] == str(Version(kept.version.term, 2))
        once(scene.history, scope)
    own_version(flow, kept.version)
    scene.end()

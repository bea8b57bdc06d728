"""The operator process on a real API server, a real Valkey and real sidecars over mutual TLS."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

import httpx
import pytest
from sidecar_world import Story

from e2e.installation import Lab, condition, stop
from e2e.processes import free_port
from retire.protocol.versions import ScopeKey, Version
from retire.registry.client import AsyncRegistry

pytestmark = pytest.mark.timeout(300)


def kinds(body: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(r["kind"], r["toVersion"], r["by"]) for r in body["status"].get("receipts", ())]


async def started(lab: Lab, **more: str) -> Any:
    """An operator and one node, in the order in which an empty registry needs them."""
    operator = lab.operator(**more)
    await lab.node()
    return operator


async def superseded_events(lab: Lab, until: str) -> list[str]:
    """The versions that Events tell of; they are written after the status."""
    async with asyncio.timeout(30):
        while True:
            told = [e["message"] for e in lab.events("plan") if e["reason"] == "Superseded"]
            versions = [re.findall(r"-> ([\d.]+\d)", text)[0] for text in told]
            if until in versions:
                return versions
            await asyncio.sleep(0.1)


async def test_create_revise_burst_and_what_a_runtime_does(lab: Lab) -> None:
    """A new scope opens at spec.epoch; a revision is one SUPERSEDE on the sidecar; a burst commits
    every epoch; an agent's SUPERSEDE is mirrored; a revision that a runtime overtook says what to
    set; unchanged objects are not written."""
    await started(lab)
    key = ScopeKey(lab.namespace, "plan")
    lab.apply("plan")
    made = await lab.until_ready("plan", "1.0")
    assert made["metadata"]["finalizers"] == ["serving.retire.dev/retire"]
    assert made["status"]["observedGeneration"] == made["metadata"]["generation"]

    lab.apply("plan", epoch=1)
    revised = await lab.until_ready("plan", "1.1")
    assert kinds(revised) == [("supersede", "1.1", "revision")]
    assert revised["status"]["traceId"] == revised["status"]["receipts"][0]["traceId"]
    assert revised["status"]["receipts"][0]["unpublishableMs"] > 0
    assert [row["node"] for row in revised["status"]["participants"]] == ["node-0"]
    engine = lab.nodes["node-0"].engine
    assert [switch.to.epoch for switch in engine.switches] == [1]

    for epoch in range(2, 9):
        lab.apply("plan", epoch=epoch)
    burst = await lab.until_ready("plan", "1.8")
    assert [entry[:2] for entry in kinds(burst)] == [
        ("supersede", f"1.{n}") for n in range(8, 0, -1)
    ]
    assert [switch.to.epoch for switch in engine.switches] == list(range(1, 9))

    async with lab.nodes["node-0"].sidecar.client() as client:
        story = Story(client, key)
        await story.supersede(Version(1, 8))
    mirrored = await lab.until_ready("plan", "1.9")
    await lab.until("plan", lambda s: s["receipts"][0].get("fenceMs") is not None)
    assert kinds(mirrored)[0] == ("supersede", "1.9", "runtime")
    assert "set 10 for the next revision" in condition(mirrored["status"], "Ready")[2]

    lab.apply("plan", epoch=9)  # what the runtime did already: nothing to do
    same = await lab.until(
        "plan", lambda s: s["observedGeneration"] > mirrored["status"]["observedGeneration"]
    )
    assert same["status"]["version"] == "1.9"
    quiet = await asyncio.to_thread(lab.get, "plan")
    await asyncio.sleep(12)  # two resyncs
    later = await asyncio.to_thread(lab.get, "plan")
    assert quiet and later
    assert later["metadata"]["resourceVersion"] == quiet["metadata"]["resourceVersion"]


async def test_pause_cancel_and_delete(lab: Lab) -> None:
    """Pause keeps the version; cancel is terminal; delete cancels and lets the object go; with the
    nodes gone it goes within the bound, with a warning."""
    await started(lab)
    for name in ("a", "b", "c"):
        lab.apply(name)
    for name in ("a", "b", "c"):
        await lab.until_ready(name, "1.0")
    lab.apply("a", paused=True)
    paused = await lab.until("a", lambda s: s["phase"] == "Paused")
    assert paused["status"]["version"] == "1.0"
    lab.apply("a", paused=False)
    await lab.until("a", lambda s: s["phase"] == "Active")

    lab.apply("b", cancelled=True)
    cancelled = await lab.until("b", lambda s: s["phase"] == "Cancelled")
    assert kinds(cancelled)[0] == ("cancel", "1.1", "revision")
    lab.delete("b")
    await lab.until_gone("b")

    lab.delete("a")
    await lab.until_gone("a")
    async with lab.nodes["node-0"].sidecar.client() as client:
        view = await client.inspect(ScopeKey(lab.namespace, "a"))
    assert view.cancelled

    lab.set_ready("node-0", ready=False)
    await lab.until_reason("c", "NoReadyNode")
    lab.delete("c")
    assert await lab.until_gone("c") >= 2.0
    warnings = [e for e in lab.events("c") if e["reason"] == "DeletedUnfinished"]
    assert warnings and warnings[0]["type"] == "Warning"


async def test_what_is_mended_recovers_by_itself(lab: Lab) -> None:
    """Unknown pool, tenant not allowed, missing parent, missing ConfigMap and key: each shows a
    reason and goes on once it is mended."""
    await started(lab)
    cluster, ns = lab.cluster, lab.namespace
    lab.apply("pooled", poolRef={"name": "big"})
    lab.apply("foreign", tenant="globex")
    lab.apply("child", parentRef={"name": "root"})
    lab.apply("warm", context={"configMapRef": {"name": "c", "key": "k"}})
    await lab.until_reason("pooled", "UnknownPool")
    blocked = await lab.until_reason("foreign", "TenantNotAllowed")
    assert "version" not in blocked["status"]
    await lab.until_reason("child", "ParentMissing")
    await lab.until_reason("warm", "ConfigMapMissing", "SuccessorAdmitted")

    maps = f"/api/v1/namespaces/{ns}/configmaps"
    cluster.api.create(maps, {"metadata": {"name": "c"}, "data": {"other": "x"}})
    await lab.until_reason("warm", "KeyMissing", "SuccessorAdmitted")
    cluster.api.merge(f"{maps}/c", {"data": {"k": '{"messages": [}'}})
    await lab.until_reason("warm", "ContextInvalid", "SuccessorAdmitted")
    cluster.api.merge(f"{maps}/c", {"data": {"k": "You are a planner."}})
    warmed = await lab.until_reason("warm", "Warmed", "SuccessorAdmitted")
    assert warmed["status"]["prewarm"]["cachedTokens"] == 32
    assert lab.nodes["node-0"].engine.warmed[0].version.epoch == 0

    lab.apply("root")
    await lab.until_ready("child", "1.0")
    tenants = {"metadata": {"annotations": {"serving.retire.dev/tenants": "x, globex"}}}
    cluster.api.merge(f"/api/v1/namespaces/{ns}", tenants)
    await lab.until_ready("foreign", "1.0")
    await lab.node("node-1", pool="big")
    await lab.until_ready("pooled", "1.0")

    lab.apply("root", epoch=1)  # the subtree moves in the same commit
    await lab.until_ready("root", "1.1")
    await lab.until_ready("child", "1.1")


async def test_quota_exceeded_by_the_younger_until_the_older_goes(lab: Lab) -> None:
    """Oldest first, as with a ResourceQuota."""
    quota = {"metadata": {"annotations": {"serving.retire.dev/pin-quota-blocks": "100"}}}
    lab.cluster.api.merge(f"/api/v1/namespaces/{lab.namespace}", quota)
    await started(lab)
    lab.apply("old", quota={"pinnedBlocks": 80})
    await lab.until_reason("old", "Granted", "QuotaAvailable")
    await asyncio.sleep(1.1)  # creation times are whole seconds
    lab.apply("young", quota={"pinnedBlocks": 60})
    over = await lab.until_reason("young", "QuotaExceeded", "QuotaAvailable")
    assert over["status"]["phase"] == "Degraded"
    lab.delete("old")
    await lab.until_reason("young", "Granted", "QuotaAvailable")


async def test_a_namespaces_quota_holds_though_no_scope_asks_for_a_share(lab: Lab) -> None:
    """The registry is told the annotation, and a later change of it."""
    path = f"/api/v1/namespaces/{lab.namespace}"
    await started(lab)
    lab.apply("plan")
    await lab.until_ready("plan", "1.0")
    registry = AsyncRegistry(lab.registry.url)
    for blocks in (7, 9):
        annotations = {"serving.retire.dev/pin-quota-blocks": str(blocks)}
        lab.cluster.api.merge(path, {"metadata": {"annotations": annotations}})
        async with asyncio.timeout(60):
            while (await registry.snapshot(lab.namespace)).quota_blocks != blocks:
                await asyncio.sleep(0.1)
    await registry.close()


async def test_two_operators_and_one_that_is_killed(lab: Lab) -> None:
    """Two act at once: each epoch is committed once. One is killed amid a burst: the other ends it.
    Both are killed: the next one finds its own transitions in the nodes' streams."""
    first = await started(lab)
    second = lab.operator()
    lab.apply("plan")
    await lab.until_ready("plan", "1.0")
    for epoch in range(1, 5):
        lab.apply("plan", epoch=epoch)
    await lab.until_ready("plan", "1.4")
    lab.apply("plan", epoch=5)
    first.send_signal(signal.SIGKILL)
    for epoch in range(6, 9):
        lab.apply("plan", epoch=epoch)
    await lab.until_ready("plan", "1.8")
    engine = lab.nodes["node-0"].engine
    assert [switch.to.epoch for switch in engine.switches] == list(range(1, 9))

    second.send_signal(signal.SIGKILL)
    lab.apply("plan", epoch=9)
    third = lab.operator()
    done = await lab.until_ready("plan", "1.9")
    assert {entry[2] for entry in kinds(done)} == {"revision"}
    told = await superseded_events(lab, until="1.9")
    assert len(told) == len(set(told)), "a transition is told once"
    assert set(told) >= {f"1.{n}" for n in (1, 2, 3, 9)}, "an event dies only with its operator"
    assert await asyncio.to_thread(stop, third) == 0


async def test_another_node_takes_over_a_call(lab: Lab) -> None:
    """The node that holds the scope does not answer: the same key goes to the next one."""
    await started(lab, RETIRE_CALL_TIMEOUT_S="1")
    lab.apply("plan")
    await lab.until_ready("plan", "1.0")
    lab.apply("plan", epoch=1)
    await lab.until_ready("plan", "1.1")
    await lab.node("node-1")
    lab.nodes["node-0"].sidecar.send(signal.SIGSTOP)
    lab.apply("plan", epoch=2)
    done = await lab.until_ready("plan", "1.2")
    receipt = done["status"]["receipts"][0]
    assert receipt["gatesLeaseEnded"] >= 1, "the silent node's lease ended before UNPUBLISHABLE"
    lab.nodes["node-0"].sidecar.send(signal.SIGCONT)


async def test_a_name_that_is_taken_and_two_tenants_that_are_not(lab: Lab) -> None:
    """Negative control of adoption: a second object of the same tenant and name waits, and its
    deletion does not end the scope of the first."""
    other = lab.cluster.create_namespace(f"{lab.namespace}-b")
    annotation = {"metadata": {"annotations": {"serving.retire.dev/tenants": lab.namespace}}}
    lab.cluster.api.merge(f"/api/v1/namespaces/{other}", annotation)
    await started(lab, RETIRE_WATCH_NAMESPACES=f"{lab.namespace},{other}")
    lab.apply("plan")
    await lab.until_ready("plan", "1.0")
    await asyncio.sleep(1.1)  # creation times are whole seconds
    second = Lab(lab.cluster, other)
    second.apply("plan", tenant=lab.namespace, epoch=5)
    blocked = await second.until_reason("plan", "NameTaken")
    assert "version" not in blocked["status"]
    second.delete("plan")
    await second.until_gone("plan")
    lab.apply("plan", epoch=1)
    await lab.until_ready("plan", "1.1")
    lab.cluster.api.delete(f"/api/v1/namespaces/{other}")


async def test_the_registry_is_wiped_and_nothing_goes_back(lab: Lab) -> None:
    """Term + 1, the same epochs, revisions go on; a scope is never opened anew at spec.epoch."""
    await started(lab)
    lab.apply("plan", epoch=2)
    await lab.until_ready("plan", "1.2")
    async with lab.nodes["node-0"].sidecar.client() as client:
        await Story(client, ScopeKey(lab.namespace, "plan")).supersede(Version(1, 2))
    await lab.until_ready("plan", "1.3")
    await lab.wipe()
    rebuilt = await lab.until_ready("plan", "2.3")
    assert condition(rebuilt["status"], "RegistrySynced")[0] == "True"
    lab.apply("plan", epoch=4)
    await lab.until_ready("plan", "2.4")


async def test_a_node_whose_memory_is_gone_is_another_boot(lab: Lab) -> None:
    """Its participant is shown under the new boot id, and takes the next revision."""
    await started(lab)
    lab.apply("plan", epoch=1)
    await lab.until_ready("plan", "1.1")
    lab.apply("plan", epoch=2)
    before = await lab.until("plan", lambda s: s["version"] == "1.2" and s["participants"])
    node = lab.nodes["node-0"]
    node.sidecar.kill()
    node.sidecar.mailbox.unlink()
    node.sidecar.start()
    await node.sidecar.until(lambda status: status.ready)
    lab.apply("plan", epoch=3)
    await lab.until_ready("plan", "1.3")
    old = before["status"]["participants"][0]["bootId"]
    await lab.until("plan", lambda s: s["participants"] and s["participants"][0]["bootId"] != old)


async def test_the_api_server_restarts_and_the_operator_goes_on(lab: Lab) -> None:
    """Its watches end and begin again; what was applied meanwhile is done."""
    from e2e.cluster import Cluster

    operator = await started(lab)
    lab.apply("plan")
    await lab.until_ready("plan", "1.0")
    if not isinstance(lab.cluster, Cluster):
        pytest.fail("E2E_KUBECONFIG names a cluster whose API server cannot be restarted here")
    await asyncio.to_thread(lab.cluster.api_server.stop)
    await asyncio.to_thread(lab.cluster.start_api_server)
    lab.apply("plan", epoch=1)
    await lab.until_ready("plan", "1.1")
    assert operator.poll() is None, "the operator ended"
    lab.apply("plan", epoch=2)
    await lab.until_ready("plan", "1.2")


async def test_the_operator_says_that_it_lives(lab: Lab) -> None:
    """/healthz answers with what it watches; SIGTERM ends it cleanly."""
    operator = lab.operator(RETIRE_HTTP_LISTEN=f"127.0.0.1:{(port := free_port())}")
    await lab.node()
    lab.apply("plan")
    await lab.until_ready("plan", "1.0")
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://127.0.0.1:{port}/healthz")
    assert answer.status_code == 200
    assert answer.json()["operator"] == {"scopes": 1, "nodes": 1, "ready": 1}
    assert await asyncio.to_thread(stop, operator) == 0

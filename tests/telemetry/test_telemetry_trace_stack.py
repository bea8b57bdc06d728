"""One trace a transition, over a real OTLP path: SDK, collector, Jaeger; read over Jaeger's API."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from telemetry_story import PLAN, Story, traceparent

from bench.stack_streams import Agent
from bench.trace_tree import HOPS, OPERATOR_HOPS, Hop, Told, missing
from retire.cli.stack.layout import layout_of
from retire.protocol.contract import Contract
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.client import NodeClient
from retire.telemetry import names
from retire.telemetry.tracing import Tracer
from retire_operator import actions as do
from retire_operator.apply import Executor, Targets
from retire_operator.events import Recorder
from retire_operator.facts import Facts, RegistryView, Seen, Unknown
from retire_operator.mirror import Mirror
from retire_operator.nodes import SidecarPool
from retire_operator.pods import Pod
from retire_operator.resource import Desired, Ref

if TYPE_CHECKING:
    from bench.observatory import Observatory
    from bench.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]  # the first one starts the stack


def one(story: Story, name: str) -> Told:
    (span,) = story.trace.named(name)
    return span


def test_every_hop_is_in_one_trace(story: Story) -> None:
    """Client, API server, sidecar, registry and engine, each below the one that called it."""
    assert missing(story.trace) == [], [(d, s.service, s.name) for d, s in story.trace.lines()]
    assert {span.trace_id for span in story.trace.spans.values()} == {story.receipt["trace_id"]}
    (root,) = story.trace.children(None)
    assert (root.service, root.name) == (names.SERVICE_CLIENT, "retire.client supersede")


@pytest.mark.parametrize("hop", HOPS, ids=lambda hop: hop.name)
def test_a_missing_hop_makes_the_walk_fail(story: Story, hop: Hop) -> None:
    """NEGATIVE CONTROL: the same trace as if a span had never come."""
    cut = story.trace.without(lambda span: (span.name, span.service) == (hop.name, hop.service))
    assert f"no {hop.name} of {hop.service}" in missing(cut)


def test_a_caller_that_hands_nothing_on_is_a_missing_hop(
    stack: Stack, observatory: Observatory
) -> None:
    """NEGATIVE CONTROL: a SUPERSEDE over plain HTTP has a trace, but not its client's."""
    agent = Agent.new(stack, "plain")
    old = agent.stream(PLAN, max_tokens=2000).tokens_at_least(8)
    receipt = agent.supersede(agent.version, PLAN, max_tokens=2)["receipt"]
    old.ended()
    trace = observatory.until(receipt["trace_id"], lambda t: len(missing(t)) <= 2)
    client = "retire.client supersede"
    assert missing(trace) == [
        f"no {client} of {names.SERVICE_CLIENT}", f"servingscope.supersede is not below {client}"
    ]  # fmt: skip


def test_spans_say_what_the_receipt_says(story: Story) -> None:
    """Versions, gates with their latencies, tokens, pins: two tellings of one transition."""
    receipt, whole = story.receipt, one(story, "node.supersede")
    assert whole.tags[names.A_FROM.name] == receipt["from_version"]
    assert whole.tags[names.A_TO.name] == receipt["to_version"]
    commit, propagate = one(story, "fence.commit"), one(story, "fence.propagate")
    assert commit.tags["db.system.name"] == "redis" and commit.tags["fence.outcome"] == "committed"
    acks = [event for event in propagate.events if event["event"] == "gate.ack"]
    assert [(a["gate.name"], a["gate.outcome"]) for a in acks] == [
        (gate["gate"], gate["outcome"]) for gate in receipt["gates"]
    ]
    assert propagate.duration_us / 1e3 == pytest.approx(
        receipt["stages_ms"]["unpublishable"] - receipt["stages_ms"]["commit"], abs=5.0
    )
    certify = one(story, "kv.certify")
    assert certify.tags["kv.certified_tokens"] == receipt["certified_tokens"] > 0
    assert certify.tags["kv.stop_reason"] == receipt["stop_reason"]
    assert one(story, "engine.quiesce").tags["engine.requests"] == len(receipt["requests"])


def test_the_successor_is_linked_and_says_what_it_inherited(stack: Stack, story: Story) -> None:
    """``successor.admit`` links to an inference span, which follows the GenAI conventions."""
    inference = one(story, f"text_completion {stack.model}")
    admit = one(story, "successor.admit")
    assert (inference.trace_id, inference.id) in admit.links
    said = inference.tags
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.request.model"] == stack.model
    assert said["gen_ai.usage.input_tokens"] == len(PLAN)
    assert said["gen_ai.usage.output_tokens"] == 6
    assert said["gen_ai.usage.cache_read.input_tokens"] == story.receipt["certified_tokens"]
    assert said["servingscope.version"] == story.receipt["to_version"] and "error.type" not in said


def test_the_old_inference_ends_at_the_fence(
    stack: Stack, story: Story, observatory: Observatory
) -> None:
    """In its own caller's trace: ``error.type`` superseded, aborted, with what was delivered."""
    trace = observatory.until(story.caller, len)
    (old,) = trace.named(f"text_completion {stack.model}")
    assert old.tags["error.type"] == "superseded" and "abort" in old.tags[names.A_FINISH.name]
    (request,) = story.receipt["requests"]
    assert old.tags[names.A_LAST.name] == request["last_published_index"]
    assert old.end_us <= one(story, "servingscope.supersede").end_us


def test_reclaim_is_a_root_that_links_back(story: Story, observatory: Observatory) -> None:
    """It outlives the call, so it is no child of it."""
    trace_id, deadline_s = story.receipt["trace_id"], time.monotonic() + 60
    while not (found := observatory.linked(names.SERVICE_SIDECAR, "reclaim", trace_id)):
        assert time.monotonic() < deadline_s, "no reclaim is linked to the transition"
        time.sleep(0.3)
    (reclaim,) = found.spans.values()
    assert reclaim.parent is None and reclaim.trace_id != trace_id
    assert (trace_id, one(story, "node.supersede").id) in reclaim.links


def test_a_trace_that_is_not_sampled_leaves_nothing(stack: Stack, observatory: Observatory) -> None:
    """The caller's decision holds in every process; the receipt names the trace all the same."""
    agent, context = Agent.new(stack, "unsampled"), traceparent(sampled=False)
    unsampled = context.split("-")[1]
    agent.opened()
    body = {"expected_version": agent.version, "stream": False, "request": stack.body(PLAN)}
    answer = agent.post("supersede", body, {"traceparent": context})
    assert answer.json()["receipt"]["trace_id"] == unsampled
    later = agent.supersede(agent.version, PLAN, max_tokens=1)["receipt"]["trace_id"]
    services = {names.SERVICE_API, names.SERVICE_SIDECAR, names.SERVICE_ENGINE}
    trace = observatory.until(later, lambda t: {s.service for s in t.spans.values()} == services)
    assert {span.service for span in trace.spans.values()} == services  # each has exported since
    assert not observatory.trace(unsampled)


async def test_a_revision_of_an_object_is_traced_through_the_operator(
    stack: Stack, observatory: Observatory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's own executor and pool, on the stack's sidecar, below the annotation."""
    agent = Agent.new(stack, "revised")
    old = agent.stream(PLAN, max_tokens=2000).tokens_at_least(8)
    before = Version.parse(agent.version)
    for name, value in observatory.env.items():
        monkeypatch.setenv(name, value)
    annotation = traceparent()
    await revise(stack, agent, before, annotation)
    old.ended()
    trace = await asyncio.to_thread(
        observatory.until, annotation.split("-")[1], lambda t: not missing(t, OPERATOR_HOPS)
    )
    assert missing(trace, OPERATOR_HOPS) == []
    (driven,) = trace.named("servingscope.supersede")
    assert (
        driven.tags[names.A_OBJECT.name] == agent.scope and driven.service == names.SERVICE_OPERATOR
    )
    without = trace.without(lambda span: span.service == names.SERVICE_OPERATOR)
    assert missing(without, OPERATOR_HOPS)  # NEGATIVE CONTROL


async def revise(stack: Stack, agent: Agent, before: Version, annotation: str) -> None:
    """What a reconcile does once it has decided on a SUPERSEDE."""
    socket = layout_of(Path(stack.dir / "state"), os.environ).sidecar_socket
    pool = SidecarPool(
        lambda _: NodeClient(f"unix:{socket}"),
        on_record=lambda _: None,
        on_change=lambda _: None,
        call_timeout_s=60.0,
    )
    pool.observe([Pod("node-0", "pod-uid", "default", "local:1", ready=True)])
    unused: Any = None  # not reached by a SUPERSEDE
    targets = Targets(
        writes=unused,
        registry=unused,
        pool=pool,
        guard=unused,
        store=unused,
        mirror=Mirror(),
        recorder=Recorder(unused, wall_s=time.time),
    )
    tracer = Tracer.from_env(names.SERVICE_OPERATOR)
    desired = Desired(
        Ref("acme", agent.scope), agent.scope, 1, "2026-01-01T00:00:00Z",
        ScopeKey(agent.tenant, agent.scope), traceparent=annotation,
    )  # fmt: skip
    facts = Facts(desired, Seen(), RegistryView(before.term, synced=True), Unknown.ABSENT)
    action = do.Supersede(before, f"{agent.scope}/{before.epoch + 1}", Contract())
    try:
        await Executor(targets, wall_s=time.time, tracer=tracer).act(facts, action)
    finally:
        await pool.close()
        tracer.close()

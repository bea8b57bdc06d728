"""One stack that is unlike the default: no pin quota, a lease of a minute, two API processes.

The three do not touch each other, and a stack takes long to start.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from bench.stack import ENGINE_ARGS, Stack, StackSettings
from bench.stack_streams import COMPLETIONS, Agent, Flow, streamed
from retire.protocol.history import in_order
from retire.protocol.invariants import check
from retire.telemetry import history

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = [21] * 96
STREAMS = 8


@pytest.fixture(scope="module")
def variant() -> Iterator[Stack]:
    """See the module's docstring."""
    settings = StackSettings(
        serve_args=("--tenant-quota", "0"),
        engine_args=(*ENGINE_ARGS[:-3], "--max-num-seqs", "16", "--enforce-eager",
                     "--api-server-count", "2"),
        env={"RETIRE_LEASE_S": "60"},
    )  # fmt: skip
    with Stack(settings) as running:
        yield running


def test_with_a_quota_of_nothing_a_successor_is_cold_and_correct(variant: Stack) -> None:
    """Quota 0: the receipt says ``quota``, nothing is pinned, and the answer is a clean run's."""
    body = variant.body(PROMPT, max_tokens=6, logprobs=1)
    clean = variant.http.post(COMPLETIONS, json=body).json()["choices"][0]
    agent = Agent.new(variant, "broke")
    old = agent.stream(PROMPT, max_tokens=2000).tokens_at_least(5)
    answer = agent.supersede(agent.version, PROMPT, max_tokens=6, logprobs=1)
    receipt, found = answer["receipt"], answer["response"]["choices"][0]
    assert (receipt["certified_tokens"], receipt["stop_reason"]) == (0, "quota")
    assert receipt["inheritable_tokens"] == len(PROMPT)
    assert receipt["pin"] is None and agent.view()["pinned_blocks"] == 0
    assert found["text"] == clean["text"]
    pairs = zip(
        found["logprobs"]["token_logprobs"], clean["logprobs"]["token_logprobs"], strict=True
    )
    assert max(abs(a - b) for a, b in pairs) < 1e-4
    assert old.ended().error is not None
    retired = agent.supersede(agent.version)["receipt"]
    assert retired["pin"] is None and agent.view()["pinned_blocks"] == 0


def test_a_lease_of_a_minute_keeps_streams_through_an_outage(variant: Stack) -> None:
    """NEGATIVE CONTROL of the fault tests: it is the lease that stops scoped output, not luck."""
    agent = Agent.new(variant, "long-lease")
    scoped = agent.stream(PROMPT, max_tokens=3900).tokens_at_least(20)
    pid = variant.pids["registry"]
    os.kill(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        time.sleep(4.5)
        ended_s = time.monotonic()
    finally:
        os.kill(pid, signal.SIGCONT)
    gap_s = scoped.gaps_s(began_s, ended_s)
    print(f"longest silence {gap_s:.2f} s")
    assert gap_s < 1.5 or scoped.done
    scoped.close()


def test_a_supersede_reaches_the_streams_of_the_other_process(variant: Stack) -> None:
    """Streams of one scope in both API processes: all end with the error, none has a late token."""
    agent = Agent.new(variant, "spread")
    version = agent.opened()
    flows = [agent.stream(PROMPT, max_tokens=3000) for _ in range(STREAMS)]
    for flow in flows:
        flow.tokens_at_least(3)
    with httpx.Client(base_url=variant.url, timeout=60) as client:  # a connection of its own
        body = {"expected_version": version, "stream": False}
        answer = client.post(f"/v1/scopes/{agent.scope}/supersede", json=body)
        answered_s = time.monotonic()
    receipt = answer.json()["receipt"]
    gates = {gate["gate"]: gate["outcome"] for gate in receipt["gates"]}
    assert len(gates) == 2 and set(gates.values()) == {"acked"}, receipt["gates"]
    for flow in flows:
        flow.ended(30)
        assert flow.error is not None and flow.error["code"] == "superseded", flow
        assert flow.error["current"] == receipt["to_version"]
        assert {f.version for f in flow.frames if f.tokens} == {version}
    published = sorted(
        q["last_published_index"] for q in receipt["requests"] if q["state"] != "finished"
    )
    assert published == sorted(flow.tokens - 1 for flow in flows), "each index is what was read"
    assert max(flow.last_token_s for flow in flows) < answered_s + 1.0
    assert spread(variant, agent) == 2, "both processes served streams, or nothing was shown"


def spread(stack: Stack, agent: Agent) -> int:
    """API processes that published something of the scope."""
    records = history.read(stack.history)
    return len(
        {r.gate for r in records if type(r).__name__ == "Published" and r.key.scope == agent.scope}
    )


def test_a_version_moved_in_one_process_is_known_in_both(variant: Stack) -> None:
    """Tagged calls on many connections after a SUPERSEDE: none is served under the old version."""
    agent = Agent.new(variant, "both")
    version = agent.opened()
    for _ in range(3):
        version = agent.supersede(version)["receipt"]["to_version"]
        body, found = variant.body("x", max_tokens=1), set()
        for _ in range(STREAMS):
            with httpx.Client(base_url=variant.url, timeout=60) as client:
                answer = client.post(COMPLETIONS, json=body, headers=agent.headers)
                found.add(answer.headers["x-retire-version"])
        assert found == {version}


def test_the_history_of_two_processes_breaks_no_rule(variant: Stack) -> None:
    """Two gates, one engine: published, acknowledged and freed in an order that keeps C1 to C6."""
    flow = Flow(variant, streamed(variant.body("the end", max_tokens=2))).ended()
    assert flow.done
    violations = check(in_order(history.read(variant.history)))
    assert not violations, violations[:3]

"""Registry and sidecar killed or stopped under load: closed within the lease, back by themselves.

A killed component would be back before its lease ends, so an outage holds the supervisor (SIGSTOP)
until it is over. Everything is judged twice: by what clients saw, and by the recorded history.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from bench.stack import Stack, StackSettings
from bench.stack_streams import COMPLETIONS, Agent, Flow, streamed
from retire.protocol.history import Acknowledged, Published, in_order
from retire.protocol.invariants import check
from retire.protocol.versions import Version
from retire.telemetry import history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEASE_S = 2.0
HOLD_S = 20.0  # longer than a restart takes, also on a busy machine
WRITE_S = 0.05  # from the check of a frame to the record of its write, on a busy machine
BUSY_S = 10.0  # what a loaded machine may add to anything that ends by itself
OUTAGE_S = 4.5
PROMPT = [21] * 48


@pytest.fixture(scope="module")
def mortal() -> Iterator[Stack]:
    """A stack of this module's own; its streams hold for a while, then give up."""
    with Stack(StackSettings(env={"RETIRE_HOLD_S": f"{HOLD_S:g}"})) as running:
        yield running


@pytest.fixture
def stack(mortal: Stack) -> Stack:
    """The same, recovered from the fault before: tagged work is served."""
    agent, body = Agent.new(mortal, "calm"), mortal.body("x", max_tokens=1)
    calm = retried(lambda: mortal.http.post(COMPLETIONS, json=body, headers=agent.headers))
    assert calm.status_code == 200, calm.text
    return mortal


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT whatever happens."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def killed(stack: Stack, component: str) -> Iterator[float]:
    """kill -9, and nobody to start it again until the end; yields when it had happened."""
    with stopped(stack.pid):
        pid = stack.kill(component)
        yield time.monotonic()
    stack.wait_restarted(component, pid)


@contextlib.contextmanager
def frozen(stack: Stack, component: str) -> Iterator[float]:
    """SIGSTOP for the length of an outage; yields when it had happened."""
    with stopped(stack.pids[component]):
        yield time.monotonic()


OUTAGES = {
    "registry killed": (killed, "registry"),
    "registry stopped": (frozen, "registry"),
    "sidecar killed": (killed, "sidecar"),
    "sidecar stopped": (frozen, "sidecar"),
}


def plain_flow(stack: Stack) -> Flow:
    """Unscoped work: no header of ours."""
    return Flow(stack, streamed(stack.body(PROMPT, max_tokens=4000)))


def retried(call: Callable[[], httpx.Response], timeout_s: float = 30.0) -> httpx.Response:
    """A call until it is no longer answered 503."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = call()
        if answer.status_code != 503 or time.monotonic() >= deadline_s:
            return answer
        assert answer.headers["retry-after"] == "1", answer.text
        time.sleep(0.2)


@pytest.mark.parametrize("what", OUTAGES)
def test_scoped_output_stops_within_the_lease_and_comes_back(stack: Stack, what: str) -> None:
    """During an outage: silence after the lease, unscoped work flows, a SUPERSEDE is a 503 that
    commits once; after it: the same stream goes on, and no version has gone back."""
    outage, component = OUTAGES[what]
    agent, owner = Agent.new(stack, component), Agent.new(stack, f"owner-{component}")
    scoped, plain, idle = agent.stream(PROMPT, max_tokens=4000), plain_flow(stack), owner.opened()
    for flow in (scoped, plain):
        flow.tokens_at_least(20)
    version = agent.version
    with outage(stack, component) as began_s:
        answers = during(owner, idle, began_s)
        ended_s = time.monotonic()
    written_s, written = last_published(agent, began_s, ended_s)
    read = sum(f.tokens for f in tuple(scoped.frames) if f.at_s <= ended_s)
    later = sum(f.tokens for f in tuple(plain.frames) if began_s + LEASE_S <= f.at_s <= ended_s)
    gap_s = plain.gaps_s(began_s, ended_s)
    print(f"{what}: last scoped token written after {written_s:.2f} s; then {later} unscoped ones")
    print(f"{what}: {read} of {written} tokens read; longest gap of the unscoped {gap_s:.2f} s")
    assert written_s <= LEASE_S + WRITE_S
    assert read <= written, "what a client saw in the outage was written within the lease"
    assert later > 20 or plain.done
    assert all(a.status_code == 503 for a in answers), [a.text for a in answers]
    scoped.tokens_at_least(scoped.tokens + 1, HOLD_S + 30)
    assert scoped.error is None
    assert {f.version for f in scoped.frames if f.tokens} == {version}
    supersede_once(owner, idle)
    supersede_once(agent, version)
    scoped.ended(30)
    assert scoped.error is not None and scoped.error["code"] == "superseded"
    plain.close()


def during(owner: Agent, version: str, began_s: float) -> list[httpx.Response]:
    """What the owner of a scope is told while the registry or the sidecar is away."""
    answers: list[httpx.Response] = []
    path, body = f"/v1/scopes/{owner.scope}/supersede", {"expected_version": version}
    key = {"idempotency-key": key_of(owner)}
    while time.monotonic() < began_s + OUTAGE_S - 1.0:
        with contextlib.suppress(httpx.TimeoutException):  # no answer is no promise either
            answers.append(owner.stack.http.post(path, json=body, headers=key, timeout=1.0))
        time.sleep(0.2)
    time.sleep(max(0.0, began_s + OUTAGE_S - time.monotonic()))
    return answers


def key_of(agent: Agent) -> str:
    """One SUPERSEDE of the scope, however often it is sent."""
    return f"only-{agent.scope}"


def last_published(agent: Agent, began_s: float, until_s: float) -> tuple[float, int]:
    """The scope's last token before ``until_s``: seconds after the fault, and how many there were.

    By the server's own record of its writes; both clocks are CLOCK_MONOTONIC of this host, and a
    reader on a busy machine would only add its own delay.
    """
    with agent.stack.history.open() as lines:  # by text first: there are very many records
        mine = [json.loads(line) for line in lines if agent.scope in line and "Published" in line]
    written = [f for f in mine if f["record"] == "Published" and f["at_ns"] <= until_s * 1e9]
    return written[-1]["at_ns"] / 1e9 - began_s, written[-1]["index"] + 1


def supersede_once(agent: Agent, version: str) -> None:
    """SUPERSEDE, under the key that it may have been refused with before: exactly one commit."""
    body, key = {"expected_version": version}, {"idempotency-key": key_of(agent)}
    answer = retried(lambda: agent.post("supersede", body, key))
    assert answer.status_code == 200, answer.text
    receipt = answer.json()["receipt"]
    assert receipt["from_version"] == version
    assert receipt["to_version"] == str(Version.parse(version).next_epoch()) == agent.version
    again = agent.stack.complete(PROMPT, agent.headers, max_tokens=2)
    assert again["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("component", ["registry", "sidecar"])
def test_a_killed_component_is_started_again(stack: Stack, component: str) -> None:
    """kill -9 with nobody in the way: it is back, a stream survives, versions go on from before."""
    agent = Agent.new(stack, f"again-{component}")
    agent.supersede(agent.opened())
    scoped = agent.stream(PROMPT, max_tokens=4000).tokens_at_least(5)
    version = agent.version
    stack.wait_restarted(component, stack.kill(component))
    view = retried(lambda: stack.http.get(f"/v1/scopes/{agent.scope}")).json()
    scoped.tokens_at_least(scoped.tokens + 20, HOLD_S + 30)
    assert scoped.error is None and view["version"] == version
    supersede_once(agent, version)
    assert scoped.ended(30).error is not None


def test_a_stream_gives_up_when_the_lease_stays_away(stack: Stack) -> None:
    """After RETIRE_HOLD_S it ends with ``lease_expired``; unscoped work never notices."""
    agent = Agent.new(stack, "hold")
    scoped = agent.stream(PROMPT, max_tokens=4000).tokens_at_least(5)
    version = agent.version
    with frozen(stack, "registry") as began_s:
        plain = plain_flow(stack)
        scoped.ended(LEASE_S + HOLD_S + 2 * BUSY_S)
        took_s = time.monotonic() - began_s
        assert plain.tokens > 50 and plain.error is None
        refused = stack.http.post(
            COMPLETIONS, json=stack.body("x", max_tokens=1), headers=agent.headers
        )
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    error = scoped.error
    assert error is not None and not scoped.done
    assert (error["code"], error["type"], error["retry_after_s"]) == (
        "lease_expired",
        "unavailable",
        1,
    )
    assert (error["version"], error["last_published_index"]) == (version, scoped.tokens - 1)
    assert HOLD_S <= took_s <= LEASE_S + HOLD_S + BUSY_S
    tagged = retried(
        lambda: stack.http.post(
            COMPLETIONS, json=stack.body("x", max_tokens=1), headers=agent.headers
        )
    )
    assert tagged.status_code == 200 and tagged.headers["x-retire-version"] == version
    plain.close()


def test_a_frozen_sidecar_is_a_503_and_not_a_hang(stack: Stack) -> None:
    """Every verb answers within its limit and says what to do; the commit happens at most once."""
    agent = Agent.new(stack, "frozen")
    version = agent.opened()
    body, key = {"expected_version": version}, {"idempotency-key": key_of(agent)}
    calls = (
        lambda: stack.http.get(f"/v1/scopes/{agent.scope}"),
        lambda: agent.post("supersede", body, key),
    )
    with frozen(stack, "sidecar") as began_s, ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda call: call(), calls))
        took_s = time.monotonic() - began_s
    for answer in answers:
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        message = answer.json()["error"]["message"]
        assert message.startswith("the sidecar did not answer within 10 s; retry with the same")
    assert took_s < 10 + BUSY_S
    supersede_once(agent, version)


def test_a_registry_that_lost_everything_is_rebuilt(stack: Stack) -> None:
    """FLUSHALL: term + 1, epochs kept, what was cancelled stays so, and a lower term is refused."""
    agent, gone = Agent.new(stack, "flushed"), Agent.new(stack, "gone")
    agent.supersede(agent.opened())
    gone.post("cancel", {"expected_version": gone.opened()})
    scoped = agent.stream(PROMPT, max_tokens=4000).tokens_at_least(5)
    plain = plain_flow(stack).tokens_at_least(5)
    before = Version.parse(agent.version)
    flush(stack)
    scoped.ended(30)
    after = Version(before.term + 1, before.epoch)
    assert scoped.error is not None and scoped.error["code"] == "superseded"
    assert (scoped.error["version"], scoped.error["current"]) == (str(before), str(after))
    plain.tokens_at_least(plain.tokens + 5)
    for stated in (before, before.next_epoch()):
        tagged = agent.headers | {"x-retire-version": str(stated)}
        body = stack.body("x", max_tokens=1)
        answer = retried(lambda t=tagged, b=body: stack.http.post(COMPLETIONS, json=b, headers=t))
        assert (answer.status_code, answer.json()["error"]["current"]) == (409, str(after))
        answer = retried(lambda s=stated: agent.post("supersede", {"expected_version": str(s)}))
        assert (answer.status_code, answer.json()["error"]["current"]) == (409, str(after))
    answer = retried(lambda: agent.post("supersede", {"expected_version": str(after)}))
    assert answer.json()["receipt"]["to_version"] == str(after.next_epoch()) == agent.version
    refused = stack.http.post(COMPLETIONS, json=stack.body("x"), headers=gone.headers)
    assert refused.json()["error"]["code"] == "scope_cancelled"
    plain.close()


def flush(stack: Stack) -> None:
    """Empty the registry behind everybody's back."""
    path = stack.dir / "state" / "registry" / "registry.sock"
    with redis.Redis(unix_socket_path=str(path)) as client:
        client.flushall()


def test_the_history_of_all_this_breaks_no_rule(mortal: Stack) -> None:
    """Commits, publications, certificates, pins and blocks of every test above, judged as one."""
    records = in_order(history.read(mortal.history))
    kinds = {type(record).__name__ for record in records}
    assert {"CommitMade", "Acknowledged", "Published", "Submitted", "RegistryRebuilt"} <= kinds
    violations = check(records)
    assert not violations, f"{len(violations)} of {len(records)}: {violations[:3]}"
    late = next(r for r in records if isinstance(r, Acknowledged))
    forged = Published(records[-1].at_ns + 1, late.key, Version(0, 0), "late", "api", 0)
    found = [v.name for v in check([*records, forged])]
    assert found == ["C1.published_after_acknowledge"], "CONTROL: a late token would be seen"


def test_the_end_of_the_engine_is_the_end_of_the_stack(mortal: Stack) -> None:
    """kill -9 of EngineCore: the stack says so and ends with a status that is not zero.

    The last test of this module: nothing of its stack is left.
    """
    flows = (plain_flow(mortal), Agent.new(mortal, "doomed").stream(PROMPT, max_tokens=4000))
    for flow in flows:
        flow.tokens_at_least(2)
    mortal.kill("enginecore")
    assert mortal.wait_exit(60) != 0
    log = "\n".join(mortal.log())
    assert "engine ended with exit status" in log or "engine was ended by signal" in log
    assert "stopped everything" in log
    for flow in flows:
        flow.ended(10)
        assert flow.error is not None or not flow.done, "no stream pretends to be whole"

"""The queue, the node pool, Events, pods and the process's own edges."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from operator_world import NOW_S, desired

from retire.protocol.errors import Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.pb import node_pb2 as pb
from retire_operator import events
from retire_operator.conditions import State
from retire_operator.errors import WriteConflict
from retire_operator.events import Note, Recorder
from retire_operator.nodes import NoNode, SidecarPool
from retire_operator.pods import Pod, read
from retire_operator.receipts import Line
from retire_operator.verdicts import Phase, Verdict
from retire_operator.work import Backoff, WorkQueue

KEY = ScopeKey("acme", "plan")


async def until(holds: Callable[[], Any], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.005)


class Running:
    """A queue at work."""

    def __init__(self, handle: Any, **fields: Any) -> None:
        self.queue: WorkQueue[str] = WorkQueue(handle, **fields)

    async def __aenter__(self) -> WorkQueue[str]:
        self._task = asyncio.create_task(self.queue.run())
        return self.queue

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_key_is_handled_once_at_a_time_and_no_wish_is_lost() -> None:
    """Wishes while it is handled become one more handling; other keys go on beside it."""
    gate, began, active, most = asyncio.Event(), [], 0, 0

    async def handle(key: str) -> None:
        nonlocal active, most
        began.append(key)
        active += key == "a"
        most = max(most, active)
        if key == "a":
            await gate.wait()
            active -= 1

    async with Running(handle, workers=4) as queue:
        queue.add("a")
        await until(lambda: began)
        for _ in range(10):
            queue.add("a")
        queue.add("b")
        await until(lambda: "b" in began)
        assert began.count("a") == 1
        gate.set()
        await until(lambda: began.count("a") == 2)
        await asyncio.sleep(0.05)
    assert began.count("a") == 2 and most == 1


async def test_failures_back_off_and_a_new_wish_does_not_wait() -> None:
    """The delays double; what is asked for meanwhile is handled at once; success forgets."""
    fails, seen = 3, 0

    async def handle(key: str) -> float | None:
        nonlocal seen
        del key
        seen += 1
        if seen <= fails:
            raise Unavailable("not yet")
        return None

    async with Running(handle, workers=1, backoff=Backoff(0.01, 0.04)) as queue:
        queue.add("a")
        await until(lambda: seen == 4)
        await until(lambda: queue.failures("a") == 0)
    assert [Backoff(0.1, 1.0).after(n) for n in (1, 2, 3, 9)] == [0.1, 0.2, 0.4, 1.0]

    seen, fails = 0, 1
    async with Running(handle, workers=1, backoff=Backoff(60.0, 60.0)) as queue:
        queue.add("a")
        await until(lambda: queue.failures("a") == 1)
        queue.add("a")
        await until(lambda: seen == 2)


async def test_a_bug_in_one_key_does_not_stop_the_others() -> None:
    """It is logged, and backs off like any failure."""
    seen = []

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "bad":
            raise ZeroDivisionError

    async with Running(handle, workers=1) as queue:
        queue.add("bad")
        queue.add("good")
        await until(lambda: "good" in seen)
        assert queue.failures("bad") == 1


class Double:
    """A sidecar that does as it is told; the real one runs in the cluster's tests."""

    def __init__(self, address: str) -> None:
        self.address, self.outdated, self.closed = address, False, False
        self.fails = False
        self.asked: list[int] = []
        self.records: asyncio.Queue[pb.TransitionRecord | None] = asyncio.Queue()

    async def status(self) -> pb.StatusReply:
        return pb.StatusReply(boot_id=f"boot of {self.address}")

    async def watch(self, tenant: str = "", *, after: int = 0) -> Any:
        self.asked.append(after)
        while (record := await self.records.get()) is not None:
            yield record
        raise Unavailable("the stream broke")

    async def inspect(self, key: ScopeKey) -> str:
        if self.fails:
            raise Unavailable(f"{self.address} is away")
        return f"{self.address} {key}"

    async def close(self) -> None:
        self.closed = True


class Nodes:
    """A pool of doubles."""

    def __init__(self, *pods: Pod) -> None:
        self.clients: list[Double] = []
        self.records: list[int] = []
        self.changes: list[str] = []
        self.pool = SidecarPool(
            self._connect,  # pyright: ignore[reportArgumentType]
            on_record=lambda record: self.records.append(record.sequence),
            on_change=self.changes.append,
            call_timeout_s=0.5,
        )
        self.pool.observe(pods)

    def _connect(self, address: str) -> Double:
        self.clients.append(Double(address))
        return self.clients[-1]


def pod(name: str, *, uid: str = "u", ready: bool = True, pool: str = "p") -> Pod:
    return Pod(name, f"{uid}-{name}", pool, f"{name}:{uid}", ready)


async def test_calls_go_to_the_preferred_node_then_to_the_next() -> None:
    """Not ready ones are never asked; with none at all it says so."""
    nodes = Nodes(pod("a"), pod("b"), pod("c", ready=False), pod("d", pool="q"))
    name, _ = await nodes.pool.call("p", lambda n: n.inspect(KEY), prefer=("b",))
    assert name == "b"
    nodes.clients[1].fails = True
    name, answer = await nodes.pool.call("p", lambda n: n.inspect(KEY), prefer=("b",))
    assert (name, answer) == ("a", "a:u acme/plan")
    nodes.clients[0].fails = True
    with pytest.raises(Unavailable, match="a:u is away"):
        await nodes.pool.call("p", lambda n: n.inspect(KEY), prefer=("b",))
    with pytest.raises(NoNode, match="'z'"):
        await nodes.pool.call("z", lambda n: n.inspect(KEY))
    assert [h.name for h in nodes.pool] == ["a", "b", "c", "d"]
    await nodes.pool.close()


async def test_a_node_that_hangs_costs_one_deadline() -> None:
    """Then the next one is asked."""
    nodes, order = Nodes(pod("a"), pod("b")), []

    async def work(node: Any) -> str:
        order.append(node.address)
        if node.address == "a:u":
            await asyncio.Event().wait()
        return "done"

    assert await nodes.pool.call("p", work, timeout_s=0.05) == ("b", "done")
    assert order == ["a:u", "b:u"]
    await nodes.pool.close()


async def test_a_lost_stream_goes_on_where_it_ended_and_lists_again() -> None:
    """And starts from the oldest record that the node still has."""
    nodes = Nodes(pod("a"))
    (double,) = nodes.clients
    await until(lambda: double.asked == [1])
    double.records.put_nowait(pb.TransitionRecord(sequence=77))
    await until(lambda: nodes.records == [77])
    before = len(nodes.changes)
    double.records.put_nowait(None)
    await until(lambda: double.asked == [1, 77])
    assert nodes.changes[before:] == ["p"]
    assert nodes.pool.named("a").boot_id == "boot of a:u"  # type: ignore[union-attr]
    await nodes.pool.close()


async def test_a_pod_made_anew_is_another_node_and_rotated_files_another_channel() -> None:
    """The old channels are closed after a while; what is ready changes the pool."""
    nodes = Nodes(pod("a"))
    nodes.pool.observe([pod("a", uid="v")])
    assert [h.client.address for h in nodes.pool] == ["a:v"]  # type: ignore[attr-defined]
    nodes.clients[1].outdated = True
    assert next(iter(nodes.pool)).client is nodes.clients[2]
    nodes.changes.clear()
    nodes.pool.observe([pod("a", uid="v", ready=False)])
    assert nodes.changes == ["p"] and not nodes.pool.ready("p") and nodes.pool.exists("p")
    nodes.pool.observe([])
    assert not nodes.pool.exists("p")
    await nodes.pool.close()
    assert all(client.closed for client in nodes.clients)


def test_what_a_pod_says() -> None:
    """Ready is the kubelet's word; a terminating or finished pod takes no new calls."""
    body: dict[str, Any] = {
        "metadata": {"name": "n", "uid": "u", "labels": {"serving.retire.dev/pool": "p"}},
        "spec": {"initContainers": [{"ports": [{"name": "grpc", "containerPort": 9}]}]},
        "status": {
            "phase": "Running",
            "podIP": "fd00::1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    made = read(body, port=7070)
    assert made == Pod("n", "u", "p", "[fd00::1]:9", ready=True)
    body["spec"] = {}
    assert read(body, port=7070).address == "[fd00::1]:7070"  # type: ignore[union-attr]
    body["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
    assert read(body, port=7070).ready is False  # type: ignore[union-attr]
    assert read({**body, "status": {**body["status"], "phase": "Failed"}}, port=1) is None
    assert read({**body, "status": {"phase": "Pending"}}, port=1) is None


class Sink:
    """Keeps Events by name, as the API server does."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    async def create_event(self, namespace: str, body: Any) -> None:
        name = body["metadata"]["name"]
        if name in self.kept:
            raise WriteConflict(f"{namespace}/{name} exists")
        self.kept[name] = dict(body)

    async def count_event(self, namespace: str, name: str, body: Any) -> None:
        del namespace
        self.kept[name] |= {**body, "count": self.kept[name]["count"] + 1}


async def test_a_transition_is_one_event_and_repeated_warnings_are_counted() -> None:
    """However many operators tell it."""
    sink = Sink()
    line = Line("supersede", Version(1, 4), from_version=Version(1, 3), unpublishable_ms=2.5)
    warning = Note("Warning", "NoReadyNode", "no node of pool 'p' is ready")
    for _ in range(2):  # two operators
        recorder = Recorder(sink, wall_s=lambda: NOW_S)
        task = asyncio.create_task(recorder.run())
        recorder.record(desired(), events.of_transition(line))
        recorder.record(desired(), warning)
        recorder.record(desired("other"), warning)
        await until(lambda queue=recorder: queue._queue.empty())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    told = sorted((e["reason"], e["count"], e["message"]) for e in sink.kept.values())
    assert told == [
        ("NoReadyNode", 2, "no node of pool 'p' is ready"),
        ("NoReadyNode", 2, "no node of pool 'p' is ready"),
        ("Superseded", 1, "1.3 -> 1.4, unpublishable in 2.5 ms"),
    ]


def test_a_verdict_is_told_when_it_is_news() -> None:
    """Blocked: a Warning; unblocked: a Normal; the same again: nothing."""
    blocked = Verdict(Phase.BLOCKED, State.FALSE, "UnknownPool", "no pod")
    current = Verdict(Phase.ACTIVE, State.TRUE, "Current", "at 1.3")
    note = events.of_verdict(blocked, before=("True", "Current"))
    assert note is not None and (note.type, note.reason) == ("Warning", "UnknownPool")
    assert events.of_verdict(blocked, before=("False", "UnknownPool")) is None
    ready = events.of_verdict(current, before=("False", "UnknownPool"))
    assert ready is not None and ready.reason == "Ready"
    assert events.of_verdict(current, before=("True", "Paused")) is None


def test_a_bad_configuration_ends_the_process_with_2() -> None:
    """And one line that names the variable."""
    done = subprocess.run(
        [sys.executable, "-m", "retire_operator"],
        env={"PATH": "", "RETIRE_TERM_LEASE": "a/b", "RETIRE_REGISTRY_URL": "redis://h"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "retire operator: RETIRE_NODE_NAMESPACE must be the namespace of the node pods; got ''"
    )


def test_without_a_cluster_the_process_ends_with_2() -> None:
    """No service account, no KUBECONFIG: said in one line."""
    done = subprocess.run(
        [sys.executable, "-m", "retire_operator"],
        env={
            "PATH": "",
            "HOME": "/nonexistent",
            "RETIRE_TERM_LEASE": "a/b",
            "RETIRE_REGISTRY_URL": "redis://h",
            "RETIRE_NODE_NAMESPACE": "a",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no cluster to talk to; set KUBECONFIG" in done.stderr

"""``onNewInput`` over real HTTP: what becomes of an input while another of its scope runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from engine_api_model import KEY, Process, events_of, process_at
from engine_api_world import until

from retire.engine import admissions
from retire.engine.turns import QUEUE_MAX
from retire.protocol.errors import RegistryUnavailable
from retire.protocol.versions import Version

NEIGHBOUR = """
import sys
from pathlib import Path
from retire.engine.turns import Turns
from retire.mailbox import SlotRef

turns, slot = Turns(Path(sys.argv[1])), SlotRef(int(sys.argv[2]), int(sys.argv[3]), 1)
with turns.now(slot) as place:
    place.work()
print("working", flush=True)
sys.stdin.readline()
with turns.now(slot) as place:
    place.rest()
"""
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """One API process; inputs wait at most twenty seconds."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path, {"input_wait_s": 20.0}) as made:
        yield made


def _on_new_input(word: str) -> dict[str, Any]:
    return {"headers": {"x-retire-on-new-input": word}}


async def test_without_a_policy_inputs_run_side_by_side(process: Process) -> None:
    """As in plain vLLM, under one version."""
    first, second = await process.started("a"), await process.started("b")
    assert process.model.runs["a"].version == process.model.runs["b"].version == "1.0"
    for name in "ab":
        await process.model.finish(name)
    assert [(await answer).status_code for answer in (first, second)] == [200, 200]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_reject_refuses_and_says_how_many_run(
    process: Process, path: str, stream: bool
) -> None:
    """409 on every entry point, streaming or not; the running work is untouched, and then free."""
    process.set_policy("reject")
    running = await process.started("a", path=path, stream=stream)
    refused = await process.ask("b", path=path, stream=stream)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "policy_refused")
    assert "1 running requests" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    await process.model.finish("a")
    assert (await running).status_code == 200
    later = await process.started("c", path=path, stream=stream)
    await process.model.finish("c")
    assert (await later).headers["x-retire-version"] == "1.0"


async def test_a_call_that_names_its_version_is_no_new_input(process: Process) -> None:
    """It is part of that version, whatever the policy; and what makes no tokens is no input."""
    process.set_policy("reject")
    await process.started("a")
    named = await process.started("b", headers={"x-retire-version": "1.0"})
    quiet = await process.started("c", path="/tokenize")
    for name in "abc":
        await process.model.finish(name)
    assert [(await answer).status_code for answer in (named, quiet)] == [200, 200]
    stale = await process.ask("d", headers={"x-retire-version": "1.7"})
    assert stale.json()["error"]["code"] == "version_conflict"


async def test_the_scopes_own_policy_wins_over_the_header(process: Process) -> None:
    """The header is for callers whose scope has none."""
    process.set_policy("reject")
    await process.started("a")
    assert (await process.ask("b", **_on_new_input("interrupt"))).status_code == 409
    assert process.sidecar.contracts == []


async def test_the_header_alone_decides_where_the_scope_says_nothing(process: Process) -> None:
    """Per call; a bad word names the header."""
    await process.started("a")
    assert (await process.ask("b", **_on_new_input("reject"))).status_code == 409
    bad = await process.ask("c", **_on_new_input("abort"))
    assert (bad.status_code, bad.json()["error"]["field"]) == (400, "x-retire-on-new-input")
    assert "one of reject, enqueue, interrupt, rollback" in bad.json()["error"]["message"]
    untagged = {"x-retire-on-new-input": "reject"}
    lost = await process.http.post("/v1/completions", json={"name": "d"}, headers=untagged)
    assert (lost.status_code, lost.json()["error"]["field"]) == (400, "x-retire-scope")


async def test_enqueued_inputs_run_one_by_one_in_order_of_arrival(process: Process) -> None:
    """Each waits for the one before it; one whose caller leaves is passed over."""
    process.set_policy("enqueue")
    answers = [await process.started("a")]
    for number, name in enumerate("bcd", start=1):
        answers.append(process.ask(name))
        await until(lambda number=number: process.waiting() == number, 30)
    answers[2].cancel()
    await until(lambda: process.waiting() == 2, 30)
    assert process.model.order == ["a"]
    for name in "abd":
        await process.model.finish(name)
    assert process.model.order == ["a", "b", "d"]
    left = [answers[at] for at in (0, 1, 3)]
    assert [(await answer).status_code for answer in left] == [200, 200, 200]
    assert process.waiting() == 0


async def test_an_enqueued_input_goes_on_when_what_runs_is_superseded(process: Process) -> None:
    """Under the version that is current then."""
    process.set_policy("enqueue")
    first = await process.started("a")
    second = process.ask("b")
    await until(lambda: process.waiting() == 1, 30)
    await process.sidecar.supersede(KEY)
    assert (await first).json()["error"]["code"] == "superseded"
    assert (await process.model.running("b")).version == "1.1"
    await process.model.finish("b")
    assert (await second).headers["x-retire-version"] == "1.1"


async def test_a_full_queue_is_said(process: Process) -> None:
    """429, with the number that wait; the queue itself is untouched."""
    process.set_policy("enqueue")
    await process.started("a")
    waiting = [process.ask(f"w{number}") for number in range(QUEUE_MAX)]
    await until(lambda: process.waiting() == QUEUE_MAX, 30)
    refused = await process.ask("z")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert f"{QUEUE_MAX} inputs wait already" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "1"
    for answer in waiting:
        answer.cancel()
    await until(lambda: process.waiting() == 0, 30)


@pytest.mark.parametrize(("word", "inherit"), [("interrupt", "certified"), ("rollback", "never")])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("early", [False, True])
async def test_interrupt_supersedes_what_runs_and_runs_as_its_successor(
    process: Process, word: str, inherit: str, path: str, early: bool
) -> None:
    """One commit, a receipt like any other; rollback inherits nothing."""
    process.set_policy(word)
    old = await process.started("a", path=path, stream=True)
    new = await process.started("b", path=path, stream=True, early=early)
    assert events_of((await old).text)[-1]["error"]["code"] == "superseded"
    await process.model.finish("b")
    answer = await new
    assert (answer.status_code, answer.headers["x-retire-version"]) == (200, "1.1")
    assert [contract.inherit for contract in process.sidecar.contracts] == [inherit]
    tag = process.model.runs["b"].publication.tag
    assert tag is not None and tag.inherit is (inherit == "certified")
    await until(lambda: len(process.sidecar.reports) == 1, 30)
    receipt = process.sidecar.reports[0].receipt_json
    assert '"from_version": "1.0", "to_version": "1.1"' in receipt
    assert '"successor_request_id": "b"' in receipt


async def test_interrupt_commits_nothing_while_nothing_runs(process: Process) -> None:
    """NEGATIVE CONTROL: the first input, and one after the first has ended, run as they are."""
    process.set_policy("interrupt")
    for name in "ab":
        answer = await process.started(name)
        await process.model.finish(name)
        assert (await answer).headers["x-retire-version"] == "1.0"
    assert process.sidecar.contracts == []


@pytest.mark.parametrize("early", [False, True])
async def test_nothing_is_published_before_the_old_version_is_unpublishable(
    process: Process, early: bool
) -> None:
    """The successor runs already; its first byte waits for the acknowledgement."""
    process.set_policy("interrupt")
    await process.started("a", stream=True)
    go = process.sidecar.hold("unpublishable")
    body = {"name": "b", "stream": True, "early": early}
    sending = process.http.stream(
        "POST", "/v1/completions", json=body, headers={"x-retire-scope": KEY.scope}
    )
    opening = asyncio.create_task(sending.__aenter__())
    await process.model.running("b")
    await asyncio.sleep(0.3)
    assert not opening.done()
    go.set()
    response = await opening
    assert response.headers["x-retire-version"] == "1.1"
    await process.model.finish("b")
    lines = [line async for line in response.aiter_lines() if line]
    assert '"first": "b"' in lines[1 if early else 0]
    await sending.__aexit__(None, None, None)


async def test_a_repeated_interrupt_commits_once(process: Process) -> None:
    """The same Idempotency-Key: the same version answers; with another body it is refused."""
    process.set_policy("interrupt")
    key = {"headers": {"idempotency-key": "k"}}
    await process.started("a")
    first = await process.started("b", **key)
    again = process.ask("b", **key)
    await until(lambda: process.model.order == ["a", "b", "b"], 30)
    other = await process.ask("c", **key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency")
    await process.model.finish("b")
    assert (await again).headers["x-retire-version"] == "1.1"
    assert len(process.sidecar.contracts) == 1
    first.cancel()


async def test_of_inputs_that_interrupt_at_once_the_newest_stays(process: Process) -> None:
    """Every one of a burst is answered; the one of the newest version runs, and is not disturbed.

    Sent 10 ms apart, they may still arrive in another order on a machine that has other work.
    """
    process.set_policy("interrupt")
    await process.started("a", stream=True)
    burst = {}
    for name in "bcdefg":
        burst[name] = process.ask(name, stream=True)
        await asyncio.sleep(0.01)
    await until(lambda: sum(answer.done() for answer in burst.values()) == len(burst) - 1, 30)
    (newest,) = (name for name, answer in burst.items() if not answer.done())
    await process.model.running(newest)
    await process.model.finish(newest)
    last = await burst.pop(newest)
    version = process.model.runs[newest].version
    assert last.headers["x-retire-version"] == version
    assert version == max((run.version for run in process.model.runs.values()), key=Version.parse)
    assert "error" not in last.text
    for answer in burst.values():
        assert "superseded" in answer.result().text or "policy_refused" in answer.result().text


async def test_a_successor_that_the_engine_refuses_still_has_its_receipt(process: Process) -> None:
    """The old version stays superseded, as with POST .../supersede; the error is the engine's."""
    process.set_policy("interrupt")
    old = await process.started("a")
    refused = await process.ask("b", refuse=True)
    assert refused.json()["error"]["message"] == "the prompt is too long"
    assert (await old).json()["error"]["code"] == "superseded"
    await until(lambda: len(process.sidecar.reports) == 1, 30)
    assert "the prompt is too long" in process.sidecar.reports[0].receipt_json
    later = await process.started("c")
    await process.model.finish("c")
    assert (await later).headers["x-retire-version"] == "1.1"


async def test_an_interrupt_that_cannot_commit_leaves_what_runs_alone(process: Process) -> None:
    """503 with Retry-After; nothing has changed, and nothing is counted that does not run."""
    process.set_policy("interrupt")
    running = await process.started("a")
    process.sidecar.refuse = RegistryUnavailable("no registry")
    refused = await process.ask("b")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    process.sidecar.refuse = None
    await process.model.finish("a")
    assert (await running).status_code == 200
    later = await process.started("c")
    await process.model.finish("c")
    assert (await later).headers["x-retire-version"] == "1.0"


@pytest.mark.parametrize("word", ["", "reject", "enqueue", "interrupt"])
async def test_a_paused_scope_takes_no_input_until_it_is_resumed(
    process: Process, word: str
) -> None:
    """Whatever its policy, and also from a call that names its version."""
    process.set_policy(word)
    await (await _finished(process, "a"))
    await process.sidecar.pause(KEY, paused=True)
    waiting = process.ask("b", headers={"x-retire-version": "1.0"} if not word else {})
    await until(lambda: process.waiting() == 1, 30)
    assert process.model.order == ["a"]
    await process.sidecar.pause(KEY, paused=False)
    await process.model.finish("b")
    assert (await waiting).status_code == 200


async def test_a_paused_scope_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 naming what it waited for; a cancel ends the wait at once."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path, {"input_wait_s": 0.3}) as process:
        await (await _finished(process, "a"))
        await process.sidecar.pause(KEY, paused=True)
        late = await process.ask("b")
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert "'plan' is paused: this input waited 0.3 s" in late.json()["error"]["message"]
        assert process.waiting() == 0


async def test_a_cancelled_scope_closes_to_those_who_wait(process: Process) -> None:
    """409 scope_cancelled, in the queue and after it."""
    process.set_policy("enqueue")
    running = await process.started("a")
    waiting = process.ask("b")
    await until(lambda: process.waiting() == 1, 30)
    await process.sidecar.cancel(KEY)
    assert (await running).json()["error"]["code"] == "cancelled"
    assert (await waiting).json()["error"]["code"] == "scope_cancelled"
    assert (await process.ask("c")).json()["error"]["code"] == "scope_cancelled"


async def test_a_changed_policy_is_heard_of(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached scope is asked for again after a while; until then its old policy holds."""
    await process.started("a")
    process.set_policy("reject")
    answers = [await process.started("b")]
    monkeypatch.setattr(admissions, "POLICY_S", 0.0)
    assert (await process.ask("c")).status_code == 409
    for name in "ab":
        await process.model.finish(name)
    assert (await answers[0]).status_code == 200


async def test_without_its_sidecar_the_last_policy_holds(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mailbox alone says whether the version is good; what is current stays current."""
    process.set_policy("reject")
    await process.started("a")
    monkeypatch.setattr(admissions, "POLICY_S", 0.0)
    process.sidecar.refuse = RegistryUnavailable("away")
    assert (await process.ask("b")).status_code == 409
    await process.model.finish("a")
    later = await process.started("c")
    await process.model.finish("c")
    assert (await later).status_code == 200


async def _finished(process: Process, name: str) -> asyncio.Task[Any]:
    """An input that ran to its end."""
    answer = await process.started(name)
    await process.model.finish(name)
    return answer


async def test_what_runs_in_another_process_counts(process: Process, tmp_path: Path) -> None:
    """Two API processes of one node: the one refuses, or waits for, what runs in the other."""
    process.set_policy("reject")
    await (await _finished(process, "a"))
    slot = process.sidecar.writer.find(KEY)
    assert slot is not None
    turns = next(tmp_path.glob("mailbox.turns-*"))
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(turns), str(slot.index), str(slot.tenure)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "working\n"
        assert (await process.ask("b")).status_code == 409
        process.set_policy("")
        process.link.admissions.forget(KEY)
        waiting = process.ask("d", **_on_new_input("enqueue"))
        await until(lambda: process.waiting() == 1, 30)
        other.stdin.write("rest\n")
        other.stdin.flush()
        await process.model.finish("d")
        assert (await waiting).status_code == 200

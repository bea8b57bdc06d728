"""Warm, as the link answers it: over real gRPC, with vLLM's handlers played by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_api_model import KEY, Process, Run, process_at
from engine_api_sidecar import FIRST
from engine_api_world import until

from retire.engine import warming
from retire.engine.publication import CURRENT
from retire.engine.seams.openai import error_response_class
from retire.engine.warming import prompt_body
from retire.protocol.errors import InvalidField
from retire.protocol.versions import Version
from retire.sidecar import status
from retire.sidecar.pb import node_pb2 as pb

BODY = {"prompt": "a long plan", "max_tokens": 900, "stream": True, "n": 4, "seed": 3}


class Handlers:
    """vLLM's two handlers: a request runs until its prompt's ``go``."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.raw: list[Any] = []
        self.runs: list[Run] = []
        self.refuse = ""
        self.state = SimpleNamespace(openai_serving_chat=self, openai_serving_completion=self)

    async def create_completion(self, request: Any, raw: Any) -> Any:
        """Run it."""
        self.requests.append(request)
        self.raw.append(raw)
        if self.refuse:
            refused = {"message": self.refuse, "type": "BadRequest", "code": 400}
            return error_response_class()(error=refused)
        publication = CURRENT.get()
        assert publication is not None
        run = Run(f"warm{len(self.runs)}", publication, prompt_tokens=96, cached_tokens=64)
        self.runs.append(run)
        publication.attach(run)
        await run.go.wait()
        return {"choices": []}

    create_chat_completion = create_completion


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """One API process with an open scope."""
    monkeypatch.setenv("RETIRE_MAILBOX", str(tmp_path / "mailbox"))
    async with process_at(tmp_path) as made:
        made.sidecar.scope(KEY)
        yield made


@pytest.fixture
def handlers(process: Process) -> Handlers:
    """What serves in the place of vLLM."""
    made = Handlers()
    process.link.warming.state = made.state
    return made


def _warm(process: Process, version: Version = FIRST, body: Any = None) -> Any:
    raw = json.dumps(BODY if body is None else body).encode()
    return asyncio.create_task(process.sidecar.warm(KEY, version, raw))


def _code(done: pb.WarmDone) -> str:
    return status.decode(done.error.encode()).code


async def test_a_context_runs_as_one_token_that_nobody_gets(
    process: Process, handlers: Handlers
) -> None:
    """Only what decides the prompt is taken from the body; the answer counts its tokens."""
    asked = _warm(process)
    await until(lambda: len(handlers.runs) == 1, 30)
    request = handlers.requests[0]
    assert (request.prompt, request.max_tokens, request.stream) == ("a long plan", 1, False)
    assert (request.n, request.seed, request.temperature) == (1, None, 0.0)
    handlers.runs[0].go.set()
    done = await asked
    assert (done.prompt_tokens, done.cached_tokens, done.error) == (96, 64, "")
    assert process.link.publications.scopes() == ()


async def test_it_is_no_running_work(process: Process, handlers: Handlers) -> None:
    """A policy does not see it, so it neither refuses an input nor is superseded by one."""
    process.set_policy("reject")
    asked = _warm(process)
    await until(lambda: len(handlers.runs) == 1, 30)
    answer = await process.started("a")
    await process.model.finish("a")
    assert (await answer).status_code == 200
    handlers.runs[0].go.set()
    assert (await asked).error == ""


async def test_it_dies_with_its_version(process: Process, handlers: Handlers) -> None:
    """Its engine request is aborted; the answer names the version that is current."""
    asked = _warm(process)
    await until(lambda: len(handlers.runs) == 1, 30)
    await process.sidecar.supersede(KEY)
    done = await asked
    error = status.decode(done.error.encode())
    assert (error.code, str(getattr(error, "current", ""))) == ("version_conflict", "1.1")


async def test_a_version_that_is_not_current_computes_nothing(
    process: Process, handlers: Handlers
) -> None:
    """Stale, future, paused or cancelled: each says so."""
    assert _code(await _warm(process, Version(1, 3))) == "version_conflict"
    await process.sidecar.pause(KEY, paused=True)
    assert _code(await _warm(process)) == "unavailable"
    await process.sidecar.cancel(KEY)
    assert _code(await _warm(process, Version(1, 1))) == "scope_cancelled"
    assert handlers.requests == []


async def test_a_few_at_once_and_the_link_stays_free(process: Process, handlers: Handlers) -> None:
    """The others wait their turn; a Switch is acked meanwhile, and ends them all."""
    asked = [_warm(process) for _ in range(warming.AT_ONCE + 3)]
    await until(lambda: len(handlers.runs) == warming.AT_ONCE, 30)
    await asyncio.sleep(0.1)
    assert len(handlers.runs) == warming.AT_ONCE
    await process.sidecar.supersede(KEY)  # returns when it is acked
    assert {_code(await one) for one in asked} == {"version_conflict"}
    assert len(handlers.runs) == warming.AT_ONCE


async def test_too_many_are_refused(
    process: Process, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that grows without end would only compute what is stale."""
    monkeypatch.setattr(warming, "WAITING_MAX", 3)
    asked = [_warm(process) for _ in range(3)]
    await until(lambda: len(handlers.runs) == warming.AT_ONCE, 30)
    assert _code(await _warm(process)) == "unavailable"
    for number in range(3):  # each that ends makes place for the next
        await until(lambda number=number: len(handlers.runs) > number, 30)
        handlers.runs[number].go.set()
    assert {(await one).error for one in asked} == {""}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "a JSON object"),
        ({"model": "m"}, 'exactly one of "messages" and "prompt"'),
        ({"prompt": "a", "messages": []}, 'exactly one of "messages" and "prompt"'),
        ({"messages": "hello"}, "a request that runs"),
    ],
)
async def test_a_bad_context_is_said(
    process: Process, handlers: Handlers, body: Any, says: str
) -> None:
    """The field, and what it must be."""
    done = await _warm(process, body=body)
    assert _code(done) == "invalid_field"
    assert says in status.decode(done.error.encode()).args[0]
    assert handlers.runs == []


async def test_what_the_engine_refuses_is_told(process: Process, handlers: Handlers) -> None:
    """A context that is too long, a model that is not there: in vLLM's words."""
    handlers.refuse = "the prompt is longer than the model's context"
    done = await _warm(process)
    assert _code(done) == "invalid_field" and handlers.refuse in done.error


async def test_a_process_that_does_not_serve_yet_says_so(process: Process) -> None:
    """The link is attached before vLLM's handlers are there."""
    assert _code(await _warm(process)) == "unavailable"


def test_the_prompts_own_fields_are_kept() -> None:
    """Tools and template arguments change the prompt; sampling does not."""
    body = {"messages": [], "tools": [{}], "chat_template_kwargs": {"a": 1}, "stop": ["x"]}
    kept = prompt_body(json.dumps(body).encode())
    assert (kept["tools"], kept["chat_template_kwargs"]) == ([{}], {"a": 1})
    assert "stop" not in kept
    with pytest.raises(InvalidField, match="request_json"):
        prompt_body(b"\xff{")

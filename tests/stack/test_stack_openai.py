"""An unmodified ``openai`` client: headers are all it needs, and what its user sees at the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest

from bench.stack_streams import Agent
from retire.client import AsyncRetire, Retire, Superseded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stack import Stack

MESSAGES: Any = [{"role": "user", "content": "Plan a walk through the old town."}]
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    """The synchronous client, without retries: a retry would hide what it was told."""
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def agent(stack: Stack) -> Agent:
    """A scope of its own."""
    return Agent.new(stack, "openai")


def test_a_tagged_stream_is_an_ordinary_one(client: openai.OpenAI, agent: Agent) -> None:
    """Chunks, finish reason and end are as without a scope; the text is the same too."""
    texts = []
    for headers in (agent.headers, {}):
        chunks = list(
            client.chat.completions.create(
                model=agent.stack.model, messages=MESSAGES, stream=True, max_tokens=12,
                extra_headers=headers, **GREEDY,
            )
        )  # fmt: skip
        texts.append("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        assert chunks[-1].choices[0].finish_reason == "length"
        tagged = [(chunk.model_extra or {}).get("retire") for chunk in chunks]
        assert tagged == [{"version": "1.0"} if headers else None] * len(chunks)
    assert texts[0] == texts[1] != ""


def test_a_superseded_stream_raises_api_error(client: openai.OpenAI, agent: Agent) -> None:
    """The user's loop gets every token published, then ``openai.APIError`` with our code."""
    stream = client.chat.completions.create(
        model=agent.stack.model, messages=MESSAGES, stream=True, max_tokens=3000,
        extra_headers=agent.headers, **GREEDY,
    )  # fmt: skip
    seen, receipts = 0, []
    with pytest.raises(openai.APIError) as raised:
        for chunk in stream:
            seen += bool(chunk.choices and chunk.choices[0].delta.content is not None)
            if seen == 6:
                receipts.append(agent.supersede(agent.version)["receipt"])
    (receipt,) = receipts
    error = raised.value
    assert error.code == "superseded" and error.type == "conflict"
    assert error.message == (
        f"scope {agent.scope!r}: version {receipt['from_version']} was superseded; "
        f"current is {receipt['to_version']}"
    )
    assert isinstance(error.body, dict)
    assert error.body["current"] == receipt["to_version"]
    assert error.body["last_published_index"] == receipt["requests"][0]["last_published_index"]
    assert not isinstance(error, openai.APIStatusError)  # it came in the stream, not as a status


async def test_the_async_client_sees_the_same(stack: Stack, agent: Agent) -> None:
    """``AsyncOpenAI``: the same error out of ``async for``, completions too."""
    async with openai.AsyncOpenAI(
        base_url=f"{stack.url}/v1", api_key="none", max_retries=0
    ) as client:
        stream = await client.completions.create(
            model=stack.model, prompt="a plan", stream=True, max_tokens=3000,
            extra_headers=agent.headers, **GREEDY,
        )  # fmt: skip
        seen = 0
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                seen += 1
                if seen == 5:
                    agent.supersede(agent.version)
        assert raised.value.code == "superseded" and seen >= 5


def test_a_call_that_does_not_stream_gets_a_conflict(client: openai.OpenAI, agent: Agent) -> None:
    """A whole answer that was superseded meanwhile is a 409: ``openai.ConflictError``."""
    version = agent.opened()

    def supersede() -> None:
        while not agent.view()["requests"]:
            pass
        agent.supersede(version)

    meanwhile = threading.Thread(target=supersede)
    meanwhile.start()
    with pytest.raises(openai.ConflictError) as raised:
        client.completions.create(
            model=agent.stack.model, prompt="a plan", max_tokens=3000,
            extra_headers=agent.headers, **GREEDY,
        )  # fmt: skip
    meanwhile.join()
    assert raised.value.status_code == 409 and raised.value.code == "superseded"


def test_a_stale_version_is_a_conflict_at_once(client: openai.OpenAI, agent: Agent) -> None:
    """A call that names a version which is no longer current never starts."""
    first = agent.opened()
    current = agent.supersede(first)["receipt"]["to_version"]
    with pytest.raises(openai.ConflictError) as raised:
        client.completions.create(
            model=agent.stack.model, prompt="x", max_tokens=1,
            extra_headers=agent.headers | {"x-retire-version": first},
        )  # fmt: skip
    body = raised.value.body
    assert isinstance(body, dict) and body["code"] == "version_conflict"
    assert body["current"] == current


def test_our_client_and_theirs_work_side_by_side(client: openai.OpenAI, agent: Agent) -> None:
    """Their stream under our handle's headers; our SUPERSEDE ends it; ours refuses what is late."""
    with Retire(agent.stack.url, tenant=agent.tenant) as ours:
        scope = ours.scope(agent.scope)
        theirs = client.chat.completions.create(
            model=agent.stack.model, messages=MESSAGES, stream=True, max_tokens=3000,
            extra_headers=scope.headers(), **GREEDY,
        )  # fmt: skip
        chunks = [next(iter(theirs)) for _ in range(4)]
        version = chunks[-1].model_extra["retire"]["version"]
        assert scope.admits(version)
        mine = scope.chat(MESSAGES, model=agent.stack.model, max_tokens=3000, ignore_eos=True)
        next(mine)
        request = {"model": agent.stack.model, "messages": MESSAGES, "max_tokens": 5}
        successor = scope.supersede(request={**request, "ignore_eos": True})
        assert str(successor.receipt.from_version) == version
        assert not scope.admits(version)
        with pytest.raises(openai.APIError) as raised:
            list(theirs)
        assert raised.value.code == "superseded"
        with pytest.raises(Superseded) as ended:
            list(mine)
        assert ended.value.current == successor.receipt.to_version
        assert sum(1 for chunk in successor if chunk.text) >= 1


async def test_our_async_client_follows_a_scope(stack: Stack, agent: Agent) -> None:
    """Open, stream, supersede, read the successor, cancel: all of it typed."""
    async with AsyncRetire(stack.url, tenant=agent.tenant) as ours:
        scope = ours.scope(agent.scope)
        old = await scope.chat(MESSAGES, model=stack.model, max_tokens=3000, ignore_eos=True)
        await anext(old)
        request = {"model": stack.model, "messages": MESSAGES, "max_tokens": 5, "ignore_eos": True}
        successor = await scope.supersede(request=request)
        texts = [chunk.text async for chunk in successor]
        assert "".join(texts)
        with pytest.raises(Superseded):
            async for _ in old:
                pass
        done = await scope.cancel()
        assert done.receipt is not None and (await scope.get()).cancelled

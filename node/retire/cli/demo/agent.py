"""The scripted coding agent: streams a plan with an unmodified ``openai`` client, is interrupted.

Owns one telling of a story under one arm, and its clock. Every arm runs the same reader: it takes
an item, works on it for a while, takes the next, and cannot know what the transport still holds.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx
import openai

from retire.cli.demo import gauges, repository
from retire.cli.demo.checks import Evidence, problems
from retire.cli.demo.stories import Arm, Read, Telling
from retire.client import AsyncRetire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from retire.cli.demo.stories import Story
    from retire.client import AsyncScope
    from retire.protocol.contract import Receipt

MODEL: Final = "SmolLM2-135M-Instruct"
PACE_S: Final = 0.2  # what the agent does with each item before it takes the next
OLD_TOKENS_MAX: Final = 400
NEW_TOKENS_MAX: Final = 16
DRAIN_S: Final = 60.0  # the longest wait for the old reader to see its stream's end
PROGRESS_POLL_S: Final = 0.05


@dataclass(slots=True)
class OldStream:
    """What the reader of the old plan has seen so far. Times on the monotonic clock."""

    admits: Callable[[str | None], bool]
    reads: list[tuple[float, int, bool]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stream: openai.AsyncStream[Any] | None = None
    terminal: Mapping[str, Any] | None = None  # the error event that ended it

    @property
    def tokens(self) -> int:
        """Taken so far, used or not."""
        return sum(tokens for _, tokens, _ in self.reads)


@dataclass(slots=True)
class NewStream:
    """The successor's answer."""

    done_ms: float = 0.0
    arrivals_ms: list[float] = field(default_factory=list)
    text: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    receipt: Receipt | None = None


class Agent:
    """One server, one agent."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._http = httpx.AsyncClient(base_url=url, timeout=60.0)

    async def warm_up(self) -> None:
        """Requests that nobody else can hit, so that no story pays for the engine's first steps."""
        for task in ("Say yes.", "Say no."):
            await self._openai.chat.completions.create(
                model=MODEL,
                messages=repository.messages({}, task),
                max_tokens=8,
                extra_body={"cache_salt": uuid.uuid4().hex},
            )

    async def tell(self, story: Story, arm: Arm) -> Telling:
        """Tell one story under one arm, from a cache that holds nothing of it."""
        if arm is not Arm.RETIRE:
            return await self._tell_native(story, arm)
        async with AsyncRetire(self._url, tenant=f"{story.name}-{uuid.uuid4().hex[:8]}") as client:
            return await self._tell_retire(story, client.scope("plan-7"))

    async def close(self) -> None:
        """Close every connection."""
        await self._openai.close()
        await self._http.aclose()

    async def _tell_retire(self, story: Story, scope: AsyncScope) -> Telling:
        old = OldStream(admits=lambda version: version is None or scope.admits(version))
        reader = self._start(old, story, {"extra_headers": scope.headers()})
        await self._moment(story, old)
        zero_s, new = time.monotonic(), NewStream()
        successor = await scope.supersede(request=self._request(story))
        new.done_ms, new.receipt = _ms(zero_s), successor.receipt
        async for chunk in successor:
            _take(new, chunk.raw, zero_s)
        await _drain(reader)
        tokens = [await self._tokens(story, task) for task in (story.task, story.revised)]
        evidence = Evidence(story, successor.receipt, new.usage, tokens[0], tokens[1], old.terminal)
        stages = {**successor.receipt.stages_ms, "first token": _first(new)}
        return _telling(
            story, Arm.RETIRE, old, (zero_s, new, stages), problems(evidence, old.tokens)
        )

    async def _tell_native(self, story: Story, arm: Arm) -> Telling:
        salts = [uuid.uuid4().hex, uuid.uuid4().hex]
        if arm is Arm.NATIVE_PREFIX:
            salts[1] = salts[0]
        old = OldStream(admits=lambda version: True)  # nothing tells an old chunk from a new one
        reader = self._start(old, story, {"extra_body": {"cache_salt": salts[0]}})
        await self._moment(story, old)
        zero_s, new = time.monotonic(), NewStream()
        await _hang_up(old, reader)
        new.done_ms = _ms(zero_s)
        request = {**self._request(story), "cache_salt": salts[1]}
        await self._resend(request, new, zero_s)
        await _drain(reader)
        stages = {"hang up": new.done_ms, "first token": _first(new)}
        return _telling(story, arm, old, (zero_s, new, stages), [])

    def _start(self, old: OldStream, story: Story, tag: Mapping[str, Any]) -> asyncio.Task[None]:
        body = {"return_token_ids": True, **tag.get("extra_body", {})}

        async def open_stream() -> openai.AsyncStream[Any]:
            return await self._openai.chat.completions.create(
                model=MODEL,
                messages=repository.messages(story.files, story.task),
                stream=True,
                max_tokens=OLD_TOKENS_MAX,
                temperature=0,
                extra_body=body,
                extra_headers=tag.get("extra_headers"),
            )

        return asyncio.create_task(_read(old, open_stream, story.after_tokens))

    async def _moment(self, story: Story, old: OldStream) -> None:
        """Until the user changes their mind."""
        if story.after_prefill is None:
            await old.changed.wait()
            return
        tokens = story.after_prefill * len(await self._tokens(story, story.task))
        while await gauges.tokens_in_use(self._http) < tokens:
            await asyncio.sleep(PROGRESS_POLL_S)

    def _request(self, story: Story) -> dict[str, Any]:
        return {
            "model": MODEL,
            "messages": repository.messages(story.files, story.revised),
            "max_tokens": NEW_TOKENS_MAX,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _resend(self, request: dict[str, Any], new: NewStream, zero_s: float) -> None:
        extra = {"cache_salt": request.pop("cache_salt")}
        stream = await self._openai.chat.completions.create(**request, extra_body=extra)
        async for item in stream:
            _take(new, item.model_dump(), zero_s)

    async def _tokens(self, story: Story, task: str) -> list[int]:
        chat = repository.messages(story.files, task)
        answer = await self._http.post("/tokenize", json={"model": MODEL, "messages": chat})
        answer.raise_for_status()
        return answer.json()["tokens"]


async def _read(
    old: OldStream, open_stream: Callable[[], Awaitable[Any]], after_tokens: int | None
) -> None:
    """The agent's reader, the same for every arm."""
    try:
        stream = old.stream = await open_stream()
        async for item in stream:
            extra = item.model_extra or {}
            if "error" in extra:
                old.terminal = extra["error"]
                return
            tokens = _token_count(item)
            if not tokens:
                continue
            used = old.admits(extra.get("retire", {}).get("version"))
            old.reads.append((time.monotonic(), tokens, used))
            if after_tokens is not None and old.tokens >= after_tokens:
                old.changed.set()
            if used:
                await asyncio.sleep(PACE_S)
    except openai.APIError as error:
        old.terminal = error.body if isinstance(error.body, dict) else None
    except (httpx.StreamError, httpx.TransportError):
        return  # we hung up ourselves
    finally:
        old.changed.set()


async def _hang_up(old: OldStream, reader: asyncio.Task[None]) -> None:
    """What a runtime without versions can do: close the connection of the old stream."""
    if old.stream is not None:
        await old.stream.close()
    else:
        reader.cancel()


async def _drain(reader: asyncio.Task[None]) -> None:
    """Let the old reader finish what it already holds."""
    await asyncio.wait((reader,), timeout=DRAIN_S)
    reader.cancel()


def _take(new: NewStream, chunk: Mapping[str, Any], zero_s: float) -> None:
    if chunk.get("usage"):
        new.usage = chunk["usage"]
    for choice in chunk.get("choices") or ():
        text = (choice.get("delta") or {}).get("content")
        if text:
            new.arrivals_ms.append(_ms(zero_s))
            new.text += text


def _token_count(item: Any) -> int:
    """Tokens in a chunk: what vLLM says (``return_token_ids``), which may be more than one."""
    return sum(len((choice.model_extra or {}).get("token_ids") or ()) for choice in item.choices)


def _telling(
    story: Story,
    arm: Arm,
    old: OldStream,
    told: tuple[float, NewStream, dict[str, float]],
    failed: list[str],
) -> Telling:
    zero_s, new, stages = told
    details = new.usage.get("prompt_tokens_details") or {}
    inherited = details.get("cached_tokens") or 0
    return Telling(
        story=story.name,
        arm=arm,
        old_reads=tuple(Read(at - zero_s, tokens, used) for at, tokens, used in old.reads),
        done_ms=new.done_ms,
        stages_ms=dict(sorted(stages.items(), key=lambda stage: stage[1])),
        prompt_tokens=new.usage.get("prompt_tokens", 0),
        inherited_tokens=new.receipt.certified_tokens if new.receipt else inherited,
        new_tokens_ms=tuple(new.arrivals_ms),
        text=new.text,
        receipt=new.receipt,
        problems=tuple(failed + _unfinished(new)),
    )


def _unfinished(new: NewStream) -> list[str]:
    return [] if new.arrivals_ms else ["the successor produced no text"]


def _first(new: NewStream) -> float:
    return new.arrivals_ms[0] if new.arrivals_ms else float("inf")


def _ms(zero_s: float) -> float:
    return (time.monotonic() - zero_s) * 1e3

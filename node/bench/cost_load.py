"""Load of the no-revision benchmark: streamed completions over plain sockets, timed as they come.

A client that does next to nothing, so that what is compared is the server. Never imports vLLM.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOKEN_IDS: Final = range(10, 2000)
_DATA: Final = b"data: "
_DONE: Final = b"data: [DONE]"


class BadAnswer(Exception):
    """The server refused a call, or its stream ended early; its text is in the message."""


class Span(Enum):
    """Which part of a load is timed."""

    FIRST = "from the call to the first token"
    DECODE = "from the first token to the last"
    ALL = "from the first call to the last end"


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls that are sent at once: their prompts' lengths, and tokens of output each."""

    name: str
    prompts: tuple[int, ...]
    out: int
    span: Span


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send, and as which model; ``scoped``: whether calls are tagged."""

    host: str
    port: int
    model: str
    scoped: bool = False

    def headers(self, number: int) -> dict[str, str]:
        """Of the n-th call of a load: each has a scope of its own, used again by the next load."""
        if not self.scoped:
            return {}
        return {"x-retire-scope": f"load-{number}", "x-retire-tenant": "default"}


@dataclass(frozen=True, slots=True)
class Call:
    """One streamed call; ``perf_counter`` seconds."""

    began_s: float
    first_s: float
    last_s: float
    frames: int


async def run(server: Server, workload: Workload, seed: str) -> float:
    """One load; seconds of what it times. Prompts are fresh for each ``seed``. BadAnswer."""
    draw = random.Random(seed)
    calls = await asyncio.gather(*(
        _call(server, draw.choices(TOKEN_IDS, k=length), workload.out, server.headers(number))
        for number, length in enumerate(workload.prompts)
    ))  # fmt: skip
    return _timed(calls, workload)


def _timed(calls: Sequence[Call], workload: Workload) -> float:
    """Seconds of the span; the mean over calls where each has its own."""
    match workload.span:
        case Span.FIRST:
            return sum(call.first_s - call.began_s for call in calls) / len(calls)
        case Span.DECODE:
            return sum(call.last_s - call.first_s for call in calls) / len(calls)
        case Span.ALL:
            return max(call.last_s for call in calls) - min(call.began_s for call in calls)


async def _call(server: Server, prompt: list[int], out: int, headers: Mapping[str, str]) -> Call:
    body = json.dumps(_body(server.model, prompt, out)).encode()
    fixed = {
        "host": server.host,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in {**fixed, **headers}.items())
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        began_s = time.perf_counter()
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        return await _read(reader, began_s)
    finally:
        writer.close()


def _body(model: str, prompt: list[int], out: int) -> dict[str, Any]:
    fixed = {"temperature": 0, "ignore_eos": True, "stream": True}
    return {"model": model, "prompt": prompt, "max_tokens": out, **fixed}


async def _read(reader: asyncio.StreamReader, began_s: float) -> Call:
    first_s, frames, tail, seen = 0.0, 0, b"", b""
    while chunk := await reader.read(65536):
        now_s = time.perf_counter()
        text = tail + chunk
        found = text.count(_DATA)
        frames += found
        if found and not first_s:
            first_s = now_s
        if _DONE in text:
            return Call(began_s, first_s, now_s, frames - 1)
        # What may be the beginning of a frame is looked at again with the next piece.
        cut = text.rfind(b"\n") + 1
        tail = text[cut:] if _DATA not in text[cut:] else b""
        seen = (seen + chunk)[:2000]
    raise BadAnswer(seen.decode("utf-8", "replace"))

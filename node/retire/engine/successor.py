"""The successor of a SUPERSEDE, run through vLLM's own OpenAI handlers.

Owns the call into ``app.state.openai_serving_chat`` and ``openai_serving_completion`` and the
translation of what they refuse. Must never decide when it may be seen: the hand-off does.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from retire.engine.handoff import NoSuccessor, Outcome, Refused, admission_of
from retire.engine.seams.openai import create_error_response, error_response_class

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from fastapi import Request

    from retire.engine.publication import Publication


class Successor:
    """One OpenAI request of the new version (``body["stream"]`` is set); tokens wait."""

    def __init__(self, body: dict[str, Any], raw: Request, publication: Publication) -> None:
        self.stream: bool = body["stream"]
        self._body = body
        self._raw = raw
        self._publication = publication
        self._chunks: AsyncGenerator[str, None] | None = None
        self._work: asyncio.Task[Any] | None = None

    async def admit(self) -> Outcome:
        """Let the request into the engine; returns once it is there, before its first token."""
        self._work = asyncio.create_task(self._begin())
        admitted = asyncio.create_task(self._publication.admitted.wait())
        try:
            await asyncio.wait((self._work, admitted), return_when=asyncio.FIRST_COMPLETED)
            if not self._publication.admitted.is_set():
                refused = _refusal(self._work.result())
                return refused or NoSuccessor()
        except BaseException:
            self._work.cancel()
            raise
        finally:
            admitted.cancel()
        return admission_of(self._publication)

    async def chunks(self) -> AsyncIterator[str]:
        """The events of a streamed answer, ``[DONE]`` included."""
        assert self._work is not None
        try:
            first = await self._work
            if first is not None:
                yield first if isinstance(first, str) else f"data: {json.dumps(first)}\n\n"
            if self._chunks is not None:
                async for chunk in self._chunks:
                    yield chunk
        finally:
            await self.close()

    async def answer(self) -> dict[str, Any]:
        """The whole answer of a request that does not stream, or ``{"error": ...}``."""
        assert self._work is not None
        try:
            result = await self._work
        finally:
            await self.close()
        return result if isinstance(result, dict) else result.model_dump()

    async def close(self) -> None:
        """Stop; vLLM aborts the request when its consumer goes away."""
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._chunks is not None:
            await self._chunks.aclose()

    async def _begin(self) -> Any:
        """The first event of a stream, or the whole answer, or an error as a dict."""
        try:
            result = await self._call()
        except ValidationError as error:
            return invalid(error)
        except Exception as error:  # whatever vLLM's own exception handler would have answered
            return create_error_response(error).model_dump()
        if isinstance(result, error_response_class()):
            return result.model_dump()
        if not self.stream:
            return result
        self._chunks = result
        return await anext(result, None)

    async def _call(self) -> Any:
        return await serve(self._raw.app.state, self._body, self._raw)


async def serve(state: Any, body: dict[str, Any], raw: Request) -> Any:
    """What vLLM's handler for a chat ("messages") or completion ("prompt") body returns."""
    if "messages" in body:
        if state.openai_serving_chat is None:
            raise NotImplementedError("The model does not support Chat Completions API")
        chat = ChatCompletionRequest(**body)
        return await state.openai_serving_chat.create_chat_completion(chat, raw)
    if state.openai_serving_completion is None:
        raise NotImplementedError("The model does not support Completions API")
    completion = CompletionRequest(**body)
    return await state.openai_serving_completion.create_completion(completion, raw)


def _refusal(first: Any) -> Refused | None:
    """The error in what came instead of an admission; None: it ended without one."""
    if isinstance(first, str) and first.startswith("data: {"):
        first = json.loads(first.removeprefix("data: "))
    if isinstance(first, dict) and "error" in first:
        return Refused(first["error"])
    return None


def invalid(error: ValidationError) -> dict[str, Any]:
    """A body that is no OpenAI request; names the field, repeats no value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in ("request", *first["loc"]))
    message = f"{where}: {first['msg']}"
    return {"error": {"message": message, "type": "BadRequestError", "param": where, "code": 400}}

"""Computes the KV of a revised context before its successor asks for it.

A context runs as an ordinary request of the scope's current version, through vLLM's own handlers:
it inherits what its predecessor left, and what it computes waits in the prefix cache. Its one token
goes to nobody, and it is no input: it does not count for the scope's policy. Owns how many contexts
are computed at once. Must never publish, nor decide a version.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.engine.headers import Claim
from retire.engine.inputs import admission_of
from retire.engine.publication import CURRENT, Ended
from retire.protocol.errors import (
    InvalidField,
    LeaseExpired,
    RetireError,
    ScopeClosed,
    Unavailable,
    VersionConflict,
)
from retire.protocol.events import Admission

if TYPE_CHECKING:
    from retire.engine.link import SidecarLink
    from retire.engine.publication import Publication
    from retire.engine.tag import Tag
    from retire.protocol.versions import ScopeKey, Version

AT_ONCE: Final = 2
WAITING_MAX: Final = 32
WARM_S: Final = 120.0  # a scope that is paused meanwhile would hold its place for ever
# What of an OpenAI body decides its prompt; how its answer would be sampled does not matter here.
PROMPT_FIELDS: Final = (
    *("model", "messages", "prompt", "tools", "documents", "add_special_tokens"),
    *("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    *("cache_salt", "mm_processor_kwargs"),
)
ONE_TOKEN: Final = {"stream": False, "max_tokens": 1, "temperature": 0.0, "n": 1}


@dataclass(frozen=True, slots=True)
class Context:
    """A context to compute, and the version that it belongs to."""

    key: ScopeKey
    version: Version
    request_json: bytes  # an OpenAI chat or completion body
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What it came to."""

    prompt_tokens: int
    cached_tokens: int  # of them inherited, or cached before


class Warming:
    """The contexts of one API process. ``state`` is vLLM's ``app.state``, known once it serves."""

    def __init__(self, link: SidecarLink) -> None:
        self.state: Any = None
        self._link = link
        self._places = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def warm(self, context: Context) -> Warmed:
        """Compute it. VersionConflict, ScopeClosed, Unavailable; InvalidField for a bad body."""
        body = prompt_body(context.request_json)
        if self.state is None:
            raise Unavailable("this API process does not serve yet; retry")
        if self._waiting >= WAITING_MAX:
            raise Unavailable(f"{self._waiting} contexts wait to be computed already; retry")
        self._waiting += 1
        try:
            async with asyncio.timeout(WARM_S), self._places:
                return await self._computed(context, body)
        except TimeoutError:
            raise Unavailable(f"the context was not computed within {WARM_S:g} s; retry") from None
        finally:
            self._waiting -= 1

    async def _computed(self, context: Context, body: dict[str, Any]) -> Warmed:
        tag = await self._link.admissions.admit(Claim(context.key, context.version))
        mailbox = self._link.mailbox()
        if admission_of(mailbox, tag.slot) is Admission.PAUSED:
            raise Unavailable(f"scope {context.key.scope!r} is paused; resume it first")
        publication = self._link.publications.open()
        publication.bind(tag, mailbox)
        current = CURRENT.set(publication)
        try:
            answer = await self._served(body, context.traceparent)
        finally:
            CURRENT.reset(current)
            publication.discard()
        if publication.ended is not None:
            raise _ended(publication, tag)
        if answer is not None:
            raise InvalidField("request_json", body.get("model"), f"a request that runs: {answer}")
        return Warmed(
            sum(consumer.prompt_tokens for consumer in publication.consumers),
            sum(consumer.cached_tokens for consumer in publication.consumers),
        )

    async def _served(self, body: dict[str, Any], traceparent: str) -> str | None:
        """None: it was computed; else what vLLM says against it."""
        from pydantic import ValidationError

        from retire.engine.seams.openai import create_error_response, error_response_class
        from retire.engine.successor import invalid, serve

        try:
            result = await serve(self.state, body, _request(self.state, traceparent))
        except ValidationError as error:
            return str(invalid(error)["error"]["message"])
        except Exception as error:  # whatever vLLM's own exception handler would have answered
            result = create_error_response(error)
        return result.error.message if isinstance(result, error_response_class()) else None


def prompt_body(request_json: bytes) -> dict[str, Any]:
    """The body that computes the prompt and one token. InvalidField names what is wrong."""
    try:
        body = json.loads(request_json)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidField("request_json", request_json[:80], "a JSON object")
    if ("messages" in body) == ("prompt" in body):
        raise InvalidField(
            "request_json", sorted(body), 'with exactly one of "messages" and "prompt"'
        )
    prompt = {name: body[name] for name in PROMPT_FIELDS if name in body}
    return prompt | ONE_TOKEN


def _request(state: Any, traceparent: str) -> Any:
    """The HTTP request that vLLM's handlers look at: headers, and a place for their notes."""
    from starlette.requests import Request

    headers = [(b"traceparent", traceparent.encode("latin-1", "replace"))] if traceparent else []
    application = type("Application", (), {"state": state})()
    return Request({"type": "http", "method": "POST", "headers": headers, "app": application})


def _ended(publication: Publication, tag: Tag) -> RetireError:
    end = publication.ended
    assert end is not None
    current = end.current or tag.version.next_epoch()
    match end.why:
        case Ended.SUPERSEDED:
            return VersionConflict(tag.key, expected=tag.version, current=current)
        case Ended.CANCELLED:
            return ScopeClosed(tag.key, current)
        case Ended.UNAVAILABLE:
            return LeaseExpired("the node's publish lease ended and did not come back; retry")

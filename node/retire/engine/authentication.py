"""Whose a call is, where RETIRE_AUTH asks for tokens: the sidecar says, and is asked once a while.

Owns the memory of tokens, by digest. Fails closed: without an answer a call is nobody's. Must never
keep, log or repeat a token, nor decide what its tenant may do.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retire.engine.headers import token_of
from retire.protocol.errors import Unauthenticated, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retire.engine.headers import RawHeaders
    from retire.sidecar.pb import node_pb2 as pb

ANSWER_S: Final = 5.0  # the sidecar may have to ask the API server
KNOWN_MAX: Final = 4096
ASKED_AT_ONCE: Final = 32
CACHE_MAX_S: Final = 300.0  # a token that was taken back is refused after this at the latest
TOKEN_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Known:
    """A token that somebody vouched for."""

    tenant: str
    until_s: float


class Authenticator:
    """Bearer token -> tenant. ``ask`` is the sidecar; ``clock`` counts seconds."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[pb.AuthenticateReply]],
        *,
        clock: Callable[[], float] = time.monotonic,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._answer_s = answer_s
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Known]] = {}
        self._at_once = asyncio.Semaphore(ASKED_AT_ONCE)

    async def tenant(self, headers: RawHeaders) -> str:
        """The tenant of the call's token.

        Unauthenticated, Forbidden (a token of no tenant), or Unavailable when nobody can tell now.
        """
        token = token_of(headers)
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthenticated(f"a bearer token has at most {TOKEN_BYTES_MAX} bytes")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is None or known.until_s <= self._clock():
            known = await self._asked(digest, token)
        return known.tenant

    async def _asked(self, digest: bytes, token: str) -> Known:
        """One question at a time about a token, however many calls carry it."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._vouched(digest, token))
            asking.add_done_callback(lambda task: self._answered(digest, task))
        return await asyncio.shield(asking)

    def _answered(self, digest: bytes, task: asyncio.Task[Known]) -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # retrieved: those who wait for it raise it

    async def _vouched(self, digest: bytes, token: str) -> Known:
        asked_s = self._clock()
        try:
            async with asyncio.timeout(self._answer_s), self._at_once:
                reply = await self._ask(token)
        except TimeoutError:
            raise Unavailable(
                f"the sidecar did not say within {self._answer_s:g} s whose this token is; retry"
            ) from None
        if not reply.tenant:
            raise Unavailable("the sidecar named no tenant for this token; retry")
        known = Known(reply.tenant, asked_s + min(max(0.0, reply.cache_s), CACHE_MAX_S))
        self._known.pop(digest, None)
        self._known[digest] = known
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return known

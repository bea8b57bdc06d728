"""Admission: a tagged call is let in under the current version of its scope, or refused.

Owns the join cache and the ASGI middleware that binds a call's publication. It stands inside the
server's own middleware, so a call that fails authentication never reaches the sidecar. Must never
import vLLM or decide which version is current: the sidecar and the mailbox do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from retire.engine.headers import ROUTES, claim_of
from retire.engine.publication import CURRENT
from retire.engine.replies import NO_SIDECAR, send_error
from retire.engine.tag import Tag
from retire.mailbox import GateState, SlotRef
from retire.protocol.errors import RetireError, Unavailable, VersionConflict
from retire.protocol.versions import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from retire.engine.asgi import Asgi, Receive, Send
    from retire.engine.headers import Claim
    from retire.engine.link import SidecarLink
    from retire.engine.publication import Mailbox
    from retire.engine.settings import Settings
    from retire.protocol.versions import ScopeKey, Version
    from retire.sidecar.pb import node_pb2 as pb

JOIN_TIMEOUT_S: Final = 2.0
CACHED_MAX: Final = 65_536  # as many as a mailbox has slots


class Admissions:
    """Current tags by scope. A cached one is good while its mailbox word says so: no RPC."""

    def __init__(self, link: SidecarLink) -> None:
        self._link = link
        self._tags: dict[ScopeKey, Tag] = {}

    async def admit(self, claim: Claim) -> Tag:
        """The tag a call gets; VersionConflict (stale or future), ScopeClosed or Unavailable."""
        mailbox = self._link.mailbox()
        cached = self._tags.get(claim.key)
        if cached is not None and mailbox.gate(cached.slot) is GateState.OPEN:
            if claim.version is not None and claim.version != cached.version:
                raise VersionConflict(claim.key, expected=claim.version, current=cached.version)
            return cached
        return await self._join(claim.key, claim.version)

    def keep(self, tag: Tag) -> None:
        """Remember a tag learned otherwise (a SUPERSEDE made here)."""
        self._tags.pop(tag.key, None)
        while len(self._tags) >= CACHED_MAX:
            del self._tags[next(iter(self._tags))]
        self._tags[tag.key] = tag

    def forget(self, key: ScopeKey) -> None:
        """The scope's version changed."""
        self._tags.pop(key, None)

    async def refresh(self, keys: tuple[ScopeKey, ...]) -> None:
        """Tell the sidecar that these scopes are in use, so that it keeps their slots."""
        for key in keys:
            try:
                await self._join(key, None)
            except RetireError:
                self.forget(key)  # superseded, cancelled or out of reach: the gates know which

    async def _join(self, key: ScopeKey, version: Version | None) -> Tag:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                joined = await self._link.client().join(key, version)
        except TimeoutError:
            raise Unavailable(
                f"the sidecar did not answer within {JOIN_TIMEOUT_S:g} s; retry"
            ) from None
        tag = Tag(Authority(key, joined.version, joined.generation), slot_ref(joined.slot))
        self.keep(tag)
        return tag


def slot_ref(message: pb.SlotRef) -> SlotRef:
    """The mailbox reference that the sidecar handed out."""
    return SlotRef(message.index, message.tenure, message.stamp)


class Admission:
    """The ASGI middleware: reads the headers, asks :class:`Admissions`, binds the publication."""

    def __init__(
        self,
        app: Asgi,
        settings: Settings,
        link: Callable[[], SidecarLink | None],
        authenticated: Callable[[], bool],
    ) -> None:
        self._app = app
        self._settings = settings
        self._link = link
        self._authenticated = authenticated

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Let the call through, bound to its version; or answer 400, 409 or 503."""
        publication = CURRENT.get()
        if publication is not None and _generates(scope):
            try:
                claim = claim_of(
                    scope["headers"], self._settings, authenticated=self._authenticated()
                )
                if claim is not None:
                    tag, mailbox = await self._admitted(claim)
                    publication.bind(tag, mailbox)
            except RetireError as error:
                await send_error(send, error)
                return
        await self._app(scope, receive, send)

    async def _admitted(self, claim: Claim) -> tuple[Tag, Mailbox]:
        link = self._link()
        if link is None:
            raise Unavailable(NO_SIDECAR)
        return await link.admissions.admit(claim), link.mailbox()


def _generates(scope: MutableMapping[str, Any]) -> bool:
    """Whether a call may make tokens: our own routes bind theirs themselves, a GET makes none."""
    return bool(
        scope["type"] == "http" and scope["method"] == "POST" and ROUTES not in scope["path"]
    )

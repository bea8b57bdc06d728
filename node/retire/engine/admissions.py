"""The current version of each scope, as this process knows it: joined once, asked again seldom.

Owns the join cache. Must never import vLLM or decide which version is current: the sidecar and the
mailbox do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from retire.engine.tag import Tag, slot_ref
from retire.mailbox import GateState
from retire.protocol.errors import RetireError, Unavailable, VersionConflict
from retire.protocol.versions import Authority

if TYPE_CHECKING:
    from retire.engine.headers import Claim
    from retire.engine.link import SidecarLink
    from retire.protocol.contract import Policy
    from retire.protocol.versions import ScopeKey, Version

JOIN_TIMEOUT_S: Final = 2.0
CACHED_MAX: Final = 65_536  # as many as a mailbox has slots
POLICY_S: Final = 2.0  # a changed policy is in force after this at the latest


@dataclass(frozen=True, slots=True)
class Known:
    """A scope as the sidecar described it."""

    tag: Tag
    policy: Policy | None
    parent: str | None  # as a call of this process has said; None: none has
    heard_s: float  # when, on the monotonic clock


class Admissions:
    """Current tags by scope. A cached one is good while its mailbox word says so: no RPC."""

    def __init__(self, link: SidecarLink) -> None:
        self._link = link
        self._known: dict[ScopeKey, Known] = {}

    async def admit(self, claim: Claim) -> Tag:
        """The tag a call gets; VersionConflict (stale or future), ScopeClosed or Unavailable."""
        mailbox = self._link.mailbox()
        known = self._known.get(claim.key)
        placed = known is not None and claim.parent in (None, known.parent)
        if known is not None and placed and mailbox.gate(known.tag.slot) is GateState.OPEN:
            tag = await self._fresh(known)
            if claim.version is not None and claim.version != tag.version:
                raise VersionConflict(claim.key, expected=claim.version, current=tag.version)
            return tag
        return await self._join(claim.key, claim.version, claim.parent)

    def policy(self, key: ScopeKey) -> Policy | None:
        """The scope's own policy for new input, as last heard."""
        known = self._known.get(key)
        return known.policy if known is not None else None

    def keep(self, tag: Tag) -> None:
        """Remember a tag learned otherwise (a SUPERSEDE made here); its policy is asked for."""
        known = self._known.get(tag.key)
        parent = known.parent if known is not None else None
        self._keep(Known(tag, self.policy(tag.key), parent, heard_s=float("-inf")))

    def forget(self, key: ScopeKey) -> None:
        """The scope's version changed."""
        self._known.pop(key, None)

    async def refresh(self, keys: tuple[ScopeKey, ...]) -> None:
        """Tell the sidecar that these scopes are in use, so that it keeps their slots."""
        for key in keys:
            try:
                await self._join(key, None)
            except RetireError:
                self.forget(key)  # superseded, cancelled or out of reach: the gates know which

    async def _fresh(self, known: Known) -> Tag:
        """Hear the policy again once in a while; the mailbox alone says whether the tag is good."""
        now_s = time.monotonic()
        if now_s - known.heard_s < POLICY_S:
            return known.tag
        self._keep(replace(known, heard_s=now_s))  # one call asks for all that come meanwhile
        try:
            return await self._join(known.tag.key, None)
        except Unavailable:
            return known.tag

    def _keep(self, known: Known) -> None:
        self._known.pop(known.tag.key, None)
        while len(self._known) >= CACHED_MAX:
            del self._known[next(iter(self._known))]
        self._known[known.tag.key] = known

    async def _join(self, key: ScopeKey, version: Version | None, parent: str | None = None) -> Tag:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                joined = await self._link.client().join(key, version, parent=parent)
        except TimeoutError:
            raise Unavailable(
                f"the sidecar did not answer within {JOIN_TIMEOUT_S:g} s; retry"
            ) from None
        tag = Tag(Authority(key, joined.version, joined.generation), slot_ref(joined.slot))
        known = self._known.get(key)
        parent = parent if parent is not None else known.parent if known is not None else None
        self._keep(Known(tag, joined.policy, parent, time.monotonic()))
        return tag

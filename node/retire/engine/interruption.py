"""A new input under ``interrupt`` or ``rollback``: an ordinary call that supersedes, then runs.

Drives the same hand-off as ``POST .../supersede``; its receipt is reported, and found by
``GET /v1/scopes/{scope}``. Nothing of the answer leaves before the old version is unpublishable.
Must never import vLLM or decide on a policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from retire.engine import tracing
from retire.engine.handoff import Handoff, NoSuccessor, Order, Refused, admission_of, inherits
from retire.engine.tag import Tag, slot_ref
from retire.protocol.errors import RetireError, Unavailable
from retire.protocol.versions import Authority
from retire.sidecar import convert

if TYPE_CHECKING:
    from retire.engine.asgi import Asgi, Message, Receive, Send
    from retire.engine.handoff import Outcome
    from retire.engine.link import SidecarLink
    from retire.engine.publication import Publication
    from retire.protocol.versions import Version

COMMIT_TIMEOUT_S: Final = 10.0  # the registry's own timeouts end long before


class Interruption:
    """One input's SUPERSEDE."""

    def __init__(self, order: Order, link: SidecarLink) -> None:
        order = tracing.begin_order(link.tracer, order)
        self.handoff = Handoff(order, client=link.client(), core=link.core)
        self._order = order
        self._link = link

    async def commit(self) -> Tag | Version:
        """COMMIT: the successor's tag; a version when this key had made it before.

        Then the call is a repetition, and what it wants is an answer from that version.
        """
        self._link.repeats.add(self.handoff)
        self._link.publications.spawn(self.handoff.run())
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                committed = await asyncio.shield(self.handoff.committed)
            if committed.replayed:
                self.handoff.decide(NoSuccessor())
                if not committed.receipt_json:  # it may be under way: wait for UNPUBLISHABLE
                    await self._link.repeats.receipt(self.handoff)
                return convert.version_from(committed.to)
        except BaseException as error:
            self.handoff.decide(NoSuccessor())
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"the sidecar did not answer within {COMMIT_TIMEOUT_S:g} s; "
                    "retry with the same Idempotency-Key"
                ) from None
            raise
        authority = Authority(
            self._order.key, convert.version_from(committed.to), committed.generation
        )
        tag = Tag(authority, slot_ref(committed.slot), inherit=inherits(self._order.contract))
        self._link.admissions.keep(Tag(tag.authority, tag.slot))
        return tag

    async def serve(
        self, app: Asgi, scope: Any, receive: Receive, publication: Publication, send: Send
    ) -> RetireError | None:
        """Run the application as the successor. An error: none of its answer was published."""
        held = AfterReceipt(self.handoff, publication, send)
        watching = asyncio.create_task(self._watch(publication))
        try:
            await app(scope, receive, held)
        finally:
            watching.cancel()
            self.handoff.decide(NoSuccessor())  # no effect once the successor's fate is known
        return held.failed

    async def _watch(self, publication: Publication) -> None:
        await publication.admitted.wait()
        self.handoff.decide(admission_of(publication))


class AfterReceipt:
    """The ``send`` of an interrupting call: holds its answer until the receipt is here.

    It never makes the application wait before its request is in the engine: the receipt waits for
    that, and some applications say something before they ask the engine.
    """

    def __init__(self, handoff: Handoff, publication: Publication, send: Send) -> None:
        self.failed: RetireError | None = None  # there is no receipt; nothing was sent
        self._handoff = handoff
        self._publication = publication
        self._send = send
        self._held: list[Message] = []
        self._released = False

    async def __call__(self, message: Message) -> None:
        """Take one message of the application."""
        if self._released:
            await self._send(message)
            return
        if self.failed is not None:
            return
        self._held.append(message)
        if self._publication.admitted.is_set():
            self._handoff.decide(admission_of(self._publication))
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._handoff.decide(_outcome(self._held))
        else:
            return
        await self._release()

    async def _release(self) -> None:
        try:
            await asyncio.shield(self._handoff.receipt)
        except RetireError as error:  # superseded, but nobody can say that its gates are closed
            self.failed = error
            self._publication.give_up()
            return
        self._released = True
        for message in self._held:
            await self._send(message)
        self._held.clear()


def _outcome(answer: list[Message]) -> Outcome:
    """What became of a request that never reached the engine, by its whole answer."""
    body = b"".join(message.get("body", b"") for message in answer)
    error: Any = None
    for line in (body, *(line.removeprefix(b"data: ") for line in body.splitlines())):
        with contextlib.suppress(ValueError, AttributeError):
            error = error or json.loads(line).get("error")
    status = answer[0].get("status", 200)
    if isinstance(error, dict):
        return Refused(error)
    return (
        Refused({"message": f"HTTP {status}", "code": status}) if status >= 400 else NoSuccessor()
    )

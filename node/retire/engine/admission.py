"""Admission: a tagged call is let in under a version of its scope, waits, or is refused.

Owns the ASGI middleware that authenticates a call, lets it wait its turn and binds its publication.
It stands inside the server's own middleware, so a call that fails vLLM's authentication never
reaches the sidecar. Must never import vLLM, nor decide which version is current (the sidecar and
the mailbox do) or what a policy means (``inputs.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from retire.engine import scope_calls, tracing, unfenceable
from retire.engine.handoff import Order
from retire.engine.headers import ROUTES, SCOPE, claim_of, first_values
from retire.engine.inputs import CallerLeft, Input
from retire.engine.interruption import Interruption
from retire.engine.publication import CURRENT
from retire.engine.receiving import Received
from retire.engine.replies import NO_SIDECAR, send_error
from retire.engine.tag import Tag
from retire.protocol.errors import RetireError, Unavailable, VersionConflict
from retire.sidecar.config import Auth

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from retire.engine.asgi import Asgi, Receive, Send
    from retire.engine.headers import Claim
    from retire.engine.inputs import Entry
    from retire.engine.link import SidecarLink
    from retire.engine.publication import Publication
    from retire.engine.settings import Settings
    from retire.sidecar.client import Mutation

COMMITS_MAX: Final = 8  # of one input: each lost one means that the scope has moved meanwhile
# The last part of paths that make no tokens: nothing there is a new input of a scope.
NO_INPUT: Final = frozenset(
    (
        *("tokenize", "detokenize", "count_tokens", "render", "derender", "cancel"),
        *("load_lora_adapter", "unload_lora_adapter"),
    )
)


@dataclass(frozen=True, slots=True)
class Call:
    """One ASGI call on its way in."""

    scope: MutableMapping[str, Any]
    receive: Received
    send: Send
    publication: Publication


@dataclass(frozen=True, slots=True)
class Entered:
    """A call that may act; ``interruption``: it superseded what ran, and runs as its successor."""

    entry: Entry
    tag: Tag
    interruption: Interruption | None = None


class Admission:
    """The middleware: whose the call is, whether it may act now, and under which version."""

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
        """Let the call through, bound to its version; or answer with the error of the tree."""
        publication = CURRENT.get()
        if publication is None:
            await self._app(scope, receive, send)
            return
        call = Call(scope, Received(receive), send, publication)
        publication.body = call.receive.given
        try:
            error = await self._admitted(call)
        except CallerLeft:
            return
        except RetireError as refusal:
            error = refusal
        if error is not None:
            await send_error(send, error)

    async def _admitted(self, call: Call) -> RetireError | None:
        """Serve the call; an error: nothing was answered yet."""
        claim = await self._claim(call)
        if claim is None:
            await self._app(call.scope, call.receive, call.send)
            return None
        link = self._linked()
        if not _is_input(call.scope):
            call.publication.bind(await link.admissions.admit(claim), link.mailbox())
            await self._app(call.scope, call.receive, call.send)
            return None
        entered = await self._enter(link, call, claim)
        call.publication.work = entered.entry.work  # from here on the guard ends it
        call.publication.bind(entered.tag, link.mailbox())
        _infer(link, call, entered)
        if entered.interruption is None:
            await self._app(call.scope, call.receive, call.send)
            return None
        return await entered.interruption.serve(
            self._app, call.scope, call.receive, call.publication, call.send
        )

    async def _claim(self, call: Call) -> Claim | None:
        """What the call claims, once it is known whose it is; None: nothing."""
        headers = call.scope["headers"]
        if self._settings.auth is not Auth.NONE:
            call.publication.caller = await self._linked().authenticator.tenant(headers)
        if not _generates(call.scope):
            return None
        claim = claim_of(
            headers,
            self._settings,
            authenticated=self._authenticated(),
            caller=call.publication.caller,
        )
        return claim if claim is not None and await self._fenceable(call, claim) else None

    async def _fenceable(self, call: Call, claim: Claim) -> bool:
        """False: it makes no tokens, and only a session that its client names ties it to a scope.

        Raises InvalidField naming what would have to be left out.
        """
        path = call.scope["path"]
        if unfenceable.is_pooling(path):
            if SCOPE in first_values(call.scope["headers"]):
                raise unfenceable.refuse_pooling(path, claim.key.scope)
            return False
        if unfenceable.keeps_output(path):
            body, store = await call.receive.body(), self._settings.responses_store
            if refusal := unfenceable.refusal_of_kept(body, store=store):
                raise refusal
        return True

    async def _enter(self, link: SidecarLink, call: Call, claim: Claim) -> Entered:
        """Until the call may act: at once, after a wait, or once it has superseded what ran."""
        one = Input(claim, left=call.receive.disconnected)
        mutation = None
        for _ in range(COMMITS_MAX):
            entry = await link.inputs.enter(one)
            if entry.supersede is None:
                return Entered(entry, entry.tag)
            try:
                mutation = mutation or await _mutation(call, entry)
                order = _order(entry, mutation)
                interruption = Interruption(order, link)
                made = await interruption.commit()
            except VersionConflict:
                entry.work.end()  # another change was first: look again
                continue
            except BaseException:
                entry.work.end()
                raise
            if isinstance(made, Tag):
                return Entered(entry, made, interruption)
            entry.work.end()  # a repetition: its version is known, and it wants an answer from it
            one = one.as_part_of(made)
        raise Unavailable(f"scope {claim.key.scope!r} is superseded again and again; retry")

    def _linked(self) -> SidecarLink:
        link = self._link()
        if link is None:
            raise Unavailable(NO_SIDECAR)
        return link


def _infer(link: SidecarLink, call: Call, entered: Entered) -> None:
    """Begin the span of its inference: below the change that it made, else below its caller's."""
    if not link.tracer.on:
        return
    headers = first_values(call.scope["headers"])
    parent = headers.get(scope_calls.TRACEPARENT, b"").decode("latin-1")
    if entered.interruption is not None:
        parent = entered.interruption.handoff.order.span.traceparent
    operation = tracing.operation_of(call.scope["path"])
    tracing.infer(link.tracer, call.publication, parent, operation)


async def _mutation(call: Call, entry: Entry) -> Mutation:
    """What the caller's headers say of the change; a key of its own stands for its body."""
    headers = first_values(call.scope["headers"])
    given = scope_calls.IDEMPOTENCY in headers
    return scope_calls.read_change(
        headers, entry.tag.version, digest=await call.receive.digest() if given else b""
    )


def _order(entry: Entry, mutation: Mutation) -> Order:
    assert entry.supersede is not None
    current = replace(mutation, expected=entry.tag.version)
    return Order(entry.tag.key, current, entry.supersede)


def _generates(scope: MutableMapping[str, Any]) -> bool:
    """Whether a call may make tokens: our own routes bind theirs themselves, a GET makes none."""
    return bool(
        scope["type"] == "http" and scope["method"] == "POST" and ROUTES not in scope["path"]
    )


def _is_input(scope: MutableMapping[str, Any]) -> bool:
    """Whether a call of a scope brings it new work. What is not known to be harmless does."""
    return scope["path"].rstrip("/").rpartition("/")[2] not in NO_INPUT

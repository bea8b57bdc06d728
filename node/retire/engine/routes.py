"""The ``/v1/scopes`` routes: convert, call the hand-off or the sidecar, stream. Thin.

Must never decide a version, nor open a seam. ``{scope:path}`` because a scope's name may hold a
slash; the name itself is read from the raw path, where ``%2F`` and UTF-8 are as they were sent.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from starlette.responses import JSONResponse, Response, StreamingResponse

from retire.engine import openapi, scope_calls, tracing
from retire.engine.handoff import Handoff, NoSuccessor, Order, Refused, inherits
from retire.engine.headers import first_values, path_scope, tenant_of
from retire.engine.publication import CURRENT
from retire.engine.replies import error_headers, error_json
from retire.engine.successor import Successor
from retire.engine.tag import Tag, slot_ref
from retire.protocol.codec import receipt_to_dict
from retire.protocol.errors import RetireError, Unavailable
from retire.protocol.versions import Authority, ScopeKey
from retire.sidecar import convert

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.applications import Starlette
    from starlette.requests import Request

    from retire.engine.link import SidecarLink
    from retire.engine.publication import Publication
    from retire.engine.settings import Settings
    from retire.sidecar.pb import node_pb2 as pb

    Endpoint = Callable[[Request], Awaitable[Response]]

_SCOPE: Final = "/v1/scopes/{scope:path}"
_STREAM_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
READ_TIMEOUT_S: Final = 10.0
COMMIT_TIMEOUT_S: Final = 10.0  # the registry's own timeouts end long before
TRANSITION_TIMEOUT_S: Final = 130.0  # it may wait out the longest lease, then the longest fence
T = TypeVar("T")


class Server(Protocol):
    """What the routes need to know of the server they are in."""

    settings: Settings
    authenticated: bool

    def link(self) -> SidecarLink:
        """The link to the sidecar; Unavailable when the server has none."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A committed SUPERSEDE whose successor is in the engine (or was refused)."""

    receipt: dict[str, Any]
    refused: bool
    successor: Successor
    publication: Publication


class ScopeRoutes:
    """Every route of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def attach(self, app: Starlette) -> None:
        """Register the routes on ``app``."""
        add = app.router.add_route
        add(f"{_SCOPE}/supersede", _answered(self.supersede), methods=["POST"])
        add(f"{_SCOPE}/cancel", _answered(self.cancel), methods=["POST"])
        add(f"{_SCOPE}/pause", _answered(self.pause), methods=["POST"])
        add(f"{_SCOPE}/resume", _answered(self.resume), methods=["POST"])
        add("/v1/scopes", _answered(self.list_scopes), methods=["GET"])
        add(openapi.PATH, self.contract, methods=["GET"])
        add(_SCOPE, _answered(self.get_scope), methods=["GET"])

    async def contract(self, request: Request) -> Response:
        """GET /retire/openapi.json: these routes, for tools. Nobody's data, so no token."""
        del request
        return JSONResponse(openapi.document())

    async def get_scope(self, request: Request) -> Response:
        """GET /v1/scopes/{scope}."""
        asked = self._server.link().client().inspect(self._key(request))
        view = await _within(READ_TIMEOUT_S, asked)
        return JSONResponse(scope_calls.scope_json(view))

    async def list_scopes(self, request: Request) -> Response:
        """GET /v1/scopes: the caller's tenant only."""
        tenant = self._tenant(request)
        views = await _within(READ_TIMEOUT_S, self._server.link().client().list(tenant))
        own = [scope_calls.scope_json(view) for view in views if view.key.tenant == tenant]
        return JSONResponse({"scopes": own})

    async def cancel(self, request: Request) -> Response:
        """POST .../cancel: terminal; answers with the receipt."""
        return await self._transition(request, "cancel")

    async def pause(self, request: Request) -> Response:
        """POST .../pause: the work stops, its authority stays."""
        return await self._transition(request, "pause")

    async def resume(self, request: Request) -> Response:
        """POST .../resume: it goes on."""
        return await self._transition(request, "resume")

    async def supersede(self, request: Request) -> Response:
        """POST .../supersede: the receipt first, then the successor's ordinary chunks."""
        key = self._key(request, "supersede")
        headers = first_values(request.scope["headers"])
        body = scope_calls.read_object(await request.body())
        call = scope_calls.read_supersede(body, headers)
        link = self._server.link()
        order = Order(key, call.mutation, call.contract, successor=call.request is not None)
        order = tracing.begin_order(link.tracer, order)
        handoff = Handoff(order, client=link.client(), core=link.core)
        if call.request is not None:
            link.foresee(key, call.request)
        link.repeats.add(handoff)
        link.publications.spawn(handoff.run())
        try:
            committed = await _within(COMMIT_TIMEOUT_S, asyncio.shield(handoff.committed))
            if call.request is None or committed.replayed:
                return await self._without_successor(handoff, committed, call)
            started = await self._start(handoff, committed, call.request, request)
        finally:
            handoff.decide(NoSuccessor())  # no effect once the successor's fate is known
        return await _response(started, call, request)

    async def _without_successor(
        self, handoff: Handoff, committed: pb.Committed, call: scope_calls.SupersedeCall
    ) -> Response:
        """Retired now, successor later; or a replay, which never runs a successor twice."""
        handoff.decide(NoSuccessor())
        if committed.receipt_json:
            receipt = {**json.loads(committed.receipt_json), "replayed": committed.replayed}
        else:
            receipt = receipt_to_dict(await self._server.link().repeats.receipt(handoff))
            receipt["replayed"] = committed.replayed
        answer = _echo(call)
        if call.request is not None and call.request["stream"]:
            text = receipt_event(receipt) + "data: [DONE]\n\n"
            return Response(text, media_type="text/event-stream", headers=answer)
        return JSONResponse({"receipt": receipt, "response": None}, headers=answer)

    async def _start(
        self, handoff: Handoff, committed: pb.Committed, body: dict[str, Any], request: Request
    ) -> Started:
        """RESUME: bind this response to the new version and let its request into the engine."""
        link = self._server.link()
        publication = CURRENT.get()
        assert publication is not None, "the guard opens one for every route of ours"
        tag = Tag(
            Authority(handoff.order.key, convert.version_from(committed.to), committed.generation),
            slot_ref(committed.slot),
            inherit=inherits(handoff.order.contract),
        )
        link.admissions.keep(Tag(tag.authority, tag.slot))
        publication.preamble.clear()
        publication.work = await link.inputs.begin(tag)  # an explicit revision asks no policy
        publication.bind(tag, link.mailbox())
        publication.body = lambda: json.dumps(body).encode()
        operation = tracing.CHAT if "messages" in body else tracing.TEXT
        tracing.infer(link.tracer, publication, handoff.order.span.traceparent, operation)
        successor = Successor(body, request, publication)
        try:
            outcome = await successor.admit()
            handoff.decide(outcome)
            receipt = receipt_to_dict(await asyncio.shield(handoff.receipt))
        except BaseException:
            await successor.close()
            publication.unbind()
            publication.preamble.set()
            raise
        publication.extra["receipt"] = receipt
        return Started(receipt, isinstance(outcome, Refused), successor, publication)

    async def _transition(self, request: Request, verb: str) -> Response:
        key = self._key(request, verb)
        body = scope_calls.read_object(await request.body())
        mutation = scope_calls.read_mutation(body, first_values(request.scope["headers"]))
        link = self._server.link()
        client = link.client()
        call = {"cancel": client.cancel, "pause": client.pause, "resume": client.resume}[verb]
        with tracing.change(link.tracer, verb, key, mutation) as traced:
            reply = await _within(TRANSITION_TIMEOUT_S, call(key, traced))
        headers = {"idempotency-key": mutation.idempotency_key}
        return JSONResponse(scope_calls.transition_json(reply), headers=headers)

    def _key(self, request: Request, verb: str = "") -> ScopeKey:
        return ScopeKey(self._tenant(request), path_scope(request.scope, verb))

    def _tenant(self, request: Request) -> str:
        found = first_values(request.scope["headers"])
        publication = CURRENT.get()
        return tenant_of(
            found,
            self._server.settings,
            authenticated=self._server.authenticated,
            caller=publication.caller if publication is not None else None,
        )


def receipt_event(receipt: dict[str, Any]) -> str:
    """The first event of a SUPERSEDE's stream."""
    return f"event: retire.receipt\ndata: {json.dumps(receipt, separators=(',', ':'))}\n\n"


async def _response(
    started: Started, call: scope_calls.SupersedeCall, request: Request
) -> Response:
    if started.successor.stream:
        return StreamingResponse(
            _events(started), media_type="text/event-stream", headers=_STREAM_HEADERS | _echo(call)
        )
    started.publication.preamble.set()
    answer: dict[str, Any] = {"receipt": started.receipt, "response": None}
    result = await _unless_disconnected(started.successor, request)
    if "error" in result:
        answer["error"] = result["error"]
    else:
        answer["response"] = result
    return JSONResponse(answer, headers=_echo(call))


async def _events(started: Started) -> AsyncIterator[str]:
    try:
        yield receipt_event(started.receipt)
        started.publication.preamble.set()  # from here on every frame is gated
        async for chunk in started.successor.chunks():
            yield chunk
    finally:
        started.publication.preamble.set()
        await started.successor.close()


async def _unless_disconnected(successor: Successor, request: Request) -> dict[str, Any]:
    """The successor's answer; its request is aborted when the caller hangs up meanwhile."""
    answer = asyncio.create_task(successor.answer())
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else {"error": {"message": "client disconnected"}}
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _within(seconds: float, answer: Awaitable[T]) -> T:
    """The sidecar's answer; Unavailable when it is frozen: nothing is known to have changed."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise Unavailable(
            f"the sidecar did not answer within {seconds:g} s; retry with the same Idempotency-Key"
        ) from None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _echo(call: scope_calls.SupersedeCall) -> dict[str, str]:
    return {"idempotency-key": call.mutation.idempotency_key}


def _answered(route: Endpoint) -> Endpoint:
    """Errors of the tree become their JSON and status."""

    async def endpoint(request: Request) -> Response:
        try:
            return await route(request)
        except RetireError as error:
            return JSONResponse(error_json(error), error.http_status, error_headers(error))

    return endpoint

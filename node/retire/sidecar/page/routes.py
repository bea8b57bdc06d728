"""The routes of the live page: three static files and ``/live.json``. Thin; read-only.

No build step and nothing from elsewhere: the browser is told to load nothing but these files, and
to refuse every string that would become markup.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retire.protocol.errors import InvalidField, RetireError
from retire.sidecar.page.facts import (
    SCOPES_DEFAULT,
    SCOPES_MAX,
    Query,
    node_facts,
    scope_facts,
    transition_facts,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from retire.sidecar.page.pins import Pins
    from retire.sidecar.page.viewers import Viewers
    from retire.sidecar.parts import Parts

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
    "/story.js": ("story.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_DIGITS_MAX: Final = 19
_MATCH_MAX: Final = 200


class LivePage:
    """The routes of one sidecar."""

    def __init__(
        self, parts: Parts, viewers: Viewers, pins: Pins, *, wall_s: Callable[[], float]
    ) -> None:
        self._parts = parts
        self._viewers = viewers
        self._pins = pins
        self._wall_s = wall_s

    def routes(self) -> list[BaseRoute]:
        """Static files need no token: they hold nothing but the page."""
        files = [Route(path, _file(*which)) for path, which in _FILES.items()]
        return [*files, Route("/live.json", self._live)]

    async def _live(self, request: Request) -> Response:
        try:
            tenant = await self._viewers.tenant(request)
            body = await self._facts(_query(request, tenant))
        except RetireError as error:
            said = {"error": {"code": error.code, "message": str(error)}}
            asks = {"www-authenticate": "Bearer"} if error.http_status == 401 else {}
            return JSONResponse(said, error.http_status, HEADERS | asks)
        return JSONResponse(body, headers=HEADERS)

    async def _facts(self, query: Query) -> dict[str, Any]:
        parts = self._parts
        pins = await self._pins.by_tenant(query.tenant)
        return {
            "now_unix_s": self._wall_s(),
            "tenant": query.tenant or None,
            "trace_url": parts.ports.settings.trace_url,
            "node": node_facts(parts, every_tenant=not query.tenant),
            "scopes": scope_facts(parts.ports.scopes, query, now_s=parts.ports.clock()),
            "transitions": transition_facts(parts.ports.journal, query),
            "pins": pins,
        }


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    body = resources.files("retire.sidecar.page").joinpath("static", name).read_bytes()

    async def answer(request: Request) -> Response:
        del request
        return Response(body, media_type=media_type, headers=HEADERS)

    return answer


def _query(request: Request, tenant: str) -> Query:
    given = request.query_params
    match = given.get("match", "")
    if len(match) > _MATCH_MAX:
        raise InvalidField("match", match[:40], f"at most {_MATCH_MAX} characters")
    return Query(
        tenant=tenant,
        after=_number(given.get("after"), "after", default=0, high=2**63),
        limit=_number(given.get("limit"), "limit", default=SCOPES_DEFAULT, high=SCOPES_MAX),
        match=match,
    )


def _number(text: str | None, name: str, *, default: int, high: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX or int(text) > high:
        raise InvalidField(name, text[:40], f"a number in 0..{high}")
    return int(text)

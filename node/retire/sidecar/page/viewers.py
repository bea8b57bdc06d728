"""Who may look, and at which tenant: a bearer token where the API asks for one.

Without authentication only this host may look, under a name of this host: a page of the Internet
that has pointed its own name here (DNS rebinding) sees nothing. Must never keep or repeat a token.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from retire.protocol.errors import Forbidden, Unauthenticated

if TYPE_CHECKING:
    from starlette.requests import Request

    from retire.sidecar.authentication import Authenticator

_LOCAL_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


class Viewers:
    """Request -> the tenant it may see. ``authenticator`` None: RETIRE_AUTH=none."""

    def __init__(self, authenticator: Authenticator | None) -> None:
        self._authenticator = authenticator

    async def tenant(self, request: Request) -> str:
        """The tenant to be shown; "": every one.

        Raises Unauthenticated, Forbidden, or Unavailable when it cannot be told now.
        """
        asked = request.headers.get("x-retire-tenant", "")
        if self._authenticator is None:
            _check_local(request)
            return asked
        caller = await self._authenticator.authenticate(_token(request))
        if asked not in ("", caller.tenant):
            raise Forbidden(f"x-retire-tenant must be absent or {caller.tenant!r}, the token's")
        return caller.tenant


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("this call needs the header 'Authorization: Bearer <token>'")
    return token.strip()


def _check_local(request: Request) -> None:
    peer = request.client.host if request.client else ""
    named = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if not _is_loopback(peer) or named not in _LOCAL_NAMES:
        raise Forbidden(
            "without authentication (RETIRE_AUTH=none) only this host may look,"
            " as http://127.0.0.1:<port> or http://localhost:<port>"
        )


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False

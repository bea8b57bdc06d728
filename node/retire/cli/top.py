"""``retire top``: the node now, drawn again every other second; the live page for a terminal."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from retire.cli.options import Tenant, Token

ANSWER_S = 10.0
PAGE_DEFAULT = "http://127.0.0.1:8001"
Page = Annotated[
    str, typer.Option(envvar="RETIRE_PAGE_URL", help="The live page, as `retire serve` prints it.")
]


def top(
    page: Page = PAGE_DEFAULT,
    tenant: Tenant = None,
    token: Token = None,
    once: Annotated[bool, typer.Option("--once", help="Draw once and leave.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between looks.")] = 2,
    scopes: Annotated[int, typer.Option(min=0, help="Rows of the table of scopes.")] = 15,
) -> None:
    """Watch scopes, transitions and pins of a node, live."""
    from rich.console import Console
    from rich.live import Live

    from retire.cli.top_view import screen

    console = Console()
    if once:
        console.print(screen(look(page, tenant, token), scopes=scopes))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(look(page, tenant, token), scopes=scopes), refresh=True)
            time.sleep(every_s)


def look(page: str, tenant: str | None, token: str | None) -> dict[str, Any]:
    """What the node says now.

    Raises Unauthenticated, Forbidden, or Unavailable when nobody answers as a live page would.
    """
    import httpx

    from retire.protocol.errors import Unavailable

    headers = {"authorization": f"Bearer {token}"} if token else {}
    if tenant:
        headers["x-retire-tenant"] = tenant
    try:
        answer = httpx.get(f"{page.rstrip('/')}/live.json", headers=headers, timeout=ANSWER_S)
        body = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"no live page at {page}: {error}; see --page") from None
    if answer.is_success and isinstance(body, dict) and "transitions" in body:
        return body
    raise _error(answer.status_code, body, page)


def _error(status: int, body: object, page: str) -> Exception:
    from retire.protocol.errors import Forbidden, Unauthenticated, Unavailable

    told = body.get("error") if isinstance(body, dict) else None
    said = str(told.get("message", status)) if isinstance(told, dict) else f"HTTP {status}"
    match status:
        case 401:
            return Unauthenticated(said)
        case 403:
            return Forbidden(said)
        case _:
            return Unavailable(f"no live page at {page}: {said}; see --page")

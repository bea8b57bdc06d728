"""``retire status``: every scope of a tenant, or one scope in full."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from retire.cli.options import (
    URL_DEFAULT,
    ApiKey,
    AsJson,
    Tenant,
    Token,
    Url,
    client_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retire.client import ScopeInfo


def status(
    scope: Annotated[str | None, typer.Argument(metavar="[SCOPE]", help="Only this one.")] = None,
    url: Url = URL_DEFAULT,
    tenant: Tenant = None,
    token: Token = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show scopes: version, phase, requests, pins."""
    with client_of(url, tenant, token, api_key) as client:
        found = client.scopes() if scope is None else (client.scope(scope).get(),)
    if as_json:
        print(json.dumps({"scopes": [dict(info.raw) for info in found]}))
    elif not found:
        print("no scopes: send a request with the header x-retire-scope to open one")
    else:
        _print(found)


def _print(scopes: Sequence[ScopeInfo]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for title in ("SCOPE", "TENANT", "VERSION", "PHASE", "REQUESTS", "PINNED"):
        table.add_column(title, justify="right" if title in ("REQUESTS", "PINNED") else "left")
    for info in scopes:
        phase = "cancelled" if info.cancelled else "paused" if info.paused else info.phase
        requests = len(info.raw.get("requests") or ())
        table.add_row(
            info.name, info.tenant, str(info.version), phase, str(requests), str(info.pinned_blocks)
        )
    Console().print(table)

"""Options that several commands share, and the client they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from retire.protocol.versions import Version

if TYPE_CHECKING:
    from retire.client import Retire

Url = Annotated[str, typer.Option(envvar="RETIRE_URL", help="Where `retire serve` listens.")]
Tenant = Annotated[
    str | None, typer.Option(envvar="RETIRE_TENANT", help="Where authentication is off.")
]
Token = Annotated[
    str | None, typer.Option(envvar="RETIRE_TOKEN", help="Bearer token; it names the tenant.")
]
ApiKey = Annotated[
    str | None, typer.Option(envvar="RETIRE_API_KEY", help="vLLM's own key (its --api-key).")
]
ScopeName = Annotated[str, typer.Argument(metavar="SCOPE", help="Name of the scope.")]
Expected = Annotated[
    str,
    typer.Option("--expected", metavar="TERM.EPOCH", help="Version that must be current, as 1.4."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="Repeat a call safely; a fresh one by default.")
]

URL_DEFAULT = "http://127.0.0.1:8000"


def client_of(url: str, tenant: str | None, token: str | None, api_key: str | None) -> Retire:
    """The client for the shared options."""
    from retire.client import Retire
    from retire.telemetry import names, tracing

    tracing.install(names.SERVICE_CLIENT)
    return Retire(url, tenant=tenant, token=token, api_key=api_key)


def expected_of(text: str) -> Version:
    """``--expected`` as a version; InvalidField names the option."""
    return Version.parse(text, field="--expected")

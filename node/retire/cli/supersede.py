"""``retire supersede``: advance a scope, print the receipt, stream the successor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retire.cli.options import (
    URL_DEFAULT,
    ApiKey,
    AsJson,
    Expected,
    IdempotencyKey,
    ScopeName,
    Tenant,
    Token,
    Url,
    client_of,
    expected_of,
)
from retire.protocol.errors import InvalidField

if TYPE_CHECKING:
    from retire.client import Successor


def supersede(
    scope: ScopeName,
    expected: Expected,
    request: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Successor's OpenAI body as JSON; - reads stdin."),
    ] = None,
    url: Url = URL_DEFAULT,
    tenant: Tenant = None,
    token: Token = None,
    api_key: ApiKey = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Make SCOPE's current version unpublishable and start its successor."""
    with client_of(url, tenant, token, api_key) as client:
        successor = client.scope(scope).supersede(
            request=None if request is None else _read(request),
            expected_version=expected_of(expected),
            idempotency_key=idempotency_key,
        )
        if as_json:
            _print_json(successor)
        else:
            _print_text(successor)


def _read(name: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidField("--request", name, f"a readable file ({error.strerror})") from error
    try:
        body = json.loads(text)
    except ValueError as error:
        raise InvalidField("--request", name, f"a file of JSON ({error})") from error
    if not isinstance(body, dict):
        raise InvalidField("--request", name, "a JSON object: an OpenAI chat or completion body")
    return body


def _print_text(successor: Successor) -> None:
    from retire.cli.receipts import show

    show(successor.receipt)
    if successor.reply is not None:
        print(successor.reply.text)
    for chunk in successor:
        print(chunk.text, end="", flush=True)
    print()


def _print_json(successor: Successor) -> None:
    from retire.protocol.codec import receipt_to_dict

    print(json.dumps({"receipt": receipt_to_dict(successor.receipt)}))
    if successor.reply is not None:
        print(json.dumps(successor.reply.raw))
    for chunk in successor:
        print(json.dumps(chunk.raw), flush=True)

"""``retire pause`` and ``retire resume``: hold a scope's work, keep its authority."""

from __future__ import annotations

from retire.cli.options import (
    URL_DEFAULT,
    ApiKey,
    Expected,
    IdempotencyKey,
    ScopeName,
    Tenant,
    Token,
    Url,
    client_of,
    expected_of,
)


def pause(
    scope: ScopeName,
    expected: Expected,
    url: Url = URL_DEFAULT,
    tenant: Tenant = None,
    token: Token = None,
    api_key: ApiKey = None,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Stop SCOPE's work for now; its version stays current."""
    with client_of(url, tenant, token, api_key) as client:
        done = client.scope(scope).pause(
            expected_version=expected_of(expected), idempotency_key=idempotency_key
        )
    print(f"{scope} paused at {done.version}")


def resume(
    scope: ScopeName,
    expected: Expected,
    url: Url = URL_DEFAULT,
    tenant: Tenant = None,
    token: Token = None,
    api_key: ApiKey = None,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Let SCOPE's paused work go on."""
    with client_of(url, tenant, token, api_key) as client:
        done = client.scope(scope).resume(
            expected_version=expected_of(expected), idempotency_key=idempotency_key
        )
    print(f"{scope} resumed at {done.version}")

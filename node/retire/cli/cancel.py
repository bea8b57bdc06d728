"""``retire cancel``: retire a scope for good."""

from __future__ import annotations

import json

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


def cancel(
    scope: ScopeName,
    expected: Expected,
    url: Url = URL_DEFAULT,
    tenant: Tenant = None,
    token: Token = None,
    api_key: ApiKey = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Cancel SCOPE. Terminal: it has no successor."""
    from retire.cli.receipts import show

    with client_of(url, tenant, token, api_key) as client:
        done = client.scope(scope).cancel(
            expected_version=expected_of(expected), idempotency_key=idempotency_key
        )
    if as_json:
        print(json.dumps(done.raw))
        return
    if done.receipt is not None:
        show(done.receipt)
    print(f"{scope} cancelled at {done.version}")

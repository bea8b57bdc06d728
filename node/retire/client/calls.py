"""Every HTTP call of the API (docs/http-api.md), built as a value: path, headers and body.

Must never import httpx; the sync and the async client send the same values.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from retire.protocol.codec import contract_to_dict
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.protocol.contract import Contract, Policy
    from retire.protocol.versions import Version

HEADER_SCOPE: Final = "x-retire-scope"
HEADER_VERSION: Final = "x-retire-version"
HEADER_TENANT: Final = "x-retire-tenant"
HEADER_TOKEN: Final = "x-retire-token"
HEADER_AUTHORIZATION: Final = "authorization"
HEADER_ON_NEW_INPUT: Final = "x-retire-on-new-input"
HEADER_PARENT: Final = "x-retire-parent"
HEADER_IDEMPOTENCY: Final = "idempotency-key"
CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``repeatable``: sending it twice has the effect of sending it once.

    Header values are sent as UTF-8: a scope may have any printable name.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    repeatable: bool = True
    change: str = ""  # supersede, cancel, pause, resume; empty: it changes no scope
    scope: str = ""  # of a change


@dataclass(frozen=True, slots=True)
class Address:
    """A scope of a tenant; tenant None: the one the server knows from authentication."""

    scope: str
    tenant: str | None
    on_new_input: Policy | None = field(default=None, compare=False)  # of new inputs sent to it
    parent: str | None = field(default=None, compare=False)  # the scope it is part of

    def __post_init__(self) -> None:
        for name in (self.scope, self.parent if self.parent is not None else self.scope):
            ScopeKey(self.tenant if self.tenant is not None else "default", name)

    def headers(self, version: Version | None = None) -> dict[str, str]:
        """The tag of an OpenAI call. Without ``version``: whatever is current, as a new input."""
        headers = {HEADER_SCOPE: self.scope}
        if self.parent is not None:
            headers[HEADER_PARENT] = self.parent
        if version is not None:
            headers[HEADER_VERSION] = str(version)
        elif self.on_new_input is not None:
            headers[HEADER_ON_NEW_INPUT] = self.on_new_input.value
        return headers | tenant_headers(self.tenant)

    def path(self, action: str = "") -> str:
        """``/v1/scopes/{scope}[/action]``."""
        return f"/v1/scopes/{quote(self.scope, safe='')}{action and '/' + action}"


def tenant_headers(tenant: str | None) -> dict[str, str]:
    """The tenant header, where the server does not know the tenant itself."""
    return {} if tenant is None else {HEADER_TENANT: tenant}


def infer(
    address: Address, path: str, body: Mapping[str, Any], *, version: Version | None = None
) -> Call:
    """A tagged OpenAI call. Not repeatable: a second one would generate a second time."""
    return Call("POST", path, address.headers(version), body, repeatable=False)


def supersede(
    address: Address,
    *,
    expected: Version,
    contract: Contract,
    request: Mapping[str, Any] | None,
    key: str | None,
) -> Call:
    """SUPERSEDE(scope, expected -> expected + 1, request, contract)."""
    body: dict[str, Any] = {
        "expected_version": str(expected),
        "contract": contract_to_dict(contract),
    }
    if request is not None:
        body["request"] = dict(request)
    return _mutation(address, "supersede", body, key)


def resend(address: Address, request: Mapping[str, Any], version: Version) -> Call:
    """The successor's request by itself, for a SUPERSEDE that is known to be committed."""
    path = CHAT if "messages" in request else COMPLETION
    return infer(address, path, request, version=version)


def transition(address: Address, action: str, *, expected: Version, key: str | None) -> Call:
    """Cancel, pause or resume."""
    return _mutation(address, action, {"expected_version": str(expected)}, key)


def get(address: Address) -> Call:
    """Read one scope."""
    return Call("GET", address.path(), tenant_headers(address.tenant))


def list_scopes(tenant: str | None) -> Call:
    """Read every scope of the tenant."""
    return Call("GET", "/v1/scopes", tenant_headers(tenant))


def _mutation(address: Address, action: str, body: Mapping[str, Any], key: str | None) -> Call:
    headers = tenant_headers(address.tenant) | {HEADER_IDEMPOTENCY: key or uuid.uuid4().hex}
    return Call("POST", address.path(action), headers, body, change=action, scope=address.scope)

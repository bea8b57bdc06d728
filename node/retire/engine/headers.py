"""The x-retire-* headers of a call: which scope and version it claims. Pure; must never do IO.

Errors name the header and the fix; nothing of a bad value longer than 120 characters is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from retire.protocol.contract import Policy
from retire.protocol.errors import Forbidden, InvalidField, Unauthenticated
from retire.protocol.versions import ScopeKey, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping

    from retire.engine.settings import Settings

    RawHeaders = Iterable[tuple[bytes, bytes]]

SCOPE: Final = b"x-retire-scope"
VERSION: Final = b"x-retire-version"
TENANT: Final = b"x-retire-tenant"
PARENT: Final = b"x-retire-parent"
ON_NEW_INPUT: Final = b"x-retire-on-new-input"
AUTHORIZATION: Final = b"authorization"
TOKEN: Final = b"x-retire-token"  # where Authorization carries vLLM's own key
SESSION: Final = (b"x-claude-code-session-id", b"session-id", b"x-session-id")
ROUTES: Final = "/v1/scopes"
_NO_TOKEN: Final = "this call needs the header 'Authorization: Bearer <token>'"


@dataclass(frozen=True, slots=True)
class Claim:
    """The scope a call names; ``version`` None: the current one, and the call is a new input."""

    key: ScopeKey
    version: Version | None
    policy: Policy | None = None  # for this input, where the scope itself has none
    parent: str | None = None  # the scope it is part of, if it says so


def tag_headers(settings: Settings) -> frozenset[bytes]:
    """The headers whose presence makes a call a scope's."""
    return frozenset(
        (SCOPE, VERSION, PARENT, ON_NEW_INPUT, *(SESSION if settings.scope_from_session else ()))
    )


def claim_of(
    headers: RawHeaders, settings: Settings, *, authenticated: bool, caller: str | None = None
) -> Claim | None:
    """Read the tag of a call; None: it has none. Raises InvalidField naming the header."""
    found = _single(headers)
    version = _version(found.get(VERSION))
    policy = _policy(found.get(ON_NEW_INPUT))
    parent = _text(found, PARENT)
    scope = _scope(found, from_session=settings.scope_from_session)
    if scope is None:
        given = {
            "x-retire-version": version,
            "x-retire-on-new-input": policy,
            "x-retire-parent": parent,
        }
        for name, value in given.items():
            if value is not None:
                raise InvalidField("x-retire-scope", None, f"present when {name} is")
        return None
    tenant = tenant_of(found, settings, authenticated=authenticated, caller=caller)
    try:
        claim = Claim(ScopeKey(tenant, scope), version, policy, parent)
    except InvalidField as error:
        raise _renamed(error, scope, tenant) from None
    if parent is not None:
        _check_parent(claim.key, parent)
    return claim


def token_of(headers: RawHeaders) -> str:
    """The bearer token of a call. Raises Unauthenticated saying how to send one."""
    found = first_values(headers)
    token = found.get(TOKEN)
    if token is None:
        scheme, _, token = found.get(AUTHORIZATION, b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated(f"{_NO_TOKEN}; got {'another scheme' if scheme else 'none'}")
    try:
        text = token.strip().decode("ascii")
    except UnicodeDecodeError:
        raise Unauthenticated("the bearer token must be ASCII") from None
    if not text:
        raise Unauthenticated(f"{_NO_TOKEN}; got an empty one")
    return text


def tenant_of(
    found: Mapping[bytes, bytes],
    settings: Settings,
    *,
    authenticated: bool,
    caller: str | None = None,
) -> str:
    """The tenant a call acts for. ``caller``: the tenant of its token, where tokens are asked for;
    ``authenticated``: vLLM's own key was checked."""
    value = found.get(TENANT)
    if caller is not None:
        if value not in (None, caller.encode()):
            raise Forbidden(
                f"x-retire-tenant must be absent or {caller!r}, the tenant of the bearer token"
            )
        return caller
    if value is None:
        return settings.tenant
    if authenticated and not settings.trust_tenant_header:
        raise InvalidField(
            "x-retire-tenant", value.decode("latin-1"),
            "absent: this server authenticates, so a header cannot choose the tenant",
        )  # fmt: skip
    tenant = value.decode("latin-1")
    try:
        ScopeKey(tenant, "-")
    except InvalidField as error:
        raise _renamed(error, "-", tenant) from None
    return tenant


def first_values(headers: RawHeaders) -> dict[bytes, bytes]:
    """Header name -> its first value."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found.setdefault(name, value)
    return found


def path_scope(scope: MutableMapping[str, Any], verb: str = "") -> str:
    """The scope in ``/v1/scopes/{scope}[/verb]``: percent-encoded UTF-8; ``%2F`` is a slash."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    _, _, rest = raw.partition(f"{ROUTES}/".encode())
    encoded = rest.partition(b"?")[0].removesuffix(f"/{verb}".encode() if verb else b"")
    try:
        return unquote_to_bytes(encoded).decode("utf-8")
    except UnicodeDecodeError:
        text = encoded.decode("latin-1")
        raise InvalidField("scope", text, "percent-encoded UTF-8 in the path") from None


def _single(headers: RawHeaders) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found and name.startswith(b"x-retire-") and found[name] != value:
            raise InvalidField(name.decode(), value.decode("latin-1"), "given once")
        found.setdefault(name, value)
    return found


def _version(value: bytes | None) -> Version | None:
    if value is None:
        return None
    try:
        return Version.parse(value.decode("latin-1").strip(), field="x-retire-version")
    except InvalidField as error:
        if error.field == "x-retire-version":
            raise
        raise InvalidField(
            "x-retire-version", value.decode("latin-1"), "within 0..2^24-1 . 0..2^40-1"
        ) from None


def _policy(value: bytes | None) -> Policy | None:
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    try:
        return Policy(text)
    except ValueError:
        words = ", ".join(policy.value for policy in Policy)
        raise InvalidField("x-retire-on-new-input", text, f"one of {words}") from None


def _scope(found: Mapping[bytes, bytes], *, from_session: bool) -> str | None:
    name = SCOPE
    if SCOPE not in found and from_session:
        name = next((header for header in SESSION if header in found), SCOPE)
    return _text(found, name)


def _text(found: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        shown = value.decode("latin-1")
        raise InvalidField(
            name.decode(), shown, "UTF-8 (or percent-encode it in the path)"
        ) from None


def _check_parent(key: ScopeKey, parent: str) -> None:
    if parent == key.scope:
        raise InvalidField("x-retire-parent", parent, "another scope than x-retire-scope")
    try:
        ScopeKey(key.tenant, parent)
    except InvalidField as error:
        raise error.renamed("x-retire-parent", parent) from None


def _renamed(error: InvalidField, scope: str, tenant: str) -> InvalidField:
    """The same complaint under the name of the header that carried the value."""
    value = tenant if error.field == "tenant" else scope
    return error.renamed(f"x-retire-{error.field}", value)

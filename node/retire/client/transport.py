"""What both clients do with httpx alike: requests out of calls, errors out of responses.

Owns the translation of httpx exceptions; httpx is imported here and in the two clients only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import httpx

from retire.client import tracing
from retire.client.calls import HEADER_AUTHORIZATION, HEADER_TOKEN, HEADER_VERSION
from retire.client.errors import StreamCorrupt, Unreachable, error_of
from retire.client.reading import object_of
from retire.protocol.errors import InvalidField
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.client.calls import Call
    from retire.protocol.errors import RetireError

CONNECT_TIMEOUT_S = 5.0


TOKEN_ENV: Final = "RETIRE_TOKEN"


def options(url: str, token: str | None, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Arguments of ``httpx.Client`` and ``AsyncClient``. ``token`` None: ``$RETIRE_TOKEN``."""
    if not url.startswith(("http://", "https://")):
        raise InvalidField("url", url, "an http:// or https:// address")
    token = os.environ.get(TOKEN_ENV) if token is None else token
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": credentials(token or None, api_key),
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
    }


def credentials(token: str | None, api_key: str | None) -> dict[str, str]:
    """The headers that say who calls. vLLM looks for its own key in Authorization, so the token
    has another header where both are sent. InvalidField never repeats a value."""
    for name, value in (("token", token), ("api_key", api_key)):
        if value is not None and not (value.isascii() and value.isprintable()):
            raise InvalidField(name, "...", "printable ASCII, without a line end")
    if api_key is None:
        return {} if token is None else {HEADER_AUTHORIZATION: f"Bearer {token}"}
    own = {} if token is None else {HEADER_TOKEN: token}
    return {HEADER_AUTHORIZATION: f"Bearer {api_key}"} | own


def request_of(http: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    """The request of a call; header values travel as UTF-8."""
    said = {**tracing.headers(), **call.headers}
    headers = [(name.encode(), value.encode()) for name, value in said.items()]
    return http.build_request(
        call.method, call.path, headers=httpx.Headers(headers), json=call.body
    )


def failure_of(response: httpx.Response) -> RetireError:
    """The error of a response whose body has been read."""
    try:
        body: object = response.json()
    except ValueError:
        body = {"message": response.text[:200]}
    retry_after_s = _seconds(response.headers.get("retry-after"))
    return error_of(body, status=response.status_code, retry_after_s=retry_after_s)


def unreachable(call: Call, url: object, error: httpx.TransportError) -> Unreachable:
    """The error of a call that got no answer."""
    reason = str(error) or type(error).__name__
    return Unreachable(f"{call.method} {str(url).rstrip('/')}{call.path}: {reason}")


def header_version(response: httpx.Response) -> Version | None:
    """The version a response says it is published under."""
    value = response.headers.get(HEADER_VERSION)
    return None if value is None else Version.parse(value, field=HEADER_VERSION)


def is_event_stream(response: httpx.Response) -> bool:
    """Whether the body is server-sent events."""
    return response.headers.get("content-type", "").startswith("text/event-stream")


def body_of(response: httpx.Response) -> Mapping[str, Any]:
    """The JSON object of a successful response."""
    try:
        return object_of(response.text)
    except UnicodeDecodeError as error:
        raise StreamCorrupt(f"a body that is not UTF-8: {error}") from error


def _seconds(value: str | None) -> float | None:
    # Retry-After may also be a date (RFC 9110, 10.2.3); the backoff then stands alone.
    return float(value) if value is not None and value.isdecimal() else None

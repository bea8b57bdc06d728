"""Settings of the API process: read once from the environment, frozen, every bad value named.

Must never read the environment outside :func:`Settings.from_env`, nor import vLLM.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey
from retire.sidecar.config import Auth

if TYPE_CHECKING:
    from collections.abc import Mapping

HOLD_DEFAULT_S: Final = 30.0
INPUT_WAIT_DEFAULT_S: Final = 300.0
TENANT_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an API process is told. ``sidecar`` None: tagged calls answer 503."""

    sidecar: str | None = None  # gRPC target, "unix:/path"
    hold_s: float = HOLD_DEFAULT_S  # how long a stream waits for an expired lease to come back
    input_wait_s: float = INPUT_WAIT_DEFAULT_S  # how long an input waits: enqueue, a paused scope
    auth: Auth = Auth.NONE  # not NONE: the sidecar says whose a call's bearer token is
    tenant: str = TENANT_DEFAULT  # of a call that names none
    trust_tenant_header: bool = False  # accept x-retire-tenant although the server authenticates
    responses_store: bool = False  # vLLM keeps answers of /v1/responses for later calls
    scope_from_session: bool = False  # derive the scope from the session headers of coding agents

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read ``RETIRE_*``; raises InvalidField naming the variable."""
        source = os.environ if env is None else env
        tenant = source.get("RETIRE_TENANT") or TENANT_DEFAULT
        try:
            ScopeKey(tenant, "-")
        except InvalidField:
            raise InvalidField("RETIRE_TENANT", tenant, "a DNS label: a-z, 0-9 and '-'") from None
        auth = _auth(source)
        return cls(
            sidecar=_target(source.get("RETIRE_SIDECAR")),
            hold_s=_seconds("RETIRE_HOLD_S", source.get("RETIRE_HOLD_S"), HOLD_DEFAULT_S),
            input_wait_s=_seconds(
                "RETIRE_INPUT_WAIT_S", source.get("RETIRE_INPUT_WAIT_S"), INPUT_WAIT_DEFAULT_S
            ),
            auth=auth,
            tenant=tenant,
            trust_tenant_header=_trust(source, auth),
            responses_store=source.get("VLLM_ENABLE_RESPONSES_API_STORE", "0") not in ("", "0"),
            scope_from_session=_flag("RETIRE_SCOPE_FROM_SESSION", source),
        )


def _auth(env: Mapping[str, str]) -> Auth:
    value = env.get("RETIRE_AUTH") or Auth.NONE.value
    try:
        return Auth(value)
    except ValueError:
        words = ", ".join(member.value for member in Auth)
        raise InvalidField("RETIRE_AUTH", value, f"one of {words}") from None


def _trust(env: Mapping[str, str], auth: Auth) -> bool:
    trusted = _flag("RETIRE_TENANT_HEADER", env)
    if trusted and auth is not Auth.NONE:
        raise InvalidField(
            "RETIRE_TENANT_HEADER",
            "1",
            f"0 with RETIRE_AUTH={auth.value}: the token names the tenant",
        )
    return trusted


def _target(value: str | None) -> str | None:
    if not value:
        return None
    if not value.startswith("unix:/"):
        raise InvalidField("RETIRE_SIDECAR", value, 'the sidecar\'s socket, written "unix:/path"')
    return value


def _seconds(name: str, value: str | None, default: float) -> float:
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not 0 <= number <= 86_400:
        raise InvalidField(name, value, "seconds between 0 and 86400")
    return number


def _flag(name: str, env: Mapping[str, str]) -> bool:
    value = env.get(name) or "0"
    if value not in ("0", "1"):
        raise InvalidField(name, value, "0 or 1")
    return value == "1"

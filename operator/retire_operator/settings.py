"""Settings of the operator: read once from the environment, frozen, every bad value named.

Must never read the environment outside :meth:`Settings.from_env`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retire.protocol.errors import InvalidField
from retire.registry.settings import Durability, checked_url, durability_from_env
from retire.sidecar.config import Tls

TERM_LEASE: Final = "retire-term"
SERVER_NAME: Final = "sidecar.retire.internal"
SIDECAR_PORT: Final = 7070
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the operator is told. Times in seconds."""

    registry_url: str
    registry_durability: Durability
    term_lease: str  # namespace/name
    node_namespace: str
    watch_namespaces: tuple[str, ...] = ()  # empty: every namespace
    tls: Tls | None = None
    tls_server_name: str = SERVER_NAME
    sidecar_port: int = SIDECAR_PORT  # unless the pod names a container port "grpc"
    http_listen: str = "0.0.0.0:8080"
    metrics_listen: str | None = None  # host:port of /metrics; None: off
    lease_s: float = 2.0  # the publish lease of nodes that cannot be asked
    resync_s: float = 30.0
    finalizer_timeout_s: float = 30.0
    call_timeout_s: float = 10.0
    workers: int = 32  # objects reconciled side by side
    identity: str = ""  # of this process, on the Lease
    log_format: str = "plain"

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read ``RETIRE_*``; raises InvalidField naming the variable."""
        source = os.environ if env is None else env
        return cls(
            registry_url=_url(source),
            registry_durability=durability_from_env(source),
            term_lease=_term_lease(source),
            node_namespace=_namespace(source, "RETIRE_NODE_NAMESPACE"),
            watch_namespaces=_namespaces(source),
            tls=_tls(source),
            tls_server_name=source.get("RETIRE_TLS_SERVER_NAME") or SERVER_NAME,
            sidecar_port=_integer(source, "RETIRE_SIDECAR_PORT", SIDECAR_PORT, high=_PORT_MAX),
            http_listen=_listen(source, "RETIRE_HTTP_LISTEN") or "0.0.0.0:8080",
            metrics_listen=_listen(source, "RETIRE_METRICS_LISTEN"),
            lease_s=_seconds(source, "RETIRE_LEASE_S", 2.0, low=0.2, high=60.0),
            resync_s=_seconds(source, "RETIRE_RESYNC_S", 30.0, low=0.1, high=3600.0),
            finalizer_timeout_s=_seconds(
                source, "RETIRE_FINALIZER_TIMEOUT_S", 30.0, low=0.0, high=3600.0
            ),
            call_timeout_s=_seconds(source, "RETIRE_CALL_TIMEOUT_S", 10.0, low=0.1, high=300.0),
            workers=_integer(source, "RETIRE_WORKERS", 32, high=1024),
            identity=f"{socket.gethostname()}-{os.getpid()}",
            log_format=_choice(source, "RETIRE_LOG_FORMAT", ("plain", "json")),
        )


def _url(env: Mapping[str, str]) -> str:
    value = env.get("RETIRE_REGISTRY_URL", "")
    if not value:
        raise InvalidField("RETIRE_REGISTRY_URL", value, "redis://, rediss:// or unix://")
    try:
        return checked_url(value, cluster=False)
    except InvalidField as error:
        raise InvalidField("RETIRE_REGISTRY_URL", "(hidden)", "a registry URL") from error


def _term_lease(env: Mapping[str, str]) -> str:
    value = env.get("RETIRE_TERM_LEASE", "")
    namespace, _, name = value.partition("/")
    if not namespace or not name or "/" in name:
        raise InvalidField("RETIRE_TERM_LEASE", value, f"namespace/name, such as a/{TERM_LEASE}")
    return value


def _namespace(env: Mapping[str, str], variable: str) -> str:
    value = env.get(variable, "")
    if not value:
        raise InvalidField(variable, value, "the namespace of the node pods")
    return value


def _namespaces(env: Mapping[str, str]) -> tuple[str, ...]:
    names = (name.strip() for name in env.get("RETIRE_WATCH_NAMESPACES", "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _tls(env: Mapping[str, str]) -> Tls | None:
    variables = ("RETIRE_TLS_CERT", "RETIRE_TLS_KEY", "RETIRE_TLS_CA")
    if not any(env.get(name) for name in variables):
        return None
    for name in variables:
        value = env.get(name, "")
        if not Path(value).is_file():
            raise InvalidField(name, value, "a PEM file; mTLS needs " + ", ".join(variables))
    return Tls(*(Path(env[name]) for name in variables))


def _listen(env: Mapping[str, str], name: str) -> str | None:
    value = env.get(name)
    if not value:
        return None
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _PORT_MAX:
        raise InvalidField(name, value, "host:port, for example 0.0.0.0:8080")
    return value


def _seconds(
    env: Mapping[str, str], name: str, default: float, *, low: float, high: float
) -> float:
    value = env.get(name)
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise InvalidField(name, value, f"seconds between {low:g} and {high:g}")
    return number


def _integer(env: Mapping[str, str], name: str, default: int, *, high: int) -> int:
    value = env.get(name)
    if not value:
        return default
    if not value.isdecimal() or not 1 <= int(value) <= high:
        raise InvalidField(name, value, f"an integer in 1..{high}")
    return int(value)


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name) or allowed[0]
    if value not in allowed:
        raise InvalidField(name, value, "one of " + ", ".join(allowed))
    return value

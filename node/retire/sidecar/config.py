"""Settings of the sidecar: read once from the environment, frozen, every bad value named.

Must never read the environment outside :func:`Settings.from_env`.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import InvalidField
from retire.registry.settings import Durability, durability_from_env

if TYPE_CHECKING:
    from collections.abc import Mapping

LEASE_S: Final = 2.0
LEASE_MIN_S: Final = 0.2
LEASE_MAX_S: Final = 60.0
SLOTS: Final = 65536
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
TLS_CLIENT: Final = "operator.retire.internal"
_LEASE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Tls:
    """mTLS material of the TCP listener: PEM files; clients must present a certificate of
    ``ca``.
    """

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class KubeAccess:
    """The Kubernetes API as this pod's service account reaches it."""

    url: str
    token: Path  # read anew for every call: the kubelet rotates it
    ca: Path  # PEM; not needed for http://


@dataclass(frozen=True, slots=True)
class LeaseName:
    """A coordination.k8s.io Lease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Auth(Enum):
    """How a bearer token becomes a tenant."""

    NONE = "none"  # it does not: tenants come from a header
    STATIC = "static"  # a file of token digests
    TOKENREVIEW = "tokenreview"  # the namespace of the service account that the API server names


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """What the sidecar needs to say who a bearer token is."""

    kind: Auth = Auth.NONE
    tokens_file: Path | None = None  # STATIC
    audiences: tuple[str, ...] = ()  # TOKENREVIEW; empty: the API server's own


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the sidecar is told. Times in seconds unless the name says otherwise."""

    node: str
    registry_url: str
    registry_durability: Durability
    run_dir: Path  # 0700; holds the socket and by default the mailbox
    socket: Path  # 0600, the engine's API processes attach here
    mailbox: Path
    term_file: Path  # must outlive reboots: a lost term would let versions go back
    term_lease: LeaseName | None = None  # instead of the file: the operator's, only read here
    slots: int = SLOTS
    listen: str | None = None  # host:port for the operator and the CLI; None: Unix socket only
    tls: Tls | None = None
    tls_clients: tuple[str, ...] = (TLS_CLIENT,)  # DNS names in certificates that may call over TLS
    http_listen: str | None = None  # host:port of probes and live page, plain HTTP; None: off
    trace_url: str | None = None  # where a trace is shown; {trace_id} stands for its id
    auth: AuthSettings = field(default_factory=AuthSettings)
    kube: KubeAccess | None = None  # where something here needs the Kubernetes API
    lease_s: float = LEASE_S
    idle_ttl_s: float = 600.0  # a slot nobody asked for this long may be reused
    fence_wait_s: float = 2.0  # longest wait for receipts of engines and of other nodes
    pin_quota_blocks: int | None = None  # default tenant quota; None: unlimited
    log_format: str = "plain"

    @property
    def lane(self) -> Path:
        """Unix socket of the lanes, beside the gRPC one."""
        return self.socket.with_name(self.socket.name + ".lane")

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read ``RETIRE_*``; raises InvalidField naming the variable."""
        source = os.environ if env is None else env
        run_dir = _path(source, "RETIRE_RUN_DIR", default_run_dir())
        settings = cls(
            node=source.get("RETIRE_NODE") or socket.gethostname(),
            registry_url=source.get("RETIRE_REGISTRY_URL", "redis://127.0.0.1:6379/0"),
            registry_durability=durability_from_env(source),
            run_dir=run_dir,
            socket=_path(source, "RETIRE_SOCKET", run_dir / "node.sock"),
            mailbox=_path(source, "RETIRE_MAILBOX", run_dir / "mailbox"),
            term_file=_path(source, "RETIRE_TERM_FILE", default_state_dir(source) / "term"),
            slots=_integer(source, "RETIRE_SLOTS", SLOTS, low=1, high=SLOTS),
            term_lease=_term_lease(source),
            listen=source.get("RETIRE_LISTEN") or None,
            tls=_tls(source),
            tls_clients=_words(source, "RETIRE_TLS_CLIENTS") or (TLS_CLIENT,),
            http_listen=source.get("RETIRE_HTTP_LISTEN") or None,
            trace_url=_trace_url(source),
            auth=_auth(source),
            kube=_kube(source),
            lease_s=_seconds(source, "RETIRE_LEASE_S", LEASE_S, low=LEASE_MIN_S, high=LEASE_MAX_S),
            idle_ttl_s=_seconds(source, "RETIRE_IDLE_TTL_S", 600.0, low=0.05, high=86_400.0),
            fence_wait_s=_seconds(source, "RETIRE_FENCE_WAIT_S", 2.0, low=0.05, high=60.0),
            pin_quota_blocks=_quota(source),
            log_format=_choice(source, "RETIRE_LOG_FORMAT", ("plain", "json")),
        )
        _check_listen(settings)
        return settings


def default_run_dir() -> Path:
    """``/dev/shm/retire-<uid>`` where shared memory exists, else the temporary folder."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    return base / f"retire-{os.getuid()}"


def default_state_dir(env: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/retire``, on a real disk."""
    home = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "retire"


def _path(env: Mapping[str, str], name: str, default: Path) -> Path:
    value = env.get(name)
    if not value:
        return default
    path = Path(value)
    if not path.is_absolute():
        raise InvalidField(name, value, "an absolute path")
    return path


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


def _integer(env: Mapping[str, str], name: str, default: int, *, low: int, high: int) -> int:
    value = env.get(name)
    if not value:
        return default
    if not value.isdecimal() or not low <= int(value) <= high:
        raise InvalidField(name, value, f"an integer in {low}..{high}")
    return int(value)


def _quota(env: Mapping[str, str]) -> int | None:
    if not env.get("RETIRE_PIN_QUOTA_BLOCKS"):
        return None
    return _integer(env, "RETIRE_PIN_QUOTA_BLOCKS", 0, low=0, high=2**31)


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name) or allowed[0]
    if value not in allowed:
        raise InvalidField(name, value, "one of " + ", ".join(allowed))
    return value


def _tls(env: Mapping[str, str]) -> Tls | None:
    names = ("RETIRE_TLS_CERT", "RETIRE_TLS_KEY", "RETIRE_TLS_CA")
    given = [name for name in names if env.get(name)]
    if not given:
        return None
    for name in names:
        value = env.get(name, "")
        if not Path(value).is_file():
            raise InvalidField(name, value, "a PEM file; mTLS needs " + ", ".join(names))
    return Tls(*(Path(env[name]) for name in names))


def _trace_url(env: Mapping[str, str]) -> str | None:
    value = env.get("RETIRE_TRACE_URL")
    if not value:
        return None
    if not value.startswith(("https://", "http://")) or value.count("{trace_id}") != 1:
        raise InvalidField(
            "RETIRE_TRACE_URL", value, "a URL with {trace_id} in it, for example of Jaeger"
        )
    return value


def _check_listen(settings: Settings) -> None:
    if settings.http_listen is not None:
        host_and_port("RETIRE_HTTP_LISTEN", settings.http_listen)
    if settings.listen is None:
        return
    host, _ = host_and_port("RETIRE_LISTEN", settings.listen)
    if settings.tls is None and host not in LOOPBACK:
        raise InvalidField(
            "RETIRE_LISTEN",
            settings.listen,
            "on loopback unless RETIRE_TLS_CERT, _KEY, _CA are set",
        )


def host_and_port(name: str, value: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 address keeps its brackets."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidField(name, value, "host:port, for example 127.0.0.1:7070")
    return host, int(port)


def _words(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A comma list; empty items are left out."""
    return tuple(word for part in env.get(name, "").split(",") if (word := part.strip()))


def _term_lease(env: Mapping[str, str]) -> LeaseName | None:
    value = env.get("RETIRE_TERM_LEASE")
    if not value:
        return None
    if _LEASE.fullmatch(value) is None:
        raise InvalidField("RETIRE_TERM_LEASE", value, "namespace/name of a Lease")
    if env.get("RETIRE_TERM_FILE"):
        raise InvalidField("RETIRE_TERM_LEASE", value, "absent where RETIRE_TERM_FILE is set")
    return LeaseName(*value.split("/"))


def _auth(env: Mapping[str, str]) -> AuthSettings:
    kind = Auth(_choice(env, "RETIRE_AUTH", tuple(member.value for member in Auth)))
    tokens = env.get("RETIRE_TOKENS_FILE")
    if kind is Auth.STATIC and not (tokens and Path(tokens).is_file()):
        raise InvalidField(
            "RETIRE_TOKENS_FILE", tokens, "a JSON file of tokens (RETIRE_AUTH=static)"
        )
    return AuthSettings(
        kind, Path(tokens) if tokens else None, _words(env, "RETIRE_TOKEN_AUDIENCES")
    )


def _kube(env: Mapping[str, str]) -> KubeAccess | None:
    """Only where it is needed: a sidecar without Kubernetes asks for nothing of it."""
    needing = [n for n in ("RETIRE_TERM_LEASE",) if env.get(n)]
    if env.get("RETIRE_AUTH") == Auth.TOKENREVIEW.value:
        needing.append("RETIRE_AUTH=tokenreview")
    if not needing:
        return None
    url = env.get("RETIRE_KUBE_API") or _in_cluster(env)
    if not url.startswith(("https://", "http://")):
        raise InvalidField(
            "RETIRE_KUBE_API",
            url,
            f"the API server's URL ({needing[0]} needs it); in a pod, absent",
        )
    folder = _path(env, "RETIRE_KUBE_ACCOUNT", SERVICE_ACCOUNT)
    return KubeAccess(url.rstrip("/"), folder / "token", folder / "ca.crt")


def _in_cluster(env: Mapping[str, str]) -> str:
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    return "" if not host else f"https://{f'[{host}]' if ':' in host else host}:{port}"

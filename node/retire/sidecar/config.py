"""Settings of the sidecar: read once from the environment, frozen, every bad value named.

Must never read the environment outside :func:`Settings.from_env`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import InvalidField

if TYPE_CHECKING:
    from collections.abc import Mapping

LEASE_S: Final = 2.0
LEASE_MIN_S: Final = 0.2
LEASE_MAX_S: Final = 60.0
SLOTS: Final = 65536
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")


@dataclass(frozen=True, slots=True)
class Tls:
    """mTLS material of the TCP listener: PEM files; clients must present a certificate of
    ``ca``.
    """

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the sidecar is told. Times in seconds unless the name says otherwise."""

    node: str
    registry_url: str
    run_dir: Path  # 0700; holds the socket and by default the mailbox
    socket: Path  # 0600, the engine's API processes attach here
    mailbox: Path
    term_file: Path  # must outlive reboots: a lost term would let versions go back
    slots: int = SLOTS
    listen: str | None = None  # host:port for the operator and the CLI; None: Unix socket only
    tls: Tls | None = None
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
            run_dir=run_dir,
            socket=_path(source, "RETIRE_SOCKET", run_dir / "node.sock"),
            mailbox=_path(source, "RETIRE_MAILBOX", run_dir / "mailbox"),
            term_file=_path(source, "RETIRE_TERM_FILE", default_state_dir(source) / "term"),
            slots=_integer(source, "RETIRE_SLOTS", SLOTS, low=1, high=SLOTS),
            listen=source.get("RETIRE_LISTEN") or None,
            tls=_tls(source),
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


def _check_listen(settings: Settings) -> None:
    if settings.listen is None:
        return
    host, _, port = settings.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidField(
            "RETIRE_LISTEN", settings.listen, "host:port, for example 127.0.0.1:7070"
        )
    if settings.tls is None and host not in LOOPBACK:
        raise InvalidField(
            "RETIRE_LISTEN",
            settings.listen,
            "on loopback unless RETIRE_TLS_CERT, _KEY, _CA are set",
        )

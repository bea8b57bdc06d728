"""How to reach the registry: its settings, and the redis-py clients made from them.

The only module that constructs redis-py clients. Must never import the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from retire.protocol.errors import InvalidField
from retire.registry.keys import PREFIX_DEFAULT

CONNECTIONS_MAX: Final = 64  # of one client to one server; further calls wait for a free one
_SCHEMES: Final = ("redis", "rediss", "unix")
_BACKOFF_FIRST_S: Final = 0.02


class Durability(Enum):
    """How a write is known to be on disk before it is acknowledged."""

    DETECT = "detect"  # ask the server
    FSYNC_ALWAYS = "fsync-always"  # it answers after fsync: appendonly yes, appendfsync always
    # WAITAOF 1 0 after each write (Valkey, Redis 7.2 and later); with appendfsync everysec it takes
    # up to 1 s
    WAITAOF = "waitaof"
    VOLATILE = "volatile"  # acknowledged commits may be lost; tests and throw-away registries only


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Settings of a client. A bad value is refused here, naming the field."""

    prefix: str = PREFIX_DEFAULT
    cluster: bool = False  # the URL names any node of a Redis Cluster
    timeout_s: float = 2.0  # to connect, and for each reply
    retries: int = 3  # after a lost connection or a timeout; every operation may be sent again
    backoff_max_s: float = 0.5
    durability: Durability = Durability.DETECT
    allow_volatile: bool = False
    # False once a term is known to have been opened: an empty registry has then lost its data.
    create_when_empty: bool = True

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise InvalidField("registry.timeout_s", self.timeout_s, "seconds above 0")
        if self.retries < 0:
            raise InvalidField("registry.retries", self.retries, "0 or more")
        if self.backoff_max_s <= 0:
            raise InvalidField("registry.backoff_max_s", self.backoff_max_s, "seconds above 0")
        if self.durability is Durability.VOLATILE and not self.allow_volatile:
            raise InvalidField("registry.durability", "volatile", "used with allow_volatile=True")


DURABILITY_ENV: Final = "RETIRE_REGISTRY_DURABILITY"


def durability_from_env(env: Mapping[str, str]) -> Durability:
    """What is stated of the server where it may not be asked; a bad value names the variable."""
    known = tuple(one.value for one in Durability if one is not Durability.VOLATILE)
    value = env.get(DURABILITY_ENV) or Durability.DETECT.value
    if value not in known:
        raise InvalidField(DURABILITY_ENV, value, "one of " + ", ".join(known))
    return Durability(value)


def checked_url(url: str, *, cluster: bool) -> str:
    """``redis://``, ``rediss://`` (TLS; options such as ``?ssl_ca_certs=/ca.pem``) or
    ``unix://``."""
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        shown = where(url) if "@" in url else url  # never repeat a password
        raise InvalidField("registry.url", shown, "redis://, rediss:// or unix://")
    if cluster and scheme == "unix":
        raise InvalidField("registry.url", url, "redis:// or rediss:// with cluster=True")
    return url


def where(url: str) -> str:
    """The registry's address without user name and password, for messages."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"at unix://{parts.path}"
    return f"at {parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or 6379}"


def open_async(url: str, settings: RegistrySettings) -> Any:
    """An asyncio client; it connects at its first command."""
    backoff = ExponentialWithJitterBackoff(cap=settings.backoff_max_s, base=_BACKOFF_FIRST_S)
    options = _options(settings) | {"retry": AsyncRetry(backoff, settings.retries)}
    if settings.cluster:
        return AsyncRedisCluster.from_url(url, **options)
    pools: Any = redis.asyncio.BlockingConnectionPool  # from_url is typed for its base class
    pool = pools.from_url(url, **options, **_waiting(url, settings))
    return redis.asyncio.Redis.from_pool(pool)


def open_sync(url: str, settings: RegistrySettings) -> Any:
    """A blocking client. A cluster's topology is read here, so RedisError may be raised."""
    backoff = ExponentialWithJitterBackoff(cap=settings.backoff_max_s, base=_BACKOFF_FIRST_S)
    options = _options(settings) | {"retry": Retry(backoff, settings.retries)}
    if settings.cluster:
        return RedisCluster.from_url(url, **options)
    pools: Any = redis.BlockingConnectionPool
    pool = pools.from_url(url, **options, **_waiting(url, settings))
    return redis.Redis.from_pool(pool)


def _options(settings: RegistrySettings) -> dict[str, Any]:
    return {
        "decode_responses": True,
        "protocol": 2,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
    }


def _waiting(url: str, settings: RegistrySettings) -> dict[str, Any]:
    """How long a call waits for a free connection, unless the URL says so itself."""
    given = parse_qs(urlsplit(url).query)
    waiting = {"max_connections": CONNECTIONS_MAX, "timeout": settings.timeout_s}
    return {name: value for name, value in waiting.items() if name not in given}

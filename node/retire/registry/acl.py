"""The server's ACL users, one per kind of client, limited to the registry's keys and to what it
sends.

Scripts run with the rights of their caller, so a role is bounded by the commands inside the scripts
too. Renders text only; must never import a client.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

from retire.protocol.errors import InvalidField
from retire.registry.keys import PREFIX_DEFAULT, Keyspace


class Role(Enum):
    """Kinds of registry clients."""

    OPERATOR = "operator"  # everything the registry does, rebuilds and quotas included
    SIDECAR = "sidecar"  # a node: transitions, leases, reservations; quotas are read-only
    READER = "reader"  # gates, dashboards, the CLI: reads scopes and follows events


_CONNECTION: Final = (
    *("auth", "hello", "ping", "select", "echo", "client|setinfo", "client|setname", "client|id"),
    *("cluster|slots", "cluster|shards", "cluster|nodes", "cluster|myid", "command", "readonly"),
    *("info", "time"),
)
_READS: Final = (
    *("eval_ro", "evalsha_ro", "get", "exists", "hget", "hmget", "hgetall", "hkeys", "hexists"),
    *("zrange", "xrange", "xread"),
)
_WRITES: Final = (
    *("eval", "evalsha", "hset", "hdel", "hincrby", "zadd", "zrem", "xadd", "pexpire", "waitaof"),
)
_ADMINISTERS: Final = ("set", "del")
_SINCE_7_2: Final = ("client|setinfo", "waitaof")


def acl_rule(
    role: Role, *, password: str, prefix: str = PREFIX_DEFAULT, before_7_2: bool = False
) -> tuple[str, ...]:
    """The words after ``ACL SETUSER <name>``: a password digest, key patterns and commands.

    ``before_7_2``: for Redis 7.0, which refuses a rule that names a command it does not know.
    """
    if not password:
        raise InvalidField("password", password, "not empty")
    digest = hashlib.sha256(password.encode()).hexdigest()
    unknown = _SINCE_7_2 if before_7_2 else ()
    commands = (f"+{command}" for command in _commands(role) if command not in unknown)
    patterns = _patterns(role, Keyspace(prefix))
    return ("reset", "on", f"#{digest}", "resetchannels", *patterns, *commands)


def acl_line(name: str, rule: tuple[str, ...]) -> str:
    """One line of an ACL file: ``user <name> <rule>``."""
    return f"user {name} {' '.join(rule)}"


def _commands(role: Role) -> tuple[str, ...]:
    match role:
        case Role.OPERATOR:
            return (*_CONNECTION, *_READS, *_WRITES, *_ADMINISTERS)
        case Role.SIDECAR:
            return (*_CONNECTION, *_READS, *_WRITES)
        case Role.READER:
            return (*_CONNECTION, *_READS)


def _patterns(role: Role, keyspace: Keyspace) -> tuple[str, ...]:
    everything = f"{keyspace.prefix}*"
    match role:
        case Role.OPERATOR:
            return (f"~{everything}",)
        case Role.SIDECAR:
            tenant = f"{keyspace.prefix}{{*}}:"
            kinds = ("meta", "scopes", "children", "joins", "leases", "pins", "pinends", "events")
            writable = (f"~{tenant}{kind}" for kind in (*kinds, "idem:*"))
            return (f"~{keyspace.registry}", *writable, f"%R~{tenant}quota")
        case Role.READER:
            return (f"%R~{everything}",)

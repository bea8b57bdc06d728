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
from retire.registry.keys import Keyspace


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
    *("eval", "evalsha", "get", "exists", "hget", "hmget", "hgetall", "hkeys", "hexists"),
    *("zrange", "xrange", "xread"),
)
_WRITES: Final = (
    *("hset", "hdel", "hincrby", "zadd", "zrem", "xadd", "pexpire"),
    "waitaof",
)
_ADMINISTERS: Final = ("set", "del")


def acl_rule(role: Role, *, password: str, prefix: str | None = None) -> tuple[str, ...]:
    """The words after ``ACL SETUSER <name>``: a password digest, key patterns and commands.

    ``waitaof`` is left out on servers that do not know it: see ``without``.
    """
    if not password:
        raise InvalidField("password", password, "not empty")
    digest = hashlib.sha256(password.encode()).hexdigest()
    keyspace = Keyspace() if prefix is None else Keyspace(prefix)
    commands = tuple(f"+{command}" for command in _commands(role))
    return ("reset", "on", f"#{digest}", "resetchannels", *_patterns(role, keyspace), *commands)


def acl_line(name: str, rule: tuple[str, ...]) -> str:
    """One line of an ACL file: ``user <name> <rule>``."""
    return f"user {name} {' '.join(rule)}"


def without(rule: tuple[str, ...], *commands: str) -> tuple[str, ...]:
    """The rule for a server that lacks a command, such as ``waitaof`` before Redis 7.2."""
    return tuple(word for word in rule if word.removeprefix("+") not in commands)


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

"""Decides how a server makes a write durable before it is acknowledged, from what it says of
itself.

Pure, except for :class:`Question`, which a client asks of every primary. Must never import a
client.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from retire.protocol.errors import RegistryUnavailable
from retire.registry.settings import Durability, RegistrySettings

_WAITAOF_SINCE: Final = (7, 2)  # Redis version; Valkey reports 7.2.4 there
_FIX: Final = (
    'set "appendonly yes" and "appendfsync always", or use Valkey or Redis 7.2 and later with'
    ' "appendonly yes" for WAITAOF'
)


@dataclass(frozen=True, slots=True)
class Question:
    """A command for every primary. The answer is one reply each, None where it was refused."""

    command: tuple[str, ...]


Inquiry = Generator[Question, "Sequence[Mapping[str, Any] | None]", Durability]


def inquire(settings: RegistrySettings, where: str) -> Inquiry:
    """Ask the servers and decide; RegistryUnavailable names the setting and its fix."""
    if settings.durability is not Durability.DETECT:
        return settings.durability
    config = yield Question(("CONFIG GET", "append*"))
    if all(reply is not None and _syncs_always(reply) for reply in config):
        return Durability.FSYNC_ALWAYS
    info = yield Question(("INFO",))
    found = {_of_server(reply, said) for reply, said in zip(info, config, strict=True)}
    complaint = next((text for text in found if text), None)
    if complaint is None and settings.cluster:
        complaint = "a cluster needs appendfsync always: WAITAOF is not sent to its nodes"
    if complaint is None:
        return Durability.WAITAOF
    if settings.allow_volatile:
        return Durability.VOLATILE
    raise RegistryUnavailable(
        f"registry {where} may lose acknowledged commits: {complaint}; {_FIX}"
    )


def _syncs_always(config: Mapping[str, Any]) -> bool:
    return config.get("appendonly") == "yes" and config.get("appendfsync") == "always"


def _of_server(info: Mapping[str, Any] | None, config: Mapping[str, Any] | None) -> str | None:
    """Why WAITAOF cannot make this server durable; None when it can."""
    if info is None:
        return (
            "its user may call neither CONFIG GET nor INFO; state what it does with"
            " RETIRE_REGISTRY_DURABILITY"
        )
    if not int(info.get("aof_enabled", 0)):
        return "appendonly is off"
    if config is not None and config.get("appendfsync") == "no":
        return "appendfsync is no"  # WAITAOF would wait for the kernel, half a minute
    if _version(str(info.get("redis_version", "0.0"))) >= _WAITAOF_SINCE:
        return None
    if config is None:
        return (
            "its user may not call CONFIG GET, and it has no WAITAOF: if appendfsync is always,"
            " say so with RETIRE_REGISTRY_DURABILITY=fsync-always"
        )
    return f"appendfsync is {config.get('appendfsync')} and it has no WAITAOF"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())

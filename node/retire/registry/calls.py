"""One call of one script: what goes to the server, and what its refusals mean.

Loads ``scripts/*.lua`` as package data. Must never import a client: both clients send these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from retire.protocol.versions import ScopeKey, Version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script as the server sees it: the prelude, then the operation."""

    name: str
    source: str
    sha1: str  # hex, the name that EVALSHA takes


@cache
def script(name: str) -> Script:
    """Load ``scripts/<name>.lua``; FileNotFoundError means a broken installation."""
    folder = resources.files("retire.registry") / "scripts"
    prelude = (folder / "prelude.lua").read_text(encoding="utf-8")
    source = prelude + (folder / f"{name}.lua").read_text(encoding="utf-8")
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, digest)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about, for the text of its errors."""

    tenant: str
    term: int | None = None
    key: ScopeKey | None = None
    parent: str | None = None
    expected: Version | None = None
    idempotency_key: str = ""
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One EVALSHA. ``mutates``: it answers only after the write is durable."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str, ...]
    subject: Subject
    mutates: bool = field(default=True)


# An operation without IO: it yields calls, receives their raw replies and returns its result.
Program = Generator[Call, Any, T]

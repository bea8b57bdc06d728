"""Reading plain JSON-able dicts into typed values, with errors that name the field by its path.

Must never import anything but ``retire.protocol.errors`` and ``versions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from math import isfinite
from typing import Any, TypeVar, cast

from retire.protocol.errors import InvalidField
from retire.protocol.versions import Version

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


class Fields:
    """One JSON object at ``path``; each reader checks presence and type of one key."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise InvalidField(path, value, "a JSON object")
        self._values = cast("Mapping[str, Any]", value)
        self.path = path

    def only(self, known: Iterable[str]) -> None:
        """Refuse keys that nobody reads: a misspelt option must not be dropped in silence."""
        allowed = sorted(known)
        for name in self._values:
            if name not in allowed:
                raise InvalidField(f"{self.path}.{name}", self._values[name], _absent(allowed))

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(name) is not None

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise InvalidField(f"{self.path}.{name}", None, "present")
        return self._values[name]

    def bad(self, name: str, must_be: str) -> InvalidField:
        """The error for a key's value."""
        return InvalidField(f"{self.path}.{name}", self._values.get(name), must_be)

    def text(self, name: str) -> str:
        """A string."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self.bad(name, "a string")
        return value

    def integer(self, name: str) -> int:
        """An integer, at least 0; a boolean is none."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.bad(name, "an integer, at least 0")
        return value

    def whole(self, name: str) -> int:
        """An integer of either sign."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(name, "an integer")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(name, "a number")
        if not isfinite(value):
            raise self.bad(name, "a finite number")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise self.bad(name, "true or false")
        return value

    def version(self, name: str) -> Version:
        """A version, written "term.epoch"."""
        return Version.parse(self.text(name), field=f"{self.path}.{name}")

    def choice(self, name: str, kind: type[E]) -> E:
        """A member of an Enum, by value."""
        value = self._get(name)
        for member in kind:
            if member.value == value:
                return member
        raise self.bad(name, "one of " + ", ".join(str(m.value) for m in kind))

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """None when the key is absent or null, else what ``read`` makes of it."""
        return read(name) if self.has(name) else None

    def object(self, name: str) -> Fields:
        """A nested object."""
        return Fields(self._get(name), f"{self.path}.{name}")

    def plain(self, name: str) -> dict[str, Any]:
        """A nested object, as it is."""
        return dict(self.object(name)._values)

    def items(self, name: str) -> list[Any]:
        """A list, as it is."""
        value = self._get(name)
        if not isinstance(value, list | tuple):
            raise self.bad(name, "a list")
        return list(cast("Iterable[Any]", value))

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        items = enumerate(self.items(name))
        return [Fields(item, f"{self.path}.{name}[{i}]") for i, item in items]


def _absent(allowed: list[str]) -> str:
    return f"absent; known keys are {', '.join(allowed)}"

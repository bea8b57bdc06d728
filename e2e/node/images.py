"""Which software of this machine stands for an image.

Pure: a table and its look-up. What a Dockerfile would fix (PATH, entry point, user) is here; what
the pod says goes before it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.binaries import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NONROOT: Final = 65532
_SYSTEM_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")


class UnknownImage(Exception):
    """No software stands for an image; the message lists what is known."""


@dataclass(frozen=True, slots=True)
class Image:
    """What runs for every image whose name, without its tag, matches ``pattern``."""

    pattern: str
    path: Sequence[str] = ()  # folders before the system's own
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: int = NONROOT
    env: Mapping[str, str] = field(default_factory=dict)  # the image's ENV: the pod's goes before
    software: Sequence[str] = ()  # further folders that it must be able to read
    binds: Mapping[str, str] = field(default_factory=dict)  # host path -> path inside, writable
    workdir: str = "/"

    @property
    def search_path(self) -> str:
        """PATH inside."""
        return ":".join([*self.path, *_SYSTEM_PATH])

    @property
    def folders(self) -> list[str]:
        """All that must be readable inside for the software to run."""
        python = [str(ROOT), sys.base_prefix, str(Path(sys.executable).parents[1])]
        return list(dict.fromkeys([*python, *self.path, *self.software]))


PYTHON: Final = str(Path(sys.executable).parent)


def plain(pattern: str, **fields: object) -> Image:
    """An image that is this machine's Python environment and system."""
    return Image(pattern, path=(PYTHON,), **fields)  # pyright: ignore[reportArgumentType]


def find(images: Sequence[Image], name: str) -> Image:
    """The first that matches; UnknownImage otherwise."""
    bare = name.split("@", maxsplit=1)[0]
    head, colon, tag = bare.rpartition(":")
    bare = head if colon and "/" not in tag else bare
    for image in images:
        if re.fullmatch(image.pattern, bare):
            return image
    known = ", ".join(image.pattern for image in images)
    raise UnknownImage(f"no software stands for image {name!r}; known: {known}")

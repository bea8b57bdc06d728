"""The term authority: who counts the rebuilds of the registry, outside the registry (design,
section 4).

Owns the port and the standalone file. Must never import a registry client: a term that the registry
could change would be lost with it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from retire.protocol.errors import InvalidField, RetireError, TermMismatch
from retire.protocol.versions import TERM_MAX

_LINE = re.compile(r"retire-term 1 (0|[1-9][0-9]{0,7})\n")
_SIZE_MAX: Final = 64  # bytes


class TermAuthority(Protocol):
    """A counter that only grows and only by compare-and-set. 0: no registry was ever opened."""

    def current(self) -> int:
        """The term now."""
        ...

    def advance(self, expected: int) -> int:
        """Move from ``expected`` to ``expected + 1`` and return it, durably; TermMismatch when the
        term is another."""
        ...


class TermFileError(RetireError):
    """The term file cannot be trusted. It is never replaced by a guess: terms must not go back."""

    code = "term_file"


class TermFile:
    """A term in a file: replaced as a whole, fsynced, under a lock. One file a registry, on a local
    disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")

    def current(self) -> int:
        """See TermAuthority.current; TermFileError when the file is corrupt or unreadable."""
        try:
            text = self._path.read_bytes()[: _SIZE_MAX + 1].decode("ascii", "replace")
        except FileNotFoundError:
            return self._absent()
        except OSError as error:
            raise TermFileError(
                f"term file {self._path} cannot be read: {error.strerror}"
            ) from error
        match = _LINE.fullmatch(text)
        if match is None or int(match[1]) > TERM_MAX:
            raise TermFileError(
                f"term file {self._path} is corrupt: it must hold 'retire-term 1 <number>';"
                " write the highest term that was ever in use there (see the nodes' logs), plus one"
            )
        return int(match[1])

    def advance(self, expected: int) -> int:
        """See TermAuthority.advance."""
        with self._locked():
            current = self.current()
            if current != expected:
                raise TermMismatch(f"the term is {current}, not {expected}")
            if current == TERM_MAX:
                raise InvalidField("term", current + 1, f"at most {TERM_MAX}")
            self._replace(current + 1)
            return current + 1

    def _absent(self) -> int:
        # The lock file is made with the first term and never removed, so it tells a lost file from
        # none.
        if self._lock_path.exists() and self._lock_path.stat().st_size > 0:
            raise TermFileError(
                f"term file {self._path} is missing, but {self._lock_path} shows there was one;"
                " restore it, or write 'retire-term 1 <highest term ever in use, plus one>' into it"
            )
        return 0

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TermFileError(f"term file {self._path} cannot be locked: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
            if os.fstat(descriptor).st_size == 0:
                os.write(descriptor, b"a term was written here\n")
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _replace(self, term: int) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            with temporary.open("w", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(f"retire-term 1 {term}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise TermFileError(f"term file {self._path} cannot be written: {error}") from error


def claim_term(authority: TermAuthority) -> tuple[int, bool]:
    """The term to work under, and whether this call made the first one.

    Only then may an empty registry be opened (RegistrySettings.create_when_empty): at any later
    time an empty registry has lost its data and must be rebuilt under the next term.
    """
    current = authority.current()
    if current:
        return current, False
    try:
        return authority.advance(0), True
    except TermMismatch:  # another process was faster
        return authority.current(), False

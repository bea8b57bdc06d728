"""A mailbox file of its own for every test, in shared memory as in production."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retire.mailbox import MailboxWriter

HOUR_NS = 3600 * 10**9


@pytest.fixture
def path() -> Iterator[Path]:
    """A name in /dev/shm, removed afterwards."""
    file = Path("/dev/shm") / f"retire-test-{os.getpid()}-{secrets.token_hex(4)}"
    yield file
    with contextlib.suppress(FileNotFoundError):
        file.unlink()


@pytest.fixture
def lease():
    """Renew a writer's deadline far enough that no test meets it."""

    def renew(writer: MailboxWriter) -> None:
        writer.renew(time.monotonic_ns() + HOUR_NS)

    return renew

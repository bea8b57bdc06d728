"""The newest version a client has seen of one scope, below which nothing is yielded any more.

Owns C1's last line of defence (design, section 2): bytes that were on the network when the scope
was superseded. Must never import httpx.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retire.protocol.versions import Version


class VersionFloor:
    """One scope's floor; shared by every stream of a client, whatever thread reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floor: Version | None = None
        self._dropped = 0

    @property
    def version(self) -> Version | None:
        """The newest version seen or acknowledged; None: none yet."""
        return self._floor

    @property
    def dropped(self) -> int:
        """Chunks of an older version that arrived late and were refused."""
        return self._dropped

    def raise_to(self, version: Version) -> None:
        """The server acknowledged ``version``. The floor never goes down."""
        with self._lock:
            if self._floor is None or version > self._floor:
                self._floor = version

    def admits(self, version: Version) -> bool:
        """Whether a chunk of ``version`` may be yielded now; a newer one raises the floor."""
        with self._lock:
            if self._floor is not None and version < self._floor:
                self._dropped += 1
                return False
            self._floor = version
            return True

    def outdates(self, version: Version) -> bool:
        """Whether ``version`` is older than the floor; counts nothing."""
        return self._floor is not None and version < self._floor

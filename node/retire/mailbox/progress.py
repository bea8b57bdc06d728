"""Per-rank progress words: the only part of a mailbox that workers write.

The region is mapped by itself, so a worker cannot reach a stamp or the deadline. Every line has one
writer, its rank; words are single aligned stores, and each word means something by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from retire.mailbox import layout, storage
from retire.protocol.errors import InvalidField

if TYPE_CHECKING:
    import os

RANKS_MAX: Final = layout.PROGRESS_BYTES // 64
LINE_WORDS: Final = 8

# Word indices in a rank's line.
P_PID: Final = 0  # who writes this line; 0: nobody yet
P_STEP: Final = 1  # serial of the scheduler step that runs
P_LAYER_LAUNCHED: Final = 2  # layers of that step given to the device
P_LAYER_DONE: Final = 3  # layers of that step the device has finished
P_STOPPED_AT: Final = 4  # layer at which the rank stopped; 0: it did not
P_SEEN_STAMP: Final = 5  # stamp for which it stopped
P_HEARTBEAT_NS: Final = 6  # CLOCK_MONOTONIC
P_STEP_ENDED: Final = 7  # serial of the newest step of which the rank launches nothing any more


class ProgressLines:
    """One 64-byte line a rank, shared by the workers of a host and whoever waits for them."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview[int]) -> None:
        """Adopt a mapping of the region; use :meth:`attach`."""
        self._words = words

    @classmethod
    def attach(cls, path: str | os.PathLike[str] | None = None) -> ProgressLines:
        """Map the progress region, and only it, read-write (``path`` None: ``$RETIRE_MAILBOX``)."""
        fd = storage.open_for_reading(storage.resolve_path(path), writable=True)
        with storage.closing(fd):
            return cls(
                storage.map_words(
                    fd, layout.PROGRESS_BYTES, offset=layout.PROGRESS_OFFSET, writable=True
                )
            )

    def line(self, rank: int) -> memoryview[int]:
        """The eight words of a rank, written only by that rank."""
        if not 0 <= rank < RANKS_MAX:
            raise InvalidField("rank", rank, f"an integer in 0..{RANKS_MAX - 1}")
        return self._words[rank * LINE_WORDS : (rank + 1) * LINE_WORDS]

    def detach(self) -> None:
        """Unmap."""
        self._words.release()

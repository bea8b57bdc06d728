"""What an API process says of a successor before it is known to the engine: how much it shares.

One word a slot: low half of the old version's stamp, and the tokens that the successor's context
shares with the retired one. A worker that finds its step superseded weighs with it whether the rest
of the step is worth computing. Advice only: a wrong word costs time, never correctness, and one
left by an earlier version does not match the stamp. The region is mapped by itself, so a writer
cannot reach a stamp or the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from retire.mailbox import layout, storage

if TYPE_CHECKING:
    import os

    from retire.mailbox.layout import SlotRef

_HALF: Final = 32
_LOW: Final = (1 << _HALF) - 1
TOKENS_MAX: Final = _LOW - 1


class Overlaps:
    """The overlap words of a host."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview[int]) -> None:
        """Adopt a mapping of the region; use :meth:`attach`."""
        self._words = words

    @classmethod
    def attach(
        cls, path: str | os.PathLike[str] | None = None, *, writable: bool = False
    ) -> Overlaps:
        """Map the region, and only it (``path`` None: ``$RETIRE_MAILBOX``)."""
        file = storage.resolve_path(path)
        with storage.closing(storage.open_for_reading(file, writable=writable)) as fd:
            capacity = storage.read_header(fd, file)[layout.H_CAPACITY]
            size, offset = capacity * layout.WORD_BYTES, layout.overlaps_offset(capacity)
            return cls(storage.map_words(fd, size, offset=offset, writable=writable))

    def put(self, retired: SlotRef, tokens: int) -> None:
        """The successor of ``retired`` shares its first ``tokens`` tokens."""
        shared = max(0, min(tokens, TOKENS_MAX))
        self._words[retired.index] = (retired.stamp & _LOW) << _HALF | (shared + 1)

    def get(self, retired: SlotRef) -> int | None:
        """Tokens shared with the successor of ``retired``; None: nobody has said."""
        word = self._words[retired.index]
        if not word or word >> _HALF != retired.stamp & _LOW:
            return None
        return (word & _LOW) - 1

    def detach(self) -> None:
        """Unmap."""
        self._words.release()

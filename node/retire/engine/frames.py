"""Which choices' tokens a frame of an event stream carries. Pure.

Knows the shapes that vLLM streams: chat and completion chunks (``choices``, by ``index``) and named
events (``/v1/responses``, ``/v1/messages``), whose tokens travel in those called ``…delta``. Must
never import vLLM, nor know gates, sockets or clocks.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_DATA: Final = b"data: "
_EVENT: Final = b"event: "
NONE: Final[tuple[int, ...]] = ()


class _Choice(msgspec.Struct):
    index: int = 0
    delta: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    def carries(self) -> bool:
        """False for what precedes the first token: the chunk that only names the role."""
        if self.delta is None or self.token_ids or self.finish_reason is not None:
            return True
        return any(value for name, value in self.delta.items() if name != "role")


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decoder: Final = msgspec.json.Decoder(_Chunk)


def choices_in(frame: bytes) -> tuple[int, ...] | None:
    """Indices of the choices that ``frame`` says something of; None: of all there are.

    A frame that cannot be read counts as one that carries tokens: what a receipt says was published
    may exceed what the application read, never fall short of it.
    """
    if frame.startswith(_DATA):
        if frame.startswith(b"data: [DONE]"):
            return NONE
        try:
            chunk = _decoder.decode(frame[len(_DATA) :])
        except msgspec.DecodeError:
            return None
        return tuple(choice.index for choice in chunk.choices if choice.carries())
    if frame.startswith(_EVENT):
        name = frame[len(_EVENT) : frame.find(b"\n")]
        return None if name.endswith(b"delta") else NONE
    return None if frame.strip() else NONE

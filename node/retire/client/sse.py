"""Server-sent events, decoded incrementally (WHATWG HTML, section 9.2.6). Sans IO.

Owns the bytes of a stream between network and JSON. Must never import httpx.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Final

from retire.client.errors import StreamCorrupt

EVENT_BYTES_MAX: Final = 16 * 2**20  # one event; a longer one is a broken server, not a long answer


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One dispatched event. ``event`` is "message" when the server named none."""

    event: str
    data: str
    id: str


class SseDecoder:
    """Feed bytes as they arrive, get whole events; an incomplete last one is never returned."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")(errors="strict")
        self._line = ""
        self._skip_lf = False  # the chunk before ended in CR: a leading LF belongs to it
        self._event = ""
        self._data: list[str] = []
        self._id = ""
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Events completed by ``chunk``; raises StreamCorrupt on bad UTF-8 or an endless event."""
        try:
            text = self._utf8.decode(chunk)
        except UnicodeDecodeError as error:
            raise StreamCorrupt(f"event stream is not UTF-8: {error}") from error
        self._grow(len(chunk))
        return [event for line in self._lines(text) if (event := self._take(line)) is not None]

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > EVENT_BYTES_MAX and len(self._line) + sum(map(len, self._data)) > (
            EVENT_BYTES_MAX
        ):
            raise StreamCorrupt(f"one event is longer than {EVENT_BYTES_MAX} bytes")

    def _lines(self, text: str) -> list[str]:
        if self._skip_lf and text:
            text = text.removeprefix("\n")
            self._skip_lf = False
        if text.endswith("\r"):
            self._skip_lf = True
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        if lines:
            lines[0] = self._line + lines[0]
            self._line = rest
        else:
            self._line += rest
        return lines

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # a comment, "retry" or an undefined field: ignored, as specified

    def _dispatch(self) -> ServerEvent | None:
        data, self._data = self._data, []
        name, self._event = self._event, ""
        self._size = 0
        if not data:
            return None
        return ServerEvent(event=name or "message", data="\n".join(data), id=self._id)

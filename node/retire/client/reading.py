"""From bytes of a response to chunks a caller may see: the pure middle of both clients. Sans IO.

Owns the order receipt, chunks, end; the version check happens when a chunk is *taken*, not when it
arrives, so that what was buffered before a SUPERSEDE does not outlive it. Must never import httpx.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from retire.client.errors import StreamCorrupt, StreamInterrupted, Superseded, Unreachable, error_of
from retire.client.sse import SseDecoder
from retire.client.views import Chunk, Reply, chunk_of, reply_of
from retire.protocol.codec import receipt_from_dict
from retire.protocol.contract import Receipt
from retire.protocol.errors import RetireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.client.floor import VersionFloor
    from retire.client.sse import ServerEvent
    from retire.protocol.versions import Version

EVENT_RECEIPT: Final = "retire.receipt"
END_MARK: Final = "[DONE]"


class StreamReader:
    """One stream. ``feed`` bytes, ``take`` chunks, ``end`` when the connection is over."""

    def __init__(self, floor: VersionFloor, version: Version | None) -> None:
        """``version`` is the response header's. It raises the floor: an input that interrupted is
        answered only when nothing older can be published."""
        if version is not None:
            floor.raise_to(version)
        self._decoder = SseDecoder()
        self._floor = floor
        self._version = version
        self._chunks: deque[Chunk] = deque()
        self._receipt: Receipt | None = None
        self._reply: Reply | None = None
        self._error: RetireError | None = None
        self._over = False

    @property
    def version(self) -> Version | None:
        """The version this stream is published under, as far as it is known."""
        return self._version

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, once its event arrived."""
        return self._receipt

    @property
    def reply(self) -> Reply | None:
        """The whole answer, where it was not streamed."""
        return self._reply

    @property
    def over(self) -> bool:
        """Nothing more will be fed: end mark, terminal error or end of the connection."""
        return self._over

    def feed(self, data: bytes) -> None:
        """Bytes as they arrive. What follows the end of the stream is ignored."""
        for event in self._decoder.feed(data):
            if not self._over:
                self._accept(event)

    def take_answer(self, body: Mapping[str, Any]) -> None:
        """The unstreamed form ``{"receipt": ..., "response": ...}``: all there is, at once."""
        if "receipt" not in body:
            raise StreamCorrupt(f"an answer to SUPERSEDE without a receipt: {str(body)[:200]}")
        self._take_receipt(body["receipt"])
        self._over = True
        if body.get("response") is not None:
            self._reply = reply_of(body["response"], self._version)
        elif "error" in body:
            self._take_error(body)

    def continue_from(self, earlier: StreamReader, reply: Reply | None = None) -> None:
        """This stream carries the answer to a SUPERSEDE whose receipt came over another one."""
        self._receipt = earlier.receipt
        if reply is not None:
            self._reply, self._over = reply, True

    def end(self) -> None:
        """The connection is closed; without an end mark an error, raised after the chunks."""
        if self._over:
            return
        self._over = True
        if self._version is not None and self._floor.outdates(self._version):
            self._error = Superseded(self._version, self._floor.version, None)
        else:
            self._error = StreamInterrupted(
                "the stream ended before its end mark; retry the request"
            )

    def take(self) -> Chunk | None:
        """The next chunk that may be seen; None: feed more, or (``over``) there is none."""
        while self._chunks:
            chunk = self._chunks.popleft()
            if self._floor.admits(chunk.version):
                return chunk
        return None

    def finish(self) -> None:
        """Raise the stream's terminal error, if it ended with one."""
        if self._error is not None:
            raise self._error

    def require_receipt(self) -> None:
        """Raise unless the receipt arrived; a connection lost before it may be tried again."""
        if self._receipt is not None:
            return
        if isinstance(self._error, StreamInterrupted):
            raise Unreachable("the connection broke before the receipt") from self._error
        self.finish()
        raise StreamCorrupt("the stream of a SUPERSEDE ended without a receipt")

    def _accept(self, event: ServerEvent) -> None:
        if event.data == END_MARK:
            self._over = True
            return
        body = object_of(event.data)
        if event.event == EVENT_RECEIPT:
            self._take_receipt(body)
        elif "error" in body:
            self._take_error(body)
        else:
            chunk = chunk_of(body, self._version)
            self._version = chunk.version
            self._chunks.append(chunk)

    def _take_receipt(self, body: Mapping[str, Any]) -> None:
        self._receipt = read_receipt(body)
        self._version = self._receipt.to_version
        self._floor.raise_to(self._receipt.to_version)

    def _take_error(self, body: Mapping[str, Any]) -> None:
        self._over = True
        self._error = error_of(body, status=500, version=self._version)
        if isinstance(self._error, Superseded) and self._error.current is not None:
            self._floor.raise_to(self._error.current)


def object_of(text: str) -> dict[str, Any]:
    """A JSON object; StreamCorrupt for anything else."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise StreamCorrupt(f"not JSON: {text[:200]!r}") from error
    if not isinstance(body, dict):
        raise StreamCorrupt(f"a JSON object was expected, got {text[:200]!r}")
    return body


def read_receipt(body: Mapping[str, Any]) -> Receipt:
    """A receipt; StreamCorrupt when it does not fit the schema."""
    try:
        return receipt_from_dict(body)
    except (KeyError, TypeError, ValueError, RetireError) as error:
        raise StreamCorrupt(f"a receipt that cannot be read: {error}") from error

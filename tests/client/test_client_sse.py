"""The SSE decoder against every line end, split and oddity of the specification."""

import pytest

from retire.client.errors import StreamCorrupt
from retire.client.sse import EVENT_BYTES_MAX, SseDecoder

STREAM = (
    ": a comment\n\n"
    "data: one\n\n"
    'event: retire.receipt\ndata: {"a":\ndata: 1}\nid: 7\nretry: 10\nunknown: x\n\n'
    "data:no space\n\n"
    "data\n\n"
    "event: lost\n\n"
    "data: zwölf ✓\n\n"
    "data: unfinished\n"
)
WANTED = [
    ("message", "one", ""),
    ("retire.receipt", '{"a":\n1}', "7"),
    ("message", "no space", "7"),
    ("message", "", "7"),
    ("message", "zwölf ✓", "7"),
]


def decode(raw: bytes, size: int) -> list[tuple[str, str, str]]:
    """Events of ``raw``, fed in pieces of ``size`` bytes."""
    decoder = SseDecoder()
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    return [(e.event, e.data, e.id) for piece in pieces for e in decoder.feed(piece)]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_any_split_gives_the_same_events(line_end: str, size: int) -> None:
    """Line ends and network splits, also inside a character or a CR LF, change nothing."""
    raw = STREAM.replace("\n", line_end).encode()
    assert decode(raw, size) == WANTED


def test_a_byte_order_mark_is_skipped() -> None:
    """A leading BOM is no part of the first field's name."""
    assert decode(b"\xef\xbb\xbfdata: x\n\n", 1) == [("message", "x", "")]


def test_what_is_not_utf8_is_refused() -> None:
    """Broken bytes are an error, not a replacement character in somebody's answer."""
    with pytest.raises(StreamCorrupt, match="not UTF-8"):
        decode(b"data: \xff\n\n", 100)


def test_an_endless_event_is_refused() -> None:
    """A server that never ends an event cannot fill the client's memory."""
    decoder = SseDecoder()
    piece = b"data: " + b"x" * (1 << 20) + b"\n"
    with pytest.raises(StreamCorrupt, match=str(EVENT_BYTES_MAX)):
        for _ in range(20):
            decoder.feed(piece)


def test_a_long_stream_of_short_events_is_fine() -> None:
    """The limit is on one event, not on a stream."""
    decoder = SseDecoder()
    piece = b"data: " + b"x" * (1 << 20) + b"\n\n"
    assert sum(len(decoder.feed(piece)) for _ in range(20)) == 20

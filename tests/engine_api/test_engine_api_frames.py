"""Which choices' tokens a frame carries, in the shapes that vLLM streams."""

from __future__ import annotations

import pytest

from retire.engine.frames import choices_in

ROLE = b'data: {"choices":[{"index":1,"delta":{"role":"assistant","content":""}}]}\n\n'
CHAT = b'data: {"choices":[{"index":1,"delta":{"content":"a \\"delta\\":{"}}]}\n\n'
TOOL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}\n\n'
HIDDEN = b'data: {"choices":[{"index":0,"delta":{},"token_ids":[7]}]}\n\n'
NOTHING = b'data: {"choices":[{"index":0,"delta":{"content":""}}]}\n\n'
LAST = b'data: {"choices":[{"index":2,"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
TEXT = b'data: {"choices":[{"index":3,"text":"x"}],"retire":{"version":"1.0"}}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
RECEIPT = b'event: retire.receipt\ndata: {"certified_tokens": 5}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'
MESSAGE = b'event: content_block_delta\ndata: {"delta":{"text":"x"}}\n\n'
COMMENT = b": ping\n\n"


@pytest.mark.parametrize(
    ("frame", "choices"),
    [
        (ROLE, ()), (CHAT, (1,)), (TOOL, (0,)), (HIDDEN, (0,)), (NOTHING, ()), (LAST, (2,)),
        (TEXT, (3,)), (USAGE, ()), (DONE, ()), (RECEIPT, ()), (CREATED, ()), (DELTA, None),
        (MESSAGE, None), (b"data: {not json}\n\n", None), (COMMENT, None), (b"", ()),
    ],
)  # fmt: skip
def test_choices_of_a_frame(frame: bytes, choices: tuple[int, ...] | None) -> None:
    """The indices it says something of; None stands for all."""
    assert choices_in(frame) == choices

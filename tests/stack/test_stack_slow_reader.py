"""A client that stops reading: what it can still read was handed over before the acknowledgement.

The server's last buffers (its transport's, two kernels') are out of our hands, and bounded; what
this proves is that nothing is added to them after the ack, whatever waits behind them (C1).
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from bench.stack_streams import COMPLETIONS, Agent, frames_of, streamed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stack import Stack
    from bench.stack_streams import Frame

WINDOW_BYTES = 4096  # of the client's receive buffer
SEGMENT_BYTES = 1000  # the server's send buffer grows with the segment: 64 KB on loopback
TOKENS = 3000
AHEAD = 1500  # tokens computed before anything happens: far more than all buffers hold
SECONDS = 60.0


class StuckReader:
    """A stream of which a few frames are read, and the rest only when it is asked for."""

    def __init__(self, agent: Agent, *, max_tokens: int = TOKENS, read: int = 3) -> None:
        address = urlsplit(agent.stack.url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        self._socket.settimeout(SECONDS)
        self._socket.connect((address.hostname, address.port))
        self._wire = http.client.HTTPConnection(str(address.hostname), address.port)
        self._wire.sock = self._socket
        body = streamed(agent.stack.body([11] * 40, max_tokens=max_tokens))
        headers = {"content-type": "application/json", **agent.headers}
        self._wire.request("POST", COMPLETIONS, json.dumps(body), headers)
        answer = self._wire.getresponse()
        assert answer.status == 200
        self._frames = frames_of(line.decode().rstrip() for line in iter(answer.readline, b""))
        self.read: list[Frame] = [next(self._frames) for _ in range(read)]

    def rest(self) -> list[Frame]:
        """Read to the end; every frame of the stream."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.read += list(self._frames)
        return self.read

    def close(self) -> None:
        """Hang up."""
        self._wire.close()


@pytest.fixture
def agent(stack: Stack) -> Agent:
    """A scope of its own."""
    return Agent.new(stack, "stuck")


@pytest.fixture
def stuck(agent: Agent) -> Iterator[StuckReader]:
    """A stream whose reader has stopped, with far more computed than its sockets hold."""
    reader = StuckReader(agent)
    until_computed(agent, AHEAD)
    yield reader
    reader.close()


def until_computed(agent: Agent, tokens: int) -> None:
    """Wait until the engine has computed this many output tokens for the scope's request."""
    deadline_s = time.monotonic() + SECONDS
    while time.monotonic() < deadline_s:
        (request,) = agent.view()["requests"]
        if request["output_tokens"] >= tokens:
            return
        time.sleep(0.05)
    raise AssertionError(f"{tokens} tokens were not computed within {SECONDS:g} s")


def token_count(frames: list[Frame]) -> int:
    """Output tokens of a stream."""
    return sum(frame.tokens for frame in frames)


def test_nothing_is_handed_over_after_the_acknowledgement(agent: Agent, stuck: StuckReader) -> None:
    """The ack does not wait for the reader; the last token that he can read is the last published
    one of the receipt, then comes the error."""
    version, began_s = agent.version, time.monotonic()
    successor = agent.supersede_stream(version, agent.stack.body([11] * 40, max_tokens=4)).ended()
    assert successor.done and successor.tokens == 4 and time.monotonic() - began_s < 10
    receipt = successor.receipt
    assert [gate["outcome"] for gate in receipt["gates"]] == ["acked"]
    assert receipt["stages_ms"]["unpublishable"] < 1000
    (retired,) = receipt["requests"]
    last = retired["last_published_index"]
    computed = retired["frontier_tokens"] - retired["prompt_tokens"]
    frames = stuck.rest()
    tokens, end = [f for f in frames if f.tokens], frames[-1]
    assert end.body is not None and end.body["error"]["code"] == "superseded"
    assert end.body["error"]["last_published_index"] == last == token_count(frames) - 1
    assert {frame.version for frame in tokens} == {version}
    assert not any(frame.body is None for frame in frames), "no [DONE] after an error"
    # The power of the above: hundreds of tokens waited behind the socket and never came.
    print(f"published {last + 1}, computed {computed}")
    assert computed - (last + 1) > 300
    assert len(tokens) > 3 + 10, "the sockets held some: bounded, not none"


def test_a_reader_that_wakes_up_sees_every_token_when_nothing_is_superseded(agent: Agent) -> None:
    """NEGATIVE CONTROL: without a SUPERSEDE the tokens that waited are delivered, all of them."""
    reader = StuckReader(agent, max_tokens=AHEAD)
    until_stalled(agent)
    frames = reader.rest()
    assert token_count(frames) == AHEAD and frames[-1].body is None
    reader.close()


def until_stalled(agent: Agent) -> None:
    """Wait until the engine is done with the scope."""
    deadline_s = time.monotonic() + SECONDS
    while agent.view()["requests"] and time.monotonic() < deadline_s:
        time.sleep(0.05)


def test_a_reader_that_leaves_frees_everything(agent: Agent, stuck: StuckReader) -> None:
    """Hanging up with a full socket ends the request; a SUPERSEDE after it is an ordinary one."""
    threading.Timer(0.2, stuck.close).start()
    deadline_s = time.monotonic() + SECONDS
    while agent.view()["requests"] and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert agent.view()["requests"] == []
    receipt = agent.supersede(agent.version, [11] * 40, max_tokens=2)["receipt"]
    assert receipt["error"] is None
    assert agent.view()["pinned_blocks"] == 0

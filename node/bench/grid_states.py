"""The ten states that an event can find a request in: how each is reached, and seen to be reached.

``reach`` raises Missed when what was observed says that the state was not met, so that the cell is
tried again; a state is never assumed. Must never send the event.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from bench.grid_scene import BLOCK, PROMPT, QUANTUM, SCOPE, WAIT_S
from bench.grid_wire import Stuck

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.grid_scene import Scene

CHUNK_BLOCKS: Final = QUANTUM // BLOCK
PROMPT_BLOCKS: Final = PROMPT // BLOCK
SPIN_S: Final = 0.0005
BUSY: Final = 503  # of a machine so loaded that the node's lease ran out
HALT_S: Final = 0.03  # for what the engine had sent when it was stopped


class State(Enum):
    """Where the old request is when the event comes."""

    NOT_ADMITTED = "not admitted"  # accepted by the API server, unknown to the engine
    QUEUED = "queued"
    FIRST_CHUNK = "first chunk"  # the first prefill chunk is being computed
    MID_PREFILL = "mid prefill"
    LAST_CHUNK = "last chunk"  # the last one, which makes the first token
    FIRST_TOKEN = "first token"  # the consumer has it, and no other
    MID_DECODE = "mid decode"
    LAST_TOKEN = "last token"  # the consumer has all but the last one, or the last step's
    FINISHED = "finished"
    SUPERSEDED = "superseded"  # by an earlier SUPERSEDE, whose caller brings the successor later


LONG: Final = 160  # tokens: a stream that is still running when a slow machine looks again
SHORT: Final = 8
OLD_TOKENS: Final[dict[State, int]] = {
    state: SHORT if state in (State.LAST_TOKEN, State.FINISHED) else LONG for state in State
}
# Ranks that poll each other leave the reader of a stream no core for hundreds of steps.
OLD_TOKENS[State.MID_DECODE] = 8 * LONG


class Missed(Exception):
    """The state was not met; the text says what was found instead."""


def reach(scene: Scene, state: State) -> None:
    """Bring the old stream into the state. Missed, or Stuck when nothing moves."""
    try:
        _REACH[state](scene)
    except Stuck as stuck:
        if scene.old is not None and scene.old.status == BUSY:
            raise Missed(f"the server was busy: {scene.old.errors}") from stuck
        raise


def _not_admitted(scene: Scene) -> None:
    scene.freeze()
    old = scene.open_old(OLD_TOKENS[State.NOT_ADMITTED])
    scene.until(lambda: old.status is not None, "the head of the response")
    if scene.tail.read().submitted:
        raise Missed("the engine had it already")


def _queued(scene: Scene) -> None:
    scene.fill()
    old = scene.open_old(OLD_TOKENS[State.QUEUED])
    scene.until(lambda: old.ended or scene.tail.read().submitted > 0, "the request in the engine")
    if old.ended:
        raise Stuck(f"the old request was refused: {old.status}, {old.errors}")
    found = scene.view()["requests"]
    if [one["state"] for one in found] != ["queued"]:
        raise Missed(f"the scope's requests are {found}")


def _first_chunk(scene: Scene) -> None:
    scene.open_old(OLD_TOKENS[State.FIRST_CHUNK])
    _stop_when(scene, lambda: scene.tail.read().allocated > 0)
    now = scene.tail.read()
    if now.written or now.allocated > CHUNK_BLOCKS * scene.variant.groups:
        raise Missed(f"{now.written} chunks were written already")


def _mid_prefill(scene: Scene) -> None:
    scene.open_old(OLD_TOKENS[State.MID_PREFILL])
    half = PROMPT_BLOCKS * scene.variant.groups // 2
    _spin(scene, lambda: scene.tail.read().allocated >= half)
    found = scene.view()["requests"]
    if [(one["state"], one["output_tokens"]) for one in found] != [("prefill", 0)]:
        raise Missed(f"the scope's requests are {found}")


def _last_chunk(scene: Scene) -> None:
    old = scene.open_old(OLD_TOKENS[State.LAST_CHUNK])
    whole = PROMPT_BLOCKS * scene.variant.groups
    _stop_when(scene, lambda: scene.tail.read().allocated >= whole)
    now = scene.tail.read()
    scene.read_for(HALT_S)
    if old.tokens or now.written >= now.chunks or now.allocated > whole:
        raise Missed(f"it was over: {now}, {len(old.tokens)} tokens")


def _first_token(scene: Scene) -> None:
    scene.slow_down()
    old = scene.open_old(OLD_TOKENS[State.FIRST_TOKEN])
    _tokens(scene, 1)
    scene.freeze()
    scene.read_for(HALT_S)
    if len(old.tokens) != 1:
        raise Missed(f"{len(old.tokens)} tokens had come")


def _mid_decode(scene: Scene) -> None:
    old = scene.open_old(OLD_TOKENS[State.MID_DECODE])
    _tokens(scene, LONG // 4)
    if old.ended or len(old.tokens) >= 7 * LONG:
        raise Missed(f"{len(old.tokens)} tokens had come")


def _last_token(scene: Scene) -> None:
    scene.slow_down()
    old = scene.open_old(OLD_TOKENS[State.LAST_TOKEN])
    most = SHORT - 1 - scene.variant.drafts  # a step may bring the rest, drafts and all
    _tokens(scene, most)
    scene.freeze()
    scene.read_for(HALT_S)
    if old.ended or not most <= len(old.tokens) < SHORT:
        raise Missed(f"{len(old.tokens)} tokens had come")


def _finished(scene: Scene) -> None:
    old = scene.open_old(OLD_TOKENS[State.FINISHED])
    scene.until(lambda: old.ended, "the end of the stream")
    if not old.done or len(old.tokens) != SHORT:
        raise Stuck(f"it ended with {old.status}, {old.errors}, {old.broken}")


def _superseded(scene: Scene) -> None:
    old = scene.open_old(OLD_TOKENS[State.SUPERSEDED])
    _tokens(scene, LONG // 4)
    first = scene.call(f"/v1/scopes/{SCOPE}/supersede", scene.retirement("1.0"))
    scene.until(lambda: first.ended, "the answer to the first SUPERSEDE", first)
    version = scene.view()["version"]
    if first.status != 200 or version != "1.1":
        raise Stuck(f"the first SUPERSEDE answered {first.status}; the scope is at {version}")
    if old.done:
        raise Missed("the old stream was complete before the first SUPERSEDE")


_REACH: Final = {
    State.NOT_ADMITTED: _not_admitted,
    State.QUEUED: _queued,
    State.FIRST_CHUNK: _first_chunk,
    State.MID_PREFILL: _mid_prefill,
    State.LAST_CHUNK: _last_chunk,
    State.FIRST_TOKEN: _first_token,
    State.MID_DECODE: _mid_decode,
    State.LAST_TOKEN: _last_token,
    State.FINISHED: _finished,
    State.SUPERSEDED: _superseded,
}


def _tokens(scene: Scene, count: int) -> None:
    old = scene.old
    assert old is not None
    scene.until(lambda: old.ended or len(old.tokens) >= count, f"{count} tokens")
    if len(old.tokens) < count:
        raise Stuck(f"the old stream ended early: {old.status}, {old.errors}, {old.broken}")


def _stop_when(scene: Scene, condition: Callable[[], bool]) -> None:
    """Watch the engine's records alone, nothing else would be quick enough; stop it at once."""
    _spin(scene, condition)
    scene.freeze()
    time.sleep(HALT_S / 10)  # the signal is delivered when the process next leaves the kernel


def _spin(scene: Scene, condition: Callable[[], bool]) -> None:
    assert scene.old is not None
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        scene.old.drain()
        if scene.old.ended or time.monotonic() >= deadline_s:
            raise Stuck(f"the engine makes no progress: {scene.old.status}, {scene.old.errors}")
        time.sleep(SPIN_S)

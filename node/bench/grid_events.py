"""The four events, made to happen to a scene, and all that was seen of them.

Owns the order of things: send, let the engine go on once the event is acknowledged, read everything
to its end, ask what is left. Must never judge: ``grid_checks`` does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bench.grid_scene import NEW_PROMPT, NEW_TOKENS, SCOPE, SETTLE_S
from bench.grid_states import State
from bench.grid_variants import PLAIN, Variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.grid_progress import Progress
    from bench.grid_scene import Scene
    from bench.grid_wire import Connection

FROZEN_S: Final = 5.0  # the longest that an acknowledgement may take with the engine stopped
LINGER_S: Final = 0.15  # an engine that lost its consumer while it stood still
POLL_S: Final = 0.05
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT: Final = f"00-{TRACE}-b7ad6b7169203331-01"


class Event(Enum):
    """What happens to the old request."""

    SUPERSEDE = "supersede"
    CANCEL = "cancel"
    DISCONNECT = "disconnect"
    DUPLICATE = "duplicate"  # the same SUPERSEDE, same Idempotency-Key: twice at once, and again


@dataclass(slots=True)
class Seen:
    """What one cell showed."""

    state: State
    event: Event
    old: Connection
    before: Progress  # of the engine, when the event was sent
    variant: Variant = PLAIN
    answers: list[Connection] = field(default_factory=list)  # to the event, in the order sent
    again: Connection | None = None  # to the duplicate that came later
    mark: int | None = None  # tokens the consumer had when the first answer was read
    slow: bool = False  # not acknowledged until the engine went on
    follow_up: Connection | None = None  # a tagged request after the event
    retired: Connection | None = None  # a SUPERSEDE without a request, before the follow-up
    busy: Mapping[str, Any] = field(default_factory=dict)  # the scope after a disconnect
    view: Mapping[str, Any] = field(default_factory=dict)  # the scope at the end
    used_blocks: int = 0  # of the engine, at the end
    records: Sequence[Mapping[str, Any]] = ()  # the history of the tenant


def happen(scene: Scene, state: State, event: Event) -> Seen:
    """Let the event happen, and look. Stuck when something never comes."""
    assert scene.old is not None
    seen = Seen(state, event, scene.old, scene.tail.read(), scene.variant)
    if event is Event.DISCONNECT:
        _disconnect(scene, seen)
    else:
        _ask(scene, seen)
    _follow_up(scene, seen)
    _settle(scene, seen)
    seen.records = scene.tail.records
    return seen


def supersede(scene: Scene, expected: str, key: str) -> Connection:
    """A SUPERSEDE that brings its successor."""
    body = scene.retirement(expected) | {"request": scene.completion(NEW_PROMPT, NEW_TOKENS)}
    path = f"/v1/scopes/{SCOPE}/supersede"
    return scene.call(path, body, idempotency_key=key, traceparent=TRACEPARENT)


def _send(scene: Scene, event: Event) -> list[Connection]:
    match event:
        case Event.SUPERSEDE:
            return [supersede(scene, "1.0", "one")]
        case Event.DUPLICATE:
            return [supersede(scene, "1.0", "same"), supersede(scene, "1.0", "same")]
        case _:
            body = {"expected_version": "1.0"}
            headers = {"idempotency_key": "one", "traceparent": TRACEPARENT}
            return [scene.call(f"/v1/scopes/{SCOPE}/cancel", body, **headers)]


def _ask(scene: Scene, seen: Seen) -> None:
    wanted = scene.tail.read().acknowledged + 1
    seen.answers = _send(scene, seen.event)
    frozen_until_s = time.monotonic() + FROZEN_S

    def answered() -> bool:
        if scene.frozen:
            if scene.tail.read().acknowledged >= wanted:
                scene.thaw()
            elif time.monotonic() > frozen_until_s:
                seen.slow = True
                scene.thaw()
        if seen.mark is None and any(_answered(one) for one in seen.answers):
            seen.old.drain()  # what the socket holds by now came before the answer was read
            seen.mark = len(seen.old.tokens)
        return all(_answered(one) for one in seen.answers)

    scene.until(answered, "an answer to the event", *seen.answers)
    scene.make_room()
    scene.until(
        lambda: all(one.ended for one in seen.answers), "the successor's end", *seen.answers
    )
    scene.until(lambda: seen.old.ended, "the end of the old stream")
    if seen.event is Event.DUPLICATE:
        seen.again = again = supersede(scene, "1.0", "same")
        scene.until(lambda: again.ended, "the answer to the later duplicate", again)


def _answered(one: Connection) -> bool:
    return one.ended or one.receipt is not None


def _disconnect(scene: Scene, seen: Seen) -> None:
    seen.old.hang_up()
    if scene.frozen:
        time.sleep(LINGER_S)
        scene.thaw()
    seen.busy = _wait_idle(scene)
    scene.make_room()


def _wait_idle(scene: Scene) -> Mapping[str, Any]:
    """The scope once no request of it lives, or as it is when the time is over."""
    deadline_s = time.monotonic() + SETTLE_S
    while (view := scene.view())["requests"] and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return view


def _follow_up(scene: Scene, seen: Seen) -> None:
    """What comes after: the late successor, the next request, or the refused one."""
    if seen.event in (Event.SUPERSEDE, Event.DUPLICATE) and seen.state is not State.SUPERSEDED:
        return
    if seen.event is Event.DISCONNECT and seen.state is not State.SUPERSEDED:
        body = scene.retirement("1.0")
        seen.retired = retired = scene.call(f"/v1/scopes/{SCOPE}/supersede", body)
        scene.until(lambda: retired.ended, "the answer to SUPERSEDE", retired)
    seen.follow_up = last = scene.tagged(NEW_PROMPT, NEW_TOKENS)
    scene.until(lambda: last.ended, "the follow-up", last)


def _settle(scene: Scene, seen: Seen) -> None:
    """Wait until blocks and pins are back, but not for ever; then they are what they are."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        seen.view = scene.view()
        inspection = scene.stack.inspect(scene.tenant, settle=True)
        seen.used_blocks = inspection.used_blocks
        clean = not (seen.view["requests"] or seen.view["pinned_blocks"] or seen.used_blocks)
        if clean or time.monotonic() >= deadline_s:
            scene.tail.read()
            return
        time.sleep(POLL_S)

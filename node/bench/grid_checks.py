"""What every cell of the grid must show: pure rules over what was seen, each problem in words.

Where the engine's own records say how far the old work had come, they are the measure of the
receipt, never the other way round. Must never wait, send or observe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import jsonschema

from bench.grid_events import TRACE, Event
from bench.grid_scene import BLOCK, COMMON, PROMPT, QUANTUM
from bench.grid_states import OLD_TOKENS, State
from retire.protocol import history, invariants
from retire.protocol.codec import receipt_from_dict
from retire.protocol.schema import RECEIPT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.grid_events import Seen
    from bench.grid_wire import Connection

OLD: Final = "1.0"
NEW: Final = "1.1"
CHUNKS: Final = PROMPT // QUANTUM
STEPS_AFTER_HANG_UP: Final = 16  # of the old request: the server must notice, then say so
STATES: Final = {
    State.NOT_ADMITTED: {"queued"},
    State.QUEUED: {"queued"},
    State.FIRST_CHUNK: {"prefill"},
    State.MID_PREFILL: {"prefill"},
    State.LAST_CHUNK: {"prefill"},
    State.FIRST_TOKEN: {"decode"},
    State.MID_DECODE: {"decode"},
    State.LAST_TOKEN: {"decode", "finished"},  # it may end in the very step that is fenced
    State.FINISHED: {"finished"},
}


@dataclass(frozen=True, slots=True)
class Reference:
    """Clean, untagged, greedy runs of the same prompts."""

    old: tuple[int, ...]
    new: tuple[int, ...]


def problems(seen: Seen, clean: Reference) -> list[str]:
    """Every promise that the cell breaks; empty when it keeps them all."""
    found = [*_old_stream(seen, clean), *_scope(seen), *_history(seen)]
    if seen.event is Event.DISCONNECT:
        found += _disconnected(seen, clean)
    elif seen.state is State.SUPERSEDED:
        found += _refused_as_stale(seen, clean)
    elif seen.event is Event.CANCEL:
        found += _cancelled(seen)
    else:
        found += _superseded(seen, clean)
    return found


def met(seen: Seen) -> str:
    """Empty when the event met its state, by the engine's records; else what it met instead."""
    written = written_steps(seen, until=_commit_ns(seen)) or seen.before.written
    bounds = {State.MID_PREFILL: (1, CHUNKS - 1), State.MID_DECODE: (CHUNKS + 1, CHUNKS + 60)}
    low, high = bounds.get(seen.state, (0, 10**9))
    return "" if low <= written <= high else f"{written} steps were written"


def late_tokens(seen: Seen) -> int:
    """Old tokens that the consumer read after the answer to the event."""
    return 0 if seen.mark is None else len(seen.old.tokens) - seen.mark


def written_steps(seen: Seen, *, until: int | None = None) -> int:
    """Steps of the old version that have written, as the engine recorded (by a time in ns)."""
    return sum(
        one["record"] == "Wrote"
        and one["version"] == OLD
        and (until is None or one["at_ns"] <= until)
        for one in seen.records
    )


def _time_of(seen: Seen, record: str) -> int | None:
    return next((one["at_ns"] for one in seen.records if one["record"] == record), None)


def _commit_ns(seen: Seen) -> int | None:
    return None if seen.event is Event.DISCONNECT else _time_of(seen, "CommitMade")


# --- the old stream --------------------------------------------------------------------------


def _old_stream(seen: Seen, clean: Reference) -> Iterator[str]:
    tokens = seen.old.tokens
    if tuple(tokens) != clean.old[: len(tokens)]:
        yield "old tokens differ from a clean run's"
    if late_tokens(seen):
        yield f"{late_tokens(seen)} late tokens"
    if seen.slow:
        yield "the acknowledgement waited for the engine"
    if seen.event is Event.DISCONNECT:
        return
    if seen.state is State.FINISHED:
        if seen.old.errors or not seen.old.done or len(tokens) != OLD_TOKENS[seen.state]:
            yield f"the finished stream changed: {seen.old.errors}"
        return
    yield from _terminal(seen)


def _terminal(seen: Seen) -> Iterator[str]:
    old = seen.old
    if len(old.errors) != 1 or old.broken:
        yield f"{len(old.errors)} terminal events instead of one ({old.broken or 'closed'})"
        return
    cancelled = seen.event is Event.CANCEL and seen.state is not State.SUPERSEDED
    want = {
        "code": "cancelled" if cancelled else "superseded",
        "type": "conflict",
        "version": OLD,
        "current": NEW,
        "last_published_index": len(old.tokens) - 1 if old.tokens else None,
    }
    error = old.errors[0]
    yield from _differences("terminal event", want, error)
    if old.streaming and (old.done or old.events[-1].body.get("error") != error):
        yield "the terminal event is not the last"


# --- receipts ---------------------------------------------------------------------------------


def _receipt(seen: Seen, receipt: Mapping[str, Any] | None, *, trace: bool = True) -> Iterator[str]:
    """What is true of the receipt of any change of version."""
    if receipt is None:
        yield "no receipt"
        return
    yield from _schema(receipt)
    want = {"from_version": OLD, "to_version": NEW, "error": None}
    want |= {"trace_id": TRACE} if trace else {}
    yield from _differences("receipt", want, receipt)
    if not receipt["gates"] or {gate["outcome"] for gate in receipt["gates"]} != {"acked"}:
        yield f"gates: {receipt['gates']}"
    if not all(part["closed"] for part in receipt["participants"]) or not receipt["participants"]:
        yield f"participants: {receipt['participants']}"
    if len(receipt["participants"]) != seen.variant.ranks * seen.variant.groups:
        yield f"{len(receipt['participants'])} participants"
    if not receipt["certified_tokens"] <= receipt["inheritable_tokens"]:
        yield "more tokens certified than inheritable"
    if len(receipt["requests"]) != 1:
        yield f"{len(receipt['requests'])} retired requests instead of one"
        return
    yield from _retired(seen, receipt["requests"][0])


def _retired(seen: Seen, request: Mapping[str, Any]) -> Iterator[str]:
    gone = seen.event is Event.DISCONNECT
    states = {"finished"} if gone else STATES[seen.state]
    if seen.state is State.FIRST_CHUNK and not gone and not written_steps(seen):
        states = {"queued"}  # its step was abandoned before it was launched: nothing is computed
    if request["state"] not in states:
        yield f"the request was {request['state']!r}, not {' or '.join(sorted(states))}"
    yield from _differences("retired request", {"prompt_tokens": PROMPT}, request)
    low, high = _frontier(seen)
    # A step that was abandoned takes the block that it would have written with it.
    if not low // BLOCK * BLOCK <= request["frontier_tokens"] <= high:
        yield f"the frontier is {request['frontier_tokens']}; {low} to {high} tokens were written"
    got = len(seen.old.tokens) - 1
    told = -1 if request["last_published_index"] is None else request["last_published_index"]
    if told != got and not (gone and told >= got):  # a consumer that left may have missed some
        yield f"last_published_index {request['last_published_index']}, but {got + 1} tokens came"


def _frontier(seen: Seen) -> tuple[int, int]:
    """Tokens whose KV the old version has written, from the engine's records of its steps.

    The fewest and the most: a step that verifies drafts writes one token or one more for each. What
    its consumer has, it has written, but the last token.
    """
    steps = written_steps(seen)
    prompt, decoded = min(steps, CHUNKS) * QUANTUM, max(0, steps - CHUNKS)
    known = PROMPT + len(seen.old.tokens) - 1 if decoded and seen.variant.drafts else 0
    return max(prompt + decoded, known), prompt + decoded * (1 + seen.variant.drafts)


def _schema(receipt: Mapping[str, Any]) -> Iterator[str]:
    try:
        jsonschema.validate(receipt, RECEIPT_SCHEMA)
        receipt_from_dict(receipt)
    except (jsonschema.ValidationError, ValueError) as error:
        yield f"receipt against its schema: {str(error).splitlines()[0]}"


def _inherited(seen: Seen, receipt: Mapping[str, Any]) -> Iterator[str]:
    kept = min(_frontier(seen)[0], COMMON) // BLOCK * BLOCK
    short = kept < COMMON
    want = {
        "inheritable_tokens": COMMON,
        "certified_tokens": kept,
        "first_difference": COMMON,
        "stop_reason": "frontier" if short else "first_difference",
        "replayed": False,
    }
    yield from _differences("receipt", want, receipt)
    if receipt["successor_request_id"] is None:
        yield "the receipt names no successor"


# --- by event ---------------------------------------------------------------------------------


def _superseded(seen: Seen, clean: Reference) -> Iterator[str]:
    leaders = [one for one in seen.answers if one.tokens]
    if len(leaders) != 1:
        yield f"{len(leaders)} of {len(seen.answers)} answers brought a successor"
        yield from (f"answer {one.status}: {one.errors}" for one in seen.answers)
        return
    leader = leaders[0]
    yield from _receipt(seen, leader.receipt)
    if leader.receipt is not None:
        yield from _inherited(seen, leader.receipt)
    yield from _answer("the successor", leader, clean)
    followers = [one for one in seen.answers if one is not leader]
    for one in (*followers, *([seen.again] if seen.again else ())):
        yield from _replay(leader, one)


def _replay(leader: Connection, one: Connection) -> Iterator[str]:
    """A duplicate is told what the first call was told, and runs nothing."""
    if one.status != 200 or one.tokens or one.receipt is None or not one.done:
        yield f"a duplicate answered {one.status}, {len(one.tokens)} tokens, {one.errors}"
    elif leader.receipt is not None:
        yield from _differences("a duplicate", {**leader.receipt, "replayed": True}, one.receipt)


def _cancelled(seen: Seen) -> Iterator[str]:
    answer, refused = seen.answers[0], seen.follow_up
    if answer.status != 200:
        yield f"cancel answered {answer.status}: {answer.errors}"
        return
    yield from _receipt(seen, answer.receipt)
    yield from _differences("cancel", {"from_version": OLD, "version": NEW}, answer.json)
    want = {"pin": None, "successor_request_id": None, "certified_tokens": 0, "replayed": False}
    yield from _differences("receipt", want, answer.receipt or want)
    if refused is None or refused.status != 409:
        yield f"a request after cancel answered {refused and refused.status}"
    elif [error["code"] for error in refused.errors] != ["scope_cancelled"]:
        yield f"a request after cancel got {refused.errors}"


def _refused_as_stale(seen: Seen, clean: Reference) -> Iterator[str]:
    for one in (*seen.answers, *([seen.again] if seen.again else ())):
        if one.status != 409:
            yield f"a stale call answered {one.status}"
            continue
        want = {"code": "version_conflict", "version": OLD, "current": NEW}
        yield from _differences("refusal", want, one.errors[0])
    if seen.follow_up is not None:
        yield from _answer("the late successor", seen.follow_up, clean)


def _disconnected(seen: Seen, clean: Reference) -> Iterator[str]:
    if seen.state is not State.SUPERSEDED:
        yield from _differences("the scope", {"requests": [], "version": OLD}, seen.busy)
        ran = written_steps(seen) - seen.before.written
        if ran > STEPS_AFTER_HANG_UP:
            yield f"the engine ran {ran} more steps for a consumer that had left"
        if seen.retired is None or seen.retired.status != 200:
            yield f"SUPERSEDE afterwards answered {seen.retired and seen.retired.errors}"
        else:
            yield from _receipt(seen, seen.retired.receipt, trace=False)
    if seen.follow_up is not None:
        yield from _answer("the next request", seen.follow_up, clean)


def _answer(who: str, answer: Connection, clean: Reference) -> Iterator[str]:
    """A complete stream of the new version, with the tokens of a clean run."""
    if answer.status != 200 or not answer.done or answer.errors or answer.broken:
        yield f"{who}: {answer.status}, {answer.errors}, {answer.broken or 'closed'}"
    if tuple(answer.tokens) != clean.new:
        yield f"{who}: {answer.tokens} is not a clean run's {list(clean.new)}"
    versions = {event.body.get("retire", {}).get("version") for event in answer.events
                if event.tokens}  # fmt: skip
    if versions != {NEW}:
        yield f"{who}: chunks of versions {versions}"


# --- what is left -----------------------------------------------------------------------------


def _scope(seen: Seen) -> Iterator[str]:
    cancelled = seen.event is Event.CANCEL and seen.state is not State.SUPERSEDED
    want = {
        "version": NEW,
        "phase": "cancelled" if cancelled else "current",
        "cancelled": cancelled,
        "paused": False,
        "requests": [],
        "pinned_blocks": 0,
    }
    yield from _differences("the scope at the end", want, seen.view)
    if seen.used_blocks:
        yield f"{seen.used_blocks} KV blocks did not come back"


def _history(seen: Seen) -> Iterator[str]:
    records = [history.record_from_dict(dict(one)) for one in seen.records]
    for broken in invariants.check(history.in_order(records)):
        yield f"history: {broken.name}: {broken.message}"
    commits = sum(one["record"] == "CommitMade" for one in seen.records)
    if commits != 1:
        yield f"{commits} commits instead of one"
    acknowledged = _time_of(seen, "Acknowledged")
    if acknowledged is not None and seen.event is not Event.DISCONNECT:
        late = written_steps(seen) - written_steps(seen, until=acknowledged)
        if late > 1:
            yield f"{late} steps of the old version ran after the acknowledgement"


def _differences(what: str, want: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[str]:
    for name, value in want.items():
        if got.get(name) != value:
            yield f"{what}: {name} is {got.get(name)!r}, not {value!r}"

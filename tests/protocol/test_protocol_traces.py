"""The events that led to a violation: what is shown, what is left out."""

from __future__ import annotations

from retire.protocol.events import Change
from retire.protocol.history import (
    Acknowledged,
    Allocated,
    CommitMade,
    Idle,
    PinReleased,
    PinTaken,
    Published,
    Record,
    Submitted,
    VersionSeen,
    Wrote,
)
from retire.protocol.invariants import check
from retire.protocol.traces import explain, trace_of
from retire.protocol.versions import ScopeKey, Version

K, OTHER = ScopeKey("acme", "plan"), ScopeKey("rival", "plan")
V0, V1 = Version(1, 0), Version(1, 1)
MOVE = CommitMade(3_000_000, K, Change.SUPERSEDE, V0, V1, "k1", 7)
ACK = Acknowledged(4_000_000, K, V1)


def publish(at: int, request: str, key: ScopeKey = K) -> Published:
    return Published(at, key, V0, request, "n/api", at)


def traced(history: list[Record]) -> list[Record]:
    violations = check(history)
    assert len(violations) == 1, violations
    return [history[i] for i in trace_of(history, violations[0])]


def test_a_late_publication_is_led_to_by_its_commit_and_its_own_frames() -> None:
    """Other requests, other scopes and pages are left out."""
    history = [
        publish(1, "r"),
        publish(1, "other"),
        publish(2, "r", OTHER),
        Allocated(2, "n", K, V0, (1,)),
        MOVE,
        VersionSeen(3_500_000, "n", K, V1),
        ACK,
        publish(5_000_000, "r"),
        publish(6_000_000, "q", OTHER),
    ]
    assert traced(history) == [
        history[0], MOVE, VersionSeen(3_500_000, "n", K, V1), ACK, history[7],
    ]  # fmt: skip


def test_a_foreign_write_shows_everybody_who_touched_the_block() -> None:
    """The owner is another tenant: without it nothing could be understood."""
    mine = Allocated(1, "n", OTHER, V0, (1, 2))
    elsewhere = Allocated(1, "m", OTHER, V0, (1,))
    write = Wrote(2, "n", K, V0, (2, 9))
    assert traced([mine, elsewhere, Allocated(1, "n", K, V0, (9,)), write])[0] == mine
    assert elsewhere not in traced([mine, elsewhere, write])


def test_pins_of_an_idle_node_are_all_shown() -> None:
    """Whoever holds them."""
    pins = [PinTaken(1, "n", K, V0, (1,)), PinTaken(1, "m", K, V0, (1,))]
    history = [*pins, PinReleased(2, "m", K, V0, (1,)), Idle(3, "n")]
    assert traced(history) == [pins[0], history[-1]]


def test_work_that_never_went_on_is_shown_with_what_admitted_it() -> None:
    """C4 is found at the end, where no record breaks it."""
    begun = Submitted(4_000_000, K, V1, "r", 7)
    history = [publish(1, "r"), MOVE, begun, publish(5, "r", OTHER)]
    assert traced(history) == [MOVE, begun]
    (violation,) = check(history)
    text = explain(history, violation)
    assert text.splitlines()[0].startswith("C4.no_progress: the final version of a scope")
    assert text.endswith("the history ends here")


def test_the_text_names_scope_version_stage_and_blocks() -> None:
    """One line an event, the newest at 0 ms, each with the place it was read from."""
    history = [Allocated(1_000_000, "n", OTHER, V0, tuple(range(20))), MOVE,
               Wrote(3_500_000, "n", K, V1, (2, 3))]  # fmt: skip
    (violation,) = check(history)
    lines = explain(history, violation, place=lambda i: f"h:{i + 1}").splitlines()
    assert lines[0].startswith("C3.foreign_write: blocks were written by work that does not own")
    told = [" ".join(line.split()) for line in lines]
    assert told[1] == (
        "-2.500 ms - Allocated rival/plan 1.0 node=n blocks"
        " 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more [h:1]"
    )
    assert told[2] == (
        "-0.500 ms advance CommitMade acme/plan supersede 1.0 -> 1.1 generation=7 [h:2]"
    )
    assert lines[3].endswith("acme/plan 1.1 node=n blocks 2, 3  [h:3]  <- breaks it")


def test_a_long_trace_says_what_it_leaves_out() -> None:
    """The newest events are the ones shown."""
    history: list[Record] = [publish(i, "r") for i in range(50)]
    history += [MOVE, ACK, publish(5_000_000, "r")]
    (violation,) = check(history)
    lines = explain(history, violation, shown=5).splitlines()
    assert lines[1] == "  ... 48 earlier events of it are not shown" and len(lines) == 7

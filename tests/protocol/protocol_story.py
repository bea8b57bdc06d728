"""One scope on node "a", with a gate of its own and another node "b": a story told in events."""

from __future__ import annotations

from retire.protocol.contract import Contract, Participant, StopReason
from retire.protocol.effects import Effect
from retire.protocol.events import (
    Certified,
    Change,
    ChangeRequested,
    Committed,
    Event,
    FenceReceipt,
    Gate,
    GateAcked,
    Reclaimed,
    Registered,
    SuccessorAdmitted,
)
from retire.protocol.state import ScopeState
from retire.protocol.transitions import step
from retire.protocol.versions import ScopeKey, Version

KEY = ScopeKey("acme", "plan")
V0, V1, V2, V3 = (Version(1, e) for e in range(4))
LOCAL, REMOTE = Gate("a/api", "a"), Gate("b", "b", 1.5)
BOTH = (LOCAL, REMOTE)


def part(node: str = "a", frontier: int = 64, *, closed: bool = True) -> Participant:
    return Participant(node, f"boot-{node}", 0, 0, 0, frontier, closed)


class Story:
    """Feeds events; remembers the state and every effect."""

    def __init__(self, version: Version = V0) -> None:
        self.state = ScopeState(KEY, "a")
        self.effects: list[Effect] = []
        self.feed(Registered(version))

    def feed(self, *events: Event) -> list[Effect]:
        """Effects of these events only."""
        new: list[Effect] = []
        for event in events:
            done = step(self.state, event)
            self.state = done.state
            new += done.effects
        self.effects += new
        return new

    def ask(
        self, call: str, change: Change, expected: Version, contract: Contract | None = None
    ) -> list[Effect]:
        asked = ChangeRequested(
            call, change, expected, f"key-{call}", contract=contract or Contract()
        )
        return self.feed(asked)

    def commit(
        self, call: str, change: Change, expected: Version, gates: tuple[Gate, ...] = BOTH
    ) -> list[Effect]:
        """Asked and committed at once."""
        self.ask(call, change, expected)
        to = expected.next_epoch() if change.moves_version else expected
        made = Committed(call, change, expected, to, to.epoch + 1, generation=to.epoch, gates=gates)
        return self.feed(made)

    def fence(self, to: Version) -> list[Effect]:
        """Both gates ack, both nodes give their receipt."""
        acks = (GateAcked("a/api", to), GateAcked("b", to))
        return self.feed(*acks, FenceReceipt("a", to, (part(),)), FenceReceipt("b", to))

    def resume(self, to: Version, tokens: int = 64) -> list[Effect]:
        certified = Certified(to, tokens, StopReason.FIRST_DIFFERENCE)
        return self.feed(certified, SuccessorAdmitted(to, "successor"))

    def reclaim(self, to: Version) -> list[Effect]:
        return self.feed(Reclaimed("a", to), Reclaimed("b", to))

    def kinds(self, effects: list[Effect]) -> list[str]:
        return [type(e).__name__ for e in effects]

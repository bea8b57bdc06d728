"""Planted bugs: one small change each in the core or its surroundings, as source text."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sim_actions
import sim_scene
from sim_world import Bounds

from retire.protocol import alignment, certificates, events, gate, stages, state, transitions
from retire.protocol.events import Change

SUPERSEDE, CANCEL, PAUSE = Change.SUPERSEDE, Change.CANCEL, Change.PAUSE
ONE = Bounds(((SUPERSEDE, 0),))
TWO = Bounds(((SUPERSEDE, 0), (SUPERSEDE, 0)))


@dataclass(frozen=True)
class Mutant:
    """In ``owner.function``, ``old`` (which occurs once) becomes ``new``."""

    name: str
    owner: object
    function: str
    old: str
    new: str
    bounds: Bounds = ONE
    rule: str = "C1.published_after_acknowledge"

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The core with the bug; sound again afterwards."""
        original = inspect.getattr_static(self.owner, self.function)
        plain = original.fget if isinstance(original, property) else original
        source = textwrap.dedent(inspect.getsource(plain))
        assert source.count(self.old) == 1, f"{self.name}: the text to change must occur once"
        names = dict(vars(sys.modules[plain.__module__]))
        exec(source.replace(self.old, self.new), names)
        names_of_module = vars(sys.modules[plain.__module__])
        bad = names[self.function]
        if inspect.isfunction(bad):  # globals stay the module's, so that other patches are seen
            bad = type(bad)(bad.__code__, names_of_module, bad.__name__, bad.__defaults__)
            bad.__kwdefaults__ = plain.__kwdefaults__
        setattr(self.owner, self.function, bad)
        try:
            yield
        finally:
            setattr(self.owner, self.function, original)


def _in(module: object, function: str, old: str, new: str) -> tuple[object, str, str, str]:
    return module, function, old, new


WORLD_MUTANTS = [
    Mutant(
        "acknowledge before the last gate",
        *_in(stages, "_acknowledge", "not t.acknowledged and all(", "not t.acknowledged and any("),
    ),
    Mutant(
        "an ack counts for any version",
        *_in(state.ScopeState, "outcome", "and account.version >= version", ""),
        bounds=TWO,
    ),
    Mutant(
        "lease deadline stored before catching up",
        *_in(
            gate.LeaseState,
            "_caught_up",
            "all(applied.get(t, s) >= s for t, s in needed.items())",
            "True",
        ),
        bounds=Bounds(((SUPERSEDE, 0),), lease_ends=1),
    ),
    Mutant(
        "gate without a deadline",
        *_in(gate, "may_publish", "and now_ns < deadline_ns", ""),
        bounds=Bounds(((SUPERSEDE, 0),), lease_ends=1),
    ),
    Mutant(
        "gate lets older frames through",
        *_in(gate, "may_publish", "known == frame", "known is not None and known >= frame"),
    ),
    Mutant(
        "a lost node counts as a lease that ended",
        *_in(
            stages,
            "_node_lost",
            "receipts = tuple(",
            "state = _account(state, node, state.version, GateOutcome.LEASE_ENDED)"
            "\n    receipts = tuple(",
        ),
        bounds=Bounds(((SUPERSEDE, 0),), engine=True, node_losses=1),
    ),
    Mutant(
        "a stale event lowers the version",
        *_in(
            transitions, "_learn", "elif version > state.version:", "elif version != state.version:"
        ),
        bounds=TWO,
        rule="C5.version_fell",
    ),
    Mutant(
        "rebuild under the same term",
        *_in(transitions, "_rebuilt", "event.version.term <= state", "event.version.term < state"),
        bounds=Bounds(((SUPERSEDE, 0), (SUPERSEDE, 0)), nodes=1, registry_losses=1, same_term=True),
        rule="C5.commit_fell",
    ),
    Mutant(
        "rebuild before the old leases ended",
        *_in(
            sim_actions,
            "registry_actions",
            "not any(can_publish(n, n.word) for n in world.nodes)",
            "True",
        ),
        bounds=Bounds(((SUPERSEDE, 0),), registry_losses=1),
    ),
    Mutant(
        "reclaim takes the running version too",
        *_in(
            stages,
            "_order_reclaim",
            "ReclaimNode(n, t.to_version)",
            "ReclaimNode(n, t.to_version.next_epoch())",
        ),
        bounds=Bounds(((SUPERSEDE, 0),), engine=True, nodes=1),
        rule="C3.freed_running",
    ),
    Mutant(
        "reclaim before the writers are closed",
        *_in(stages, "_order_reclaim", " if state.receipt(n, t.to_version)]", "]"),
        bounds=Bounds(((SUPERSEDE, 0),), engine=True, nodes=1, fence_timeouts=1),
        rule="C3.freed_open",
    ),
    Mutant(
        "certify while writers are open",
        *_in(
            stages,
            "has_closed",
            "receipt is not None and all(p.closed for p in receipt.participants)",
            "True",
        ),
        bounds=Bounds(((SUPERSEDE, 0),), engine=True, nodes=1, fence_timeouts=1),
        rule="C2.writer_open",
    ),
    Mutant(
        "a second supersede drops the first one's pins",
        *_in(stages, "_decide", " and (newer is None or newer.is_decided)", ""),
        bounds=Bounds(((SUPERSEDE, 0), (SUPERSEDE, 0)), engine=True, nodes=1),
        rule="5.3.pinned_until_adopted",
    ),
    Mutant(
        "retention of a superseded version frees what the newest one certified",
        *_in(stages, "_change_one", " if newest:", ":"),
        bounds=Bounds(((SUPERSEDE, 0), (SUPERSEDE, 0)), engine=True, nodes=1),
        rule="5.3.pinned_until_adopted",
    ),
    Mutant(
        "a second supersede forgets the first one's caller",
        *_in(
            transitions,
            "_advance",
            "transitions=(*state.transitions, transition)",
            "transitions=(transition,)",
        ),
        bounds=Bounds(((SUPERSEDE, 0), (SUPERSEDE, 0)), nodes=2),
        rule="C4.no_progress",
    ),
    Mutant(
        "a replay does not ask the local gates again",
        *_in(transitions, "_coordinate", "effects = (SwitchGates(", "_ = (SwitchGates("),
        bounds=Bounds(((SUPERSEDE, 0),), losses=1),
        rule="C4.no_progress",
    ),
    Mutant(
        "pause moves the version",
        *_in(events.Change, "moves_version", "self not in (Change.PAUSE, Change.RESUME)", "True"),
        bounds=Bounds(((PAUSE, 0),)),
        rule="commit.pause_moved",
    ),
    Mutant(
        "cancel leaves a successor",
        *_in(
            transitions,
            "_advance",
            "Successor.NONE if terminal else Successor.AWAITED",
            "Successor.AWAITED",
        ),
        bounds=Bounds(((CANCEL, 0),)),
        rule="C1.cancelled",
    ),
    Mutant(
        "the caller's idempotency key is not passed on",
        *_in(transitions, "_requested", "event.idempotency_key", "event.call"),
        bounds=Bounds(((PAUSE, 0),), losses=1),
        rule="commit.twice",
    ),
    Mutant(
        "the registry ignores idempotency keys",
        *_in(sim_scene.Scene, "commit", "dict(registry.done).get(request.idempotency)", "None"),
        bounds=Bounds(((PAUSE, 0),), duplicates=1),
        rule="commit.twice",
    ),
]

ALIGNMENT_MUTANTS = [
    Mutant(
        "a participant's frontier is ignored",
        *_in(alignment, "frontier_tokens", "return min((closed", "return max((closed"),
        rule="frontier",
    ),
    Mutant(
        "an open writer counts",
        *_in(
            alignment,
            "frontier_tokens",
            "p.frontier_tokens if p.closed else 0",
            "p.frontier_tokens",
        ),
        rule="frontier",
    ),
    Mutant(
        "the window is ignored",
        *_in(alignment, "_group_held_below", " and group.needs(top)[0] >= first", ""),
        rule="oracle",
    ),
    Mutant(
        "one group's boundary only",
        *_in(
            alignment,
            "boundary_tokens",
            "lcm(*(g.block_size for g in groups))",
            "max(g.block_size for g in groups)",
        ),
        rule="oracle",
    ),
    Mutant(
        "the last prompt token is inherited too",
        *_in(alignment, "align", "max(len(new) - 1, 0)", "len(new)"),
        rule="oracle",
    ),
    Mutant(
        "the prefix search skips the last chunk",
        *_in(alignment, "common_prefix", "low = middle", "low = high"),
        rule="oracle",
    ),
    Mutant(
        "a certificate of another boot is taken",
        *_in(
            certificates,
            "verify",
            "not hmac.compare_digest(c.signature, sign(c, signing_key))",
            "False",
        ),
        rule="tamper",
    ),
]

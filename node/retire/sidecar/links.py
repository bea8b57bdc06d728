"""Attached API processes: who they are, and the commands that are waiting for their answers.

Owns the fan-out of Switch (one round, one future, whatever the number of gates) and single asks
(Fence, Inspect). Must never know versions or decide a transition.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from retire.protocol.contract import GateOutcome
from retire.protocol.errors import Unavailable
from retire.sidecar.lane import frame
from retire.sidecar.pb import node_pb2 as pb
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from retire.sidecar.lane import SidecarEnd

_log = logging.getLogger(names.LOGGER_SIDECAR)


_ANSWERS: Final = ("fence", "inspect", "warm")  # of asks: GateReport's fields
STRANGERS_S: Final = 5.0  # a process that runs attaches again within a second of a restart
UNATTACHED: Final = "unattached"  # what a receipt calls them


class LinkLost(Unavailable):
    """The API process closed its link before it answered."""


class Ask(NamedTuple):
    """A command that one process is to answer."""

    answer: asyncio.Future[pb.GateReport]
    command: pb.GateCommand


class Link:
    """One attached API process: an outbox of commands and the asks it has not answered."""

    __slots__ = ("_outbox", "_wake", "asks", "closed", "hello", "lane")

    def __init__(self, hello: pb.Hello) -> None:
        self.hello = hello
        self.closed = False
        self.lane: SidecarEnd | None = None  # the short way, once the process has connected it
        self.asks: dict[int, Ask] = {}
        self._outbox: deque[pb.GateCommand] = deque()
        self._wake: asyncio.Future[None] | None = None

    @property
    def gate(self) -> str:
        """The name the process gave itself, unique per process start."""
        return self.hello.gate

    @property
    def ready(self) -> bool:
        """Whether the process's plugin found every seam it relies on."""
        return not self.closed and not self.hello.seams_error

    def send(self, command: pb.GateCommand) -> None:
        """Queue one command; order is kept."""
        self._outbox.append(command)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next_command(self) -> pb.GateCommand:
        """Wait for the next queued command (one consumer: the writer of the stream)."""
        while not self._outbox:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._outbox.popleft()

    def close(self) -> None:
        """Fail every ask; nothing is sent any more."""
        self.closed = True
        if self.lane is not None:
            self.lane.close()
        for ask in self.asks.values():
            if not ask.answer.done():
                ask.answer.set_exception(LinkLost(f"gate {self.gate!r} detached"))
        self.asks.clear()


class Answer(NamedTuple):
    """One process's part in a round; a tuple, because a Switch may have 64 of them."""

    gate: str
    outcome: GateOutcome
    at_s: float  # the links' clock


class SwitchRound:
    """One Switch to a set of links: settled when each has acked, detached or run out of its lease.

    Why a silent process counts as ended after the lease: the mailbox was switched before the round
    began, so whatever the process does next starts with a refused check. Only a frame that had
    passed its check and was not yet handed to the transport is open, and a process stopped in
    between is bounded like a node that was cut off: by the publish lease. A detached process (its
    Unix socket closes only with the process, or by its own doing after its streams) cannot publish
    at all; one that outlived this sidecar's last start, and has not attached again, can: a round
    that may have such strangers ends with the lease too.
    """

    __slots__ = (
        "_clock",
        "_on_settled",
        "_timer",
        "answers",
        "body",
        "last_published",
        "waiting",
    )

    def __init__(
        self,
        links: Iterable[Link],
        body: pb.Switch,
        *,
        lease_s: float,
        clock: Callable[[], float],
        on_settled: Callable[[SwitchRound], None],
    ) -> None:
        self.waiting: set[Link] = set(links)
        self.body = body
        self.answers: list[Answer] = []
        self.last_published: dict[str, int] = {}  # request id -> index of the last delivered token
        self._clock = clock
        self._on_settled = on_settled
        self._timer = asyncio.get_running_loop().call_later(lease_s, self._expire)

    def ack(self, link: Link, ack: pb.SwitchAck) -> None:
        """The process's event loop passed the barrier. A second ack changes nothing."""
        if link in self.waiting:
            self.last_published.update(ack.last_published_index)
            self._settle(link, GateOutcome.ACKED)

    def drop(self, link: Link) -> None:
        """The process is gone."""
        if link in self.waiting:
            self._settle(link, GateOutcome.LEASE_ENDED)

    @property
    def outcome(self) -> GateOutcome:
        """ACKED when every process acked."""
        acked = all(answer.outcome is GateOutcome.ACKED for answer in self.answers)
        return GateOutcome.ACKED if acked else GateOutcome.LEASE_ENDED

    def _expire(self) -> None:
        for link in tuple(self.waiting):
            _log.warning("gate did not ack; its lease ended", extra=fields(gate=link.gate))
            self._settle(link, GateOutcome.LEASE_ENDED)

    def _settle(self, link: Link, outcome: GateOutcome) -> None:
        self.waiting.discard(link)
        self.answers.append(Answer(link.gate, outcome, self._clock()))
        if not self.waiting:
            self._timer.cancel()
            self._on_settled(self)


class Links:
    """Every attached API process of the node."""

    def __init__(
        self, *, lease_s: float, clock: Callable[[], float], restarted: bool = False
    ) -> None:
        """``restarted``: processes of before may be running, and publishing, unattached."""
        self._lease_s = lease_s
        self._clock = clock
        self._strangers = Link(pb.Hello(gate=UNATTACHED)) if restarted else None
        self._strangers_until_s = clock() + STRANGERS_S
        self._links: dict[str, Link] = {}
        self._rounds: dict[int, SwitchRound] = {}
        self._commands = itertools.count(1)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def __len__(self) -> int:
        return len(self._links)

    @property
    def may_publish(self) -> bool:
        """Whether there is any process whose streams a Switch must reach."""
        return bool(self._links) or self._unattached() is not None

    def _unattached(self) -> Link | None:
        """Stands for processes of before the restart until they have had time to come back."""
        if self._strangers is not None and self._links and self._clock() > self._strangers_until_s:
            self._strangers = None
        return self._strangers

    def find(self, gate: str) -> Link | None:
        """The link of a gate, by the name it gave itself."""
        return self._links.get(gate)

    def ask_again(self, link: Link) -> None:
        """The gate's lane broke: what it has not acked goes over its stream. Twice does no harm."""
        for command, pending in self._rounds.items():
            if link in pending.waiting and not link.closed:
                link.send(pb.GateCommand(command=command, switch=pending.body))
        for ask in link.asks.values():
            link.send(ask.command)

    def attach(self, hello: pb.Hello) -> Link:
        """Admit a process; a link of the same name is replaced (the process reconnected)."""
        old = self._links.get(hello.gate)
        if old is not None:
            self.detach(old)
        link = self._links[hello.gate] = Link(hello)
        return link

    def detach(self, link: Link) -> None:
        """Forget a process and settle what waits for it."""
        if self._links.get(link.gate) is link:
            del self._links[link.gate]
        link.close()
        for pending in tuple(self._rounds.values()):
            pending.drop(link)

    def switch(
        self,
        body: pb.Switch,
        on_settled: Callable[[SwitchRound], None],
        *,
        only: Link | None = None,
    ) -> None:
        """Send one Switch to every link (or to one); ``on_settled`` runs when none is waited for.

        With nobody to ask it never runs: there is no gate to settle.
        """
        command = next(self._commands)
        links = (only,) if only is not None else tuple(self._links.values())
        stranger = self._unattached() if only is None else None
        waiting = links if stranger is None else (*links, stranger)
        if not waiting:
            return

        def settled(done: SwitchRound) -> None:
            del self._rounds[command]
            on_settled(done)

        self._rounds[command] = SwitchRound(
            waiting, body, lease_s=self._lease_s, clock=self._clock, on_settled=settled
        )
        message = pb.GateCommand(command=command, switch=body)
        encoded = frame(message)
        for link in links:
            if link.lane is not None:
                link.lane.write(encoded)
            else:
                link.send(message)

    async def ask(self, link: Link, command: pb.GateCommand, *, timeout_s: float) -> pb.GateReport:
        """Send one Fence, Inspect or Warm and wait for its answer. LinkLost or TimeoutError."""
        if link.closed:
            raise LinkLost(f"gate {link.gate!r} detached")
        command.command = number = next(self._commands)
        answer: asyncio.Future[pb.GateReport] = asyncio.get_running_loop().create_future()
        link.asks[number] = Ask(answer, command)
        if link.lane is not None:
            link.lane.write(frame(command))
        else:
            link.send(command)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        finally:
            link.asks.pop(number, None)

    def tell(self, command: pb.GateCommand, *, only: Link | None = None) -> None:
        """Send a command that has no answer (Quota, Welcome)."""
        command.command = next(self._commands)
        for link in (only,) if only is not None else tuple(self._links.values()):
            link.send(command)

    def receive(self, link: Link, report: pb.GateReport) -> None:
        """Route one answer; an answer nobody waits for any more is dropped."""
        kind = report.WhichOneof("report")
        if kind == "switch_ack":
            pending = self._rounds.get(report.switch_ack.command)
            if pending is not None:
                pending.ack(link, report.switch_ack)
            return
        if kind not in _ANSWERS:
            return
        ask = link.asks.get(getattr(report, kind).command)
        if ask is not None and not ask.answer.done():
            ask.answer.set_result(report)

    def engines(self) -> dict[str, list[Link]]:
        """Engine boot id -> the links that reach it, oldest first (processes share an engine)."""
        engines: dict[str, list[Link]] = {}
        for link in self._links.values():
            engines.setdefault(link.hello.engine_boot_id, []).append(link)
        return engines

    def not_ready_reason(self) -> str:
        """Empty when at least one process is attached and its seams are as expected."""
        if not self._links:
            return "no engine API process is attached"
        if any(link.ready for link in self._links.values()):
            return ""
        return next(link.hello.seams_error for link in self._links.values())

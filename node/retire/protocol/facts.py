"""What the records of a history so far add up to, and which rule the next one breaks.

The model carries :class:`Facts` along every path it explores, ``invariants.check`` along a recorded
history. Imports nothing outside the standard library and ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from retire.protocol.events import Change
from retire.protocol.history import (
    Acknowledged,
    Adopted,
    Allocated,
    CertificateIssued,
    CommitMade,
    Delivered,
    Finished,
    Freed,
    HistoryOpened,
    Idle,
    NodeRestarted,
    PinReleased,
    PinTaken,
    Published,
    ReceiptGiven,
    Record,
    RegistryRebuilt,
    Submitted,
    VersionSeen,
    WritersClosed,
    Wrote,
)
from retire.protocol.versions import ScopeKey, Version

_Block = tuple[str, int]  # node, block id
_Owner = tuple[ScopeKey, Version]
_SETS = frozenset(("finished", "progressed", "submitted"))


class Facts:
    """What the records so far add up to. ``observe`` returns the names of the rules broken."""

    __slots__ = (
        "acknowledged",
        "cancelled",
        "certificates",
        "closed",
        "commits",
        "current",
        "earlier",
        "finished",
        "owners",
        "pins",
        "progressed",
        "seen",
        "submitted",
        "terms",
        "witnessed",
    )

    def __init__(self) -> None:
        self.acknowledged: dict[ScopeKey, Version] = {}
        self.cancelled: dict[ScopeKey, Version] = {}
        self.certificates: dict[tuple[str, ScopeKey, Version], CertificateIssued] = {}  # the newest
        self.closed: dict[tuple[str, ScopeKey], Version] = {}
        self.commits: dict[tuple[ScopeKey, str], Version] = {}
        self.current: dict[ScopeKey, Version] = {}
        self.earlier: dict[tuple[str, ScopeKey, Version], frozenset[CertificateIssued]] = {}
        self.finished: set[_Owner] = set()
        self.owners: dict[_Block, frozenset[_Owner]] = {}
        self.pins: dict[_Block, frozenset[_Owner]] = {}
        self.progressed: set[_Owner] = set()
        self.seen: dict[tuple[str, ScopeKey], Version] = {}
        self.submitted: set[_Owner] = set()
        self.terms: dict[str, int] = {}
        self.witnessed: dict[ScopeKey, Version] = {}  # the newest that any observer has seen

    def copy(self) -> Facts:
        """Independent facts that continue from here."""
        new = Facts()
        for name in Facts.__slots__:
            kept: Any = getattr(self, name)
            setattr(new, name, kept.copy())
        return new

    def frozen(self) -> Hashable:
        """A hashable value, equal for equal facts."""
        parts: list[Hashable] = []
        for name in Facts.__slots__:
            kept: Any = getattr(self, name)
            parts.append(frozenset(kept if name in _SETS else kept.items()))
        return tuple(parts)

    def observe(self, record: Record) -> list[str]:
        """Take in one record."""
        match record:
            case CommitMade():
                return self._committed(record)
            case Acknowledged(_, key, version):
                raised = max(version, self.acknowledged.get(key, version))
                self.acknowledged[key] = raised
                return []
            case Published() | Delivered() | Submitted() | Finished() | VersionSeen():
                return self._worked(record)
            case RegistryRebuilt(_, tenant, term):
                fell = term <= self.terms.get(tenant, -1)
                self.terms[tenant] = max(term, self.terms.get(tenant, term))
                return ["C5.term_fell"] if fell else []
            case ReceiptGiven() | HistoryOpened():
                return []  # ``recorded_facts`` judges what only a running system records
            case _:
                return self._memory(record)

    def stuck(self) -> list[tuple[ScopeKey, Version]]:
        """Final versions that neither published nor finished: C4, which only the end can tell."""
        stuck = [
            (key, version)
            for key, version in self.submitted
            if not self._retired(key, version) and (key, version) not in self.progressed
        ]
        return sorted(stuck)

    def _committed(self, r: CommitMade) -> list[str]:
        current = self.current.get(r.key, r.from_version)
        broken: list[str] = []
        if r.change in (Change.PAUSE, Change.RESUME):
            if r.to_version != r.from_version:
                broken.append("commit.pause_moved")
        # A rebuild may lose commits that nobody was told of: its term starts from what is known.
        elif r.to_version <= current or (
            r.from_version != current and r.from_version.term == current.term
        ):
            broken.append("C5.commit_fell")
        if r.to_version.term < self.terms.get(r.key.tenant, 0):
            broken.append("C5.term_fell")
        if r.idempotency_key and (r.key, r.idempotency_key) in self.commits:
            broken.append("commit.twice")
        self.commits[r.key, r.idempotency_key] = r.to_version
        self.current[r.key] = max(current, r.to_version)
        if r.change is Change.CANCEL:
            self.cancelled[r.key] = r.to_version
        return broken

    def _worked(self, r: Published | Delivered | Submitted | Finished | VersionSeen) -> list[str]:
        broken: list[str] = []
        match r:
            case Published():
                self.progressed.add((r.key, r.version))
            case Delivered():
                broken += self._see(r.consumer, r, "C1.old_after_new")
            case VersionSeen():
                self.witnessed[r.key] = max(r.version, self.witnessed.get(r.key, r.version))
                return self._see(r.observer, r, "C5.version_fell")
            case Submitted():
                self.submitted.add((r.key, r.version))
            case Finished():
                self.progressed.add((r.key, r.version))
                self.finished.add((r.key, r.version))
        return broken + self.judge(r)

    def judge(self, r: Published | Delivered | Submitted | Finished) -> list[str]:
        """The rules that work at this moment would break, without taking it in."""
        broken: list[str] = []
        if isinstance(r, Published) and r.version < self.acknowledged.get(r.key, r.version):
            broken.append("C1.published_after_acknowledge")
        cancelled = self.cancelled.get(r.key)
        if cancelled is not None and r.version >= cancelled:
            broken.append("C1.cancelled")
        return broken

    def _see(self, who: str, r: Delivered | VersionSeen, rule: str) -> list[str]:
        newest = self.seen.get((who, r.key), r.version)
        self.seen[who, r.key] = max(newest, r.version)
        return [rule] if r.version < newest else []

    def _memory(self, record: Record) -> list[str]:
        match record:
            case WritersClosed(_, node, key, version):
                self.closed[node, key] = max(version, self.closed.get((node, key), version))
            case CertificateIssued():
                self._issued(record)
                return self._open_writer(record.node, record.key, record.to_version)
            case Adopted():
                return self._adopted(record)
            case PinTaken() | PinReleased():
                return self._pinned(record)
            case NodeRestarted(_, node):
                self._forget(node)
            case Idle(_, node):
                return ["C6.idle"] if any(n == node for n, _ in self.pins) else []
            case _:
                return self._blocks(record)
        return []

    def _blocks(self, record: Record) -> list[str]:
        match record:
            case Allocated():
                return self._allocated(record)
            case Wrote():
                return self._wrote(record)
            case Freed():
                return self._freed(record)
            case _:
                raise TypeError(f"not a history record: {record!r}")

    def _open_writer(self, node: str, key: ScopeKey, version: Version) -> list[str]:
        closed = self.closed.get((node, key))
        return [] if closed is not None and closed >= version else ["C2.writer_open"]

    def _issued(self, r: CertificateIssued) -> None:
        """A version of several requests gets several certificates."""
        at = (r.node, r.key, r.to_version)
        if at in self.certificates:
            self.earlier[at] = self.earlier.get(at, frozenset()) | {self.certificates[at]}
        self.certificates[at] = r

    def _adopted(self, r: Adopted) -> list[str]:
        if not r.tokens:
            return []
        at = (r.node, r.key, r.version)
        if at not in self.certificates:
            return ["C2.no_certificate"]
        broken = self._open_writer(*at)
        claimed = (r.generation, r.tokens, r.blocks)
        issued = (self.certificates[at], *self.earlier.get(at, ()))
        matching = [c for c in issued if (c.generation, c.tokens, c.blocks) == claimed]
        if not matching:
            broken.append("C2.certificate_differs")
        elif all(r.at_ns >= c.expires_ns for c in matching):
            broken.append("C2.expired")
        if not all((r.node, b) in self.owners for b in r.blocks):
            broken.append("C2.freed")
        for block in ((r.node, b) for b in r.blocks):
            self.owners[block] = self.owners.get(block, frozenset()) | {(r.key, r.version)}
        return broken

    def _reopen(self, r: Allocated | Wrote) -> None:
        """Work below a closed version that allocates or writes is a writer again."""
        closed = self.closed.get((r.node, r.key))
        if closed is not None and r.version < closed:
            self.closed[r.node, r.key] = r.version

    def _allocated(self, r: Allocated) -> list[str]:
        self._reopen(r)
        blocks = [(r.node, b) for b in r.blocks]
        twice = any(b in self.owners or b in self.pins for b in blocks)
        for block in blocks:
            self.owners[block] = self.owners.get(block, frozenset()) | {(r.key, r.version)}
        return ["C3.owned_twice"] if twice else []

    def _wrote(self, r: Wrote) -> list[str]:
        self._reopen(r)
        broken: list[str] = []
        me = (r.key, r.version)
        owners = [self.owners.get((r.node, b), frozenset[_Owner]()) for b in r.blocks]
        if not all(me in o for o in owners):
            broken.append("C3.foreign_write")
        # Shared with another version: certified pages are immutable.
        if any(me in o and len(o) > 1 for o in owners):
            broken.append("C3.certified_write")
        return broken

    def _retired(self, key: ScopeKey, version: Version) -> bool:
        """A commit or a rebuild has raised the scope above ``version``.

        Another node may act on a commit before the committer, whose answer is late, records it.
        """
        rebuilt = version.term < self.terms.get(key.tenant, 0)
        newest = max(self.current.get(key, version), self.witnessed.get(key, version))
        return rebuilt or version < newest

    def _freed(self, r: Freed) -> list[str]:
        broken: list[str] = []
        me = (r.key, r.version)
        running = me in self.submitted and me not in self.finished
        retired = self._retired(r.key, r.version)
        if r.version == self.current.get(r.key) and running and not retired:
            broken.append("C3.freed_running")
        closed = self.closed.get((r.node, r.key))
        if retired and not (closed and closed > r.version):
            broken.append("C3.freed_open")
        for block in ((r.node, b) for b in r.blocks):
            left = self.owners.pop(block, frozenset[_Owner]()) - {me}
            if left:
                self.owners[block] = left
            elif block in self.pins:
                broken.append("C6.freed_pinned")
        return broken

    def _pinned(self, r: PinTaken | PinReleased) -> list[str]:
        me = frozenset(((r.key, r.version),))
        broken: list[str] = []
        for block in ((r.node, b) for b in r.blocks):
            held = self.pins.pop(block, frozenset[_Owner]())
            if isinstance(r, PinReleased) and not me <= held:
                broken.append("C6.unbalanced")
            left = held | me if isinstance(r, PinTaken) else held - me
            if left:
                self.pins[block] = left
        if isinstance(r, PinTaken) and (r.quota_left or 0) < 0:
            broken.append("C6.over_quota")
        return broken

    def _forget(self, node: str) -> None:
        self.owners = {b: o for b, o in self.owners.items() if b[0] != node}
        self.pins = {b: o for b, o in self.pins.items() if b[0] != node}
        self.certificates = {k: c for k, c in self.certificates.items() if k[0] != node}
        self.earlier = {k: c for k, c in self.earlier.items() if k[0] != node}
        self.closed = {k: v for k, v in self.closed.items() if k[0] != node}

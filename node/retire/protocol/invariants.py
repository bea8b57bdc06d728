"""The promises as named rules over a recorded history (design, section 2).

``check`` judges a whole history, ``Judge`` one record at a time. The model carries the same
``Facts`` along every path, so model, tests and the running system are held to one text. Imports
nothing outside the standard library and ``retire.protocol``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from retire.protocol.facts import Facts
from retire.protocol.history import Record, in_order, record_from_dict, record_to_dict
from retire.protocol.recorded_facts import RecordedFacts
from retire.protocol.versions import ScopeKey, Version

__all__ = [
    "RULES",
    "Facts",
    "Judge",
    "Violation",
    "check",
    "in_order",
    "record_from_dict",
    "record_to_dict",
]

RULES = {
    "C1.published_after_acknowledge": "a gate published below an acknowledged version",
    "C1.old_after_new": "a consumer saw an old token after a new one",
    "C1.cancelled": "work was admitted or published at or above a cancelled version",
    "C2.no_certificate": "KV was adopted without a certificate for that version",
    "C2.certificate_differs": "other blocks, tokens or generation were adopted than were certified",
    "C2.expired": "KV was adopted after its certificate had expired",
    "C2.writer_open": "KV was certified or adopted before the old writers were closed",
    "C2.freed": "certified blocks were freed before their adoption",
    "C2.generation_differs": "work acted under another generation than its version was given",
    "C3.page_changed": "a certified page did not hold at its adoption what it held when certified",
    "C3.foreign_write": "blocks were written by work that does not own them",
    "C3.certified_write": "blocks were written after they had been certified",
    "C3.owned_twice": "blocks in use were given to other work",
    "C3.freed_running": "blocks of the current version were reclaimed under running work",
    "C3.freed_open": "blocks were reclaimed before their old writers were closed",
    "C4.no_progress": "the final version of a scope neither published nor finished",
    "C5.version_fell": "an observer went back to a lower version",
    "C5.commit_fell": "a commit did not raise the version, or came from a stale one",
    "C5.term_fell": "something of a term below the last rebuild was taken as current",
    "C6.freed_pinned": "pinned blocks were freed",
    "C6.unbalanced": "a pin was released that its owner did not hold",
    "C6.over_quota": "a pin exceeded its tenant's quota",
    "C6.idle": "pins were held while idle",
    "C8.receipt_early": "a receipt was given before its version was acknowledged",
    "C8.index_understated": "a receipt says less was published than had been",
    "C8.certified_differs": "a receipt names certified tokens that no certificate covers",
    "commit.twice": "one idempotency key committed twice",
    "commit.pause_moved": "a pause or resume changed the version",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: its name in RULES, the index of the record (or the length, at the end).

    ``subject``: the scope version it is about, where the record does not say it.
    """

    name: str
    index: int
    message: str
    subject: tuple[ScopeKey, Version] | None = None


class Judge:
    """Takes in a history in time order (see :func:`in_order`), record by record."""

    def __init__(self) -> None:
        self._index = -1
        self._facts = Facts()
        self._recorded = RecordedFacts()

    def observe(self, record: Record) -> list[Violation]:
        """What this record breaks."""
        self._index += 1
        names = self._facts.observe(record) + self._recorded.observe(record)
        return [_violation(name, self._index, str(record)) for name in names]

    def at_end(self) -> list[Violation]:
        """What the whole history breaks."""
        return [
            _violation("C4.no_progress", self._index + 1, f"{key} {version}", (key, version))
            for key, version in self._facts.stuck()
        ]


def check(history: Iterable[Record]) -> list[Violation]:
    """Judge a history in time order; [] means that every rule holds."""
    judge = Judge()
    found: list[Violation] = []
    for record in history:
        found += judge.observe(record)
    return found + judge.at_end()


def _violation(
    name: str, index: int, what: str, subject: tuple[ScopeKey, Version] | None = None
) -> Violation:
    return Violation(name, index, f"{RULES[name]}: {what}", subject)

"""What the nodes told of transitions, by scope: the memory between a stream and the status.

Bounded by the scopes that have an object. Memory only, no IO.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from retire.protocol.versions import ScopeKey, Version
from retire_operator import receipts
from retire_operator.receipts import Line

if TYPE_CHECKING:
    from retire.sidecar.pb import node_pb2 as pb
    from retire_operator.resource import Desired


class Mirror:
    """The last transitions of every scope that somebody told."""

    def __init__(self) -> None:
        self._lines: dict[ScopeKey, tuple[Line, ...]] = {}

    def take(self, record: pb.TransitionRecord) -> ScopeKey:
        """Take a node's record in; the scope to look at."""
        key = ScopeKey(record.key.tenant, record.key.scope)
        line = receipts.from_record(record)
        if line is not None:
            self.add(key, line)
        return key

    def take_view(self, view: pb.ScopeView) -> None:
        """Receipts that a node still has: what a lost stream did not tell."""
        key = ScopeKey(view.key.tenant, view.key.scope)
        for text in view.receipts_json:
            version = _to_version(text)
            if version is not None:
                self.add(key, receipts.with_receipt(Line("supersede", version), text))

    def add(self, key: ScopeKey, line: Line) -> None:
        """Take one line in."""
        self._lines[key] = receipts.merged(self._lines.get(key, ()), (line,))

    def lines(self, desired: Desired) -> tuple[Line, ...]:
        """Newest first; a revision's own are told from those of a runtime."""
        return tuple(receipts.by(line, desired.uid) for line in self._lines.get(desired.key, ()))

    def forget(self, key: ScopeKey) -> None:
        """No object has this scope any more."""
        self._lines.pop(key, None)


def _to_version(receipt_json: str) -> Version | None:
    try:
        return Version.parse(json.loads(receipt_json)["to_version"])
    except (ValueError, KeyError, TypeError):
        return None

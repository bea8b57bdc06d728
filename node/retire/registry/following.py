"""Follows one tenant's stream and notices when part of it is gone. Pure; never imports a client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from retire.protocol.errors import InvalidField, TermMismatch
from retire.registry.interface import Event
from retire.registry.keys import Keyspace

_ID = re.compile(r"\d{1,20}-\d{1,20}")


class Cursor:
    """A position in a stream: the last event read and its number ``n``, which counts without a
    gap."""

    def __init__(self, keyspace: Keyspace, tenant: str, *, after: str) -> None:
        after = "0-0" if after == "0" else after
        if after != "$" and _ID.fullmatch(after) is None:
            raise InvalidField(
                "after", after, 'an event id such as "1700000000000-0", "0-0" or "$"'
            )
        self.tenant = tenant
        self.stream = keyspace.tenant(tenant).events
        self.incarnation = ""
        self.after = after
        self._n: int = 0

    def stand(self, incarnation: str, after: str, n: int) -> None:
        """Take the position that the registry confirmed (tail.lua)."""
        self.incarnation, self.after, self._n = incarnation, after, n

    def read(self, reply: Sequence[Sequence[Any]] | None) -> Iterator[Event]:
        """The events of an XREAD reply; TermMismatch at a gap, and after a rebuild."""
        entries: Sequence[tuple[str, dict[str, str]]] = reply[0][1] if reply else ()
        for event_id, fields in entries:
            yield self._take(event_id, dict(fields))
            if fields["event"] == "rebuild":
                raise TermMismatch(
                    f"tenant {self.tenant!r} was rebuilt under term {fields['term']}"
                )

    def _take(self, event_id: str, fields: dict[str, str]) -> Event:
        kind = fields.pop("event")
        n = int(fields.pop("n"))
        if n != self._n + 1:
            raise TermMismatch(
                f"tenant {self.tenant!r}: events {self._n + 1} to {n - 1} of the stream are gone;"
                " resync with a snapshot"
            )
        self._n, self.after = n, event_id
        return Event(event_id, self.tenant, kind, fields)

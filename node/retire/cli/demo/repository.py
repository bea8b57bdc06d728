"""What the demo's agent reads: a small repository, and the tasks its user changes their mind about.

Data only.
"""

from __future__ import annotations

from typing import Any, Final

SYSTEM: Final = (
    "You are a careful coding agent. Read the repository, then write a short numbered plan for the"
    " task. Name the files you would change."
)

CLIENT: Final = '''\
"""Talks to the carrier's tracking service."""

import json
import urllib.request
from dataclasses import dataclass


@dataclass(frozen=True)
class Parcel:
    """One parcel as the carrier sees it."""

    number: str
    status: str
    city: str
    updated_at: float


class CarrierError(Exception):
    """The carrier did not answer, or answered nonsense."""


class Carrier:
    """A thin client. One request per call, no state besides the base address and the token."""

    def __init__(self, base_url: str, token: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token

    def track(self, number: str) -> Parcel:
        """Look up one parcel by its number."""
        body = self._get(f"/v2/parcels/{number}")
        return Parcel(number, body["status"], body["city"], body["updated_at"])

    def track_many(self, numbers: list[str]) -> list[Parcel]:
        """Look up several parcels, one request each, in order."""
        return [self.track(number) for number in numbers]

    def cancel(self, number: str, reason: str) -> None:
        """Ask the carrier to stop a parcel and send it back."""
        self._post(f"/v2/parcels/{number}/cancel", {"reason": reason})

    def _get(self, path: str) -> dict:
        request = urllib.request.Request(self._base_url + path, headers=self._headers())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def _post(self, path: str, body: dict) -> dict:
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            self._base_url + path, data=data, headers=self._headers(), method="POST"
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
'''

STORE: Final = '''\
"""Keeps the last known state of every parcel in SQLite."""

import sqlite3
import time

from parcels.client import Parcel

SCHEMA = """
create table if not exists parcel (
    number text primary key,
    status text not null,
    city text not null,
    updated_at real not null,
    seen_at real not null
);
create index if not exists parcel_status on parcel (status);
create table if not exists event (
    id integer primary key autoincrement,
    number text not null references parcel (number),
    status text not null,
    city text not null,
    at real not null
);
"""


class Store:
    """All access to the database file. Not safe to share between threads."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path)
        self._db.executescript(SCHEMA)

    def save(self, parcel: Parcel) -> bool:
        """Insert or update; true when the status changed. A change is also written as an event."""
        old = self.get(parcel.number)
        self._db.execute(
            "insert into parcel values (?, ?, ?, ?, ?) on conflict (number) do update set "
            "status = excluded.status, city = excluded.city, updated_at = excluded.updated_at, "
            "seen_at = excluded.seen_at",
            (parcel.number, parcel.status, parcel.city, parcel.updated_at, time.time()),
        )
        changed = old is None or old.status != parcel.status
        if changed:
            self._db.execute(
                "insert into event (number, status, city, at) values (?, ?, ?, ?)",
                (parcel.number, parcel.status, parcel.city, parcel.updated_at),
            )
        self._db.commit()
        return changed

    def get(self, number: str) -> Parcel | None:
        """The last known state, or None for a parcel nobody has asked about."""
        row = self._db.execute(
            "select number, status, city, updated_at from parcel where number = ?", (number,)
        ).fetchone()
        return None if row is None else Parcel(*row)

    def open_numbers(self, older_than_s: float) -> list[str]:
        """Parcels that are still on their way and were not looked at for a while."""
        rows = self._db.execute(
            "select number from parcel where status not in ('delivered', 'returned') "
            "and seen_at < ? order by seen_at",
            (time.time() - older_than_s,),
        )
        return [number for (number,) in rows]
'''

WATCH: Final = '''\
"""The loop that asks the carrier again and tells people what changed."""

import logging
import time

from parcels.client import Carrier, CarrierError
from parcels.notify import Notifier
from parcels.store import Store

log = logging.getLogger("parcels.watch")


class Watcher:
    """Polls the carrier for every open parcel, a few at a time."""

    def __init__(self, carrier: Carrier, store: Store, notifier: Notifier, batch: int = 20) -> None:
        self._carrier = carrier
        self._store = store
        self._notifier = notifier
        self._batch = batch

    def run(self, interval_s: float) -> None:
        """Until interrupted."""
        while True:
            started = time.monotonic()
            changed = self.once(older_than_s=interval_s)
            log.info("round done: %d changed in %.1f s", changed, time.monotonic() - started)
            time.sleep(max(0.0, interval_s - (time.monotonic() - started)))

    def once(self, older_than_s: float) -> int:
        """One round; the number of parcels whose status changed."""
        changed = 0
        for number in self._store.open_numbers(older_than_s)[: self._batch]:
            try:
                parcel = self._carrier.track(number)
            except CarrierError as error:
                log.warning("parcel %s: %s", number, error)
                continue
            if self._store.save(parcel):
                changed += 1
                self._notifier.tell(parcel)
        return changed
'''

NOTIFY: Final = '''\
"""Sends short messages about parcels."""

import smtplib
from email.message import EmailMessage

from parcels.client import Parcel

TEXTS = {
    "accepted": "The carrier has your parcel {number}.",
    "moving": "Your parcel {number} is on its way and was last seen in {city}.",
    "delivered": "Your parcel {number} was delivered in {city}.",
    "returned": "Your parcel {number} is on its way back to the sender.",
}


class Notifier:
    """One mail per change. Subscribers are kept in memory, by parcel number."""

    def __init__(self, server: str, sender: str) -> None:
        self._server = server
        self._sender = sender
        self._subscribers: dict[str, set[str]] = {}

    def subscribe(self, number: str, address: str) -> None:
        """Tell this address about every change of the parcel."""
        self._subscribers.setdefault(number, set()).add(address)

    def tell(self, parcel: Parcel) -> int:
        """Send the message for the parcel's status; the number of mails sent."""
        text = TEXTS.get(parcel.status)
        addresses = self._subscribers.get(parcel.number, set())
        if text is None or not addresses:
            return 0
        with smtplib.SMTP(self._server) as smtp:
            for address in sorted(addresses):
                smtp.send_message(self._message(parcel, text, address))
        return len(addresses)

    def _message(self, parcel: Parcel, text: str, address: str) -> EmailMessage:
        message = EmailMessage()
        message["from"], message["to"] = self._sender, address
        message["subject"] = f"Parcel {parcel.number}: {parcel.status}"
        message.set_content(text.format(number=parcel.number, city=parcel.city))
        return message
'''

TESTS: Final = '''\
"""Tests of the watcher with a carrier that plays back answers."""

from parcels.client import CarrierError, Parcel
from parcels.store import Store
from parcels.watch import Watcher


class FakeCarrier:
    """Answers from a list; an exception in the list is raised."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def track(self, number):
        self.asked.append(number)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeNotifier:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def tell(self, parcel):
        self.told.append(parcel.number)
        return 1


def make(answers):
    store, notifier = Store(":memory:"), FakeNotifier()
    store.save(Parcel("A1", "accepted", "Kiel", 1.0))
    store.save(Parcel("B2", "moving", "Lyon", 2.0))
    return Watcher(FakeCarrier(answers), store, notifier), store, notifier


def test_a_change_is_saved_and_told():
    watcher, store, notifier = make(
        [Parcel("A1", "moving", "Bonn", 3.0), Parcel("B2", "moving", "Lyon", 2.0)]
    )
    assert watcher.once(older_than_s=-1) == 1
    assert store.get("A1").city == "Bonn"
    assert notifier.told == ["A1"]


def test_one_failing_parcel_does_not_stop_the_round():
    watcher, store, notifier = make([CarrierError("503"), Parcel("B2", "delivered", "Nice", 4.0)])
    assert watcher.once(older_than_s=-1) == 1
    assert notifier.told == ["B2"]
'''

SMALL: Final = {"parcels/client.py": CLIENT, "parcels/store.py": STORE, "parcels/watch.py": WATCH}
WHOLE: Final = {**SMALL, "parcels/notify.py": NOTIFY, "tests/test_watch.py": TESTS}


def messages(files: dict[str, str], task: str) -> list[Any]:
    """The agent's chat: repository first, task last, so that tasks share the long prefix."""
    repository = "\n".join(f"=== {path} ===\n{text}" for path, text in files.items())
    user = f"This is the repository.\n\n{repository}\nTask: {task}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]

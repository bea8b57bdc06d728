"""65,536 scopes on one node: what they cost in time and memory, and what idle capacity costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from retire.mailbox import MailboxView, MailboxWriter

SCOPES = 65_536

# A sidecar-like process: prints its resident set before and after opening argv[2] scopes.
OPENER = """
import json, sys, time
from retire.mailbox import MailboxWriter
from retire.protocol.versions import ScopeKey, Version

def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

writer = MailboxWriter.create(sys.argv[1])
before, started = resident_kib(), time.perf_counter()
for n in range(int(sys.argv[2])):
    writer.open(ScopeKey(f"tenant-{n % 32}", f"agent/{n}/plan"), Version(1, 1))
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "grown_mib": (resident_kib() - before) / 1024}))
"""


def open_in_a_process(path: Path, scopes: int) -> dict[str, float]:
    """Open ``scopes`` in a child that then dies without detaching."""
    command = [sys.executable, "-c", OPENER, str(path), str(scopes)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def file_mib(path: Path) -> float:
    """Memory the file takes, holes not counted."""
    return path.stat().st_blocks * 512 / 2**20


def test_an_empty_mailbox_costs_pages_not_megabytes(path: Path):
    """24 MiB apparent, next to nothing allocated, also after recovery has looked at every slot."""
    writer = MailboxWriter.create(path)
    writer.detach()
    MailboxWriter.create(path).detach()
    assert path.stat().st_size > 24 * 2**20
    assert file_mib(path) < 0.1


def test_ten_thousand_scopes_leave_the_sidecar_small(path: Path):
    """10,000 scopes grow their process by less than 16 MiB (the sidecar's budget is 120 MB)."""
    cost = open_in_a_process(path, 10_000)
    print(f"10000 scopes: +{cost['grown_mib']:.1f} MiB resident, file {file_mib(path):.1f} MiB")
    assert cost["grown_mib"] < 16
    assert file_mib(path) < 5


def test_every_slot_in_use(path: Path, lease):
    """65,536 scopes open in seconds, a new writer recovers all of them, and each gate is open."""
    cost = open_in_a_process(path, SCOPES)
    started = time.perf_counter()
    writer = MailboxWriter.create(path)
    recovery_s = time.perf_counter() - started
    lease(writer)
    view = MailboxView.attach(path)
    slots = list(writer.slots())
    assert len({slot.key for slot in slots}) == len(slots) == SCOPES
    assert writer.free_count == 0
    assert all(view.check(slot.ref.index, slot.ref.stamp) for slot in slots)
    writer.renew(0)
    assert not any(view.check(slot.ref.index, slot.ref.stamp) for slot in slots)
    print(
        f"{SCOPES} scopes: opened in {cost['seconds']:.2f} s, recovered in {recovery_s:.2f} s, "
        f"+{cost['grown_mib']:.0f} MiB resident, file {file_mib(path):.1f} MiB"
    )
    assert cost["seconds"] < 20
    assert recovery_s < 20
    assert file_mib(path) < 25
    writer.detach()

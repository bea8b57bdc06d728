"""One writer, several readers, real processes: a reader only ever sees what was stored."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from retire.mailbox import MailboxView, MailboxWriter, ProgressLines, layout
from retire.protocol.versions import ScopeKey, Version

KEY = ScopeKey("acme", "plan")

# Prints every distinct word it sees in slot 0 until the slot is closed for good (word 1). How many
# it has seen stands in its progress line.
WATCHER = """
import sys
from retire.mailbox import MailboxView, ProgressLines
view, line = MailboxView.attach(sys.argv[1]), ProgressLines.attach(sys.argv[1]).line(0)
stamps, seen, last = view._stamps, set(), None
print("ready", flush=True)
while last != 1:
    last = stamps[0]
    seen.add(last)
    line[1] = len(seen)
print(*seen)
"""

# Binds to what the slot says now, as an engine does, and prints each (stamp, version) pair it got.
BINDER = """
import sys
from retire.mailbox import MailboxView, ProgressLines
view, line = MailboxView.attach(sys.argv[1]), ProgressLines.attach(sys.argv[1]).line(1)
tenure, seen, stamps = int(sys.argv[2]), set(), view._stamps
print("ready", flush=True)
while stamps[0] != 1:
    now = view.current(0, tenure)
    if now is not None:
        seen.add((now.ref.stamp, now.version.epoch))
        line[1] = len(seen)
print(*(f"{stamp}:{epoch}" for stamp, epoch in seen))
"""


class Reader:
    """A reader process, started and known to be reading."""

    def __init__(self, code: str, path: Path, *args: object) -> None:
        command = [sys.executable, "-c", code, str(path), *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def seen(self) -> list[str]:
        """What it printed at its end."""
        output, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return output.split()


def end(writer: MailboxWriter) -> None:
    """Tell the readers that it is over: 1 is no stamp."""
    writer._words[layout.slot_word(0, layout.W_STAMP)] = 1


def test_readers_see_only_issued_stamps(path: Path):
    """Hammered by advance(), a slot shows an issued stamp or 0, each with its own version.

    The serials start just below 2**32 multiples, so that low and high halves change together.
    """
    writer = MailboxWriter.create(path, now_ns=lambda: 2**32 - 1000)
    ref = writer.open(KEY, Version(1, 0))
    watcher, binder = Reader(WATCHER, path), Reader(BINDER, path, ref.tenure)
    lines, until = ProgressLines.attach(path), time.monotonic() + 40
    issued, epoch = {ref.stamp: 0}, 0
    while min(lines.line(0)[1], lines.line(1)[1]) < 1000:
        assert time.monotonic() < until, "the readers must look while the writer writes"
        for _ in range(100):
            epoch += 1
            issued[writer.advance(0, Version(1, epoch)).stamp] = epoch
        # Straddle a boundary of the halves again: 0x00000001_ffffffce, 0x00000003_ffffffce, ...
        writer._words[layout.H_NEXT_SERIAL] = (epoch // 100 + 1) * 2**33 - 50
    end(writer)
    stamps = set(map(int, watcher.seen())) - {0, 1}
    pairs = [tuple(map(int, pair.split(":"))) for pair in binder.seen()]
    assert stamps <= issued.keys()
    assert all(issued[stamp] == version for stamp, version in pairs if stamp != 1)
    print(f"{len(issued)} stamps issued, {len(stamps)} seen, {len(pairs)} bound")
    writer.detach()


def test_a_torn_store_would_be_seen(path: Path):
    """Control: the same stamps stored as two 4-byte halves reach the watcher mixed."""
    writer = MailboxWriter.create(path)
    writer.open(KEY, Version(1, 0))
    halves = memoryview(writer._words.obj).cast("I")
    low = layout.slot_word(0, layout.W_STAMP) * 2
    halves[low] = halves[low + 1] = 0x1111_1111  # no half of the first stamp is ever mixed in
    watcher, until = Reader(WATCHER, path), time.monotonic() + 40
    words_seen = ProgressLines.attach(path).line(0)
    while words_seen[1] < 4:  # two whole values and two mixtures
        assert time.monotonic() < until, "tearing went unseen"
        for value in (0x1111_1111, 0x2222_2222):
            halves[low] = value
            halves[low + 1] = value
    end(writer)
    seen = set(map(int, watcher.seen()))
    assert {0x1111_1111_1111_1111, 0x2222_2222_2222_2222} <= seen
    assert {0x2222_2222_1111_1111, 0x1111_1111_2222_2222} <= seen
    halves.release()
    writer.detach()


# Reads stamp and version once each. Every advance adds one to both, so their difference tells
# whether they belong together; it ends at the first pair that does not.
NAIVE_BINDER = """
import sys
from retire.mailbox import MailboxView, layout
view = MailboxView.attach(sys.argv[1])
words, offset = view._words, int(sys.argv[2])
stamp_at, version_at = layout.slot_word(0, layout.W_STAMP), layout.slot_word(0, layout.W_VERSION)
print("ready", flush=True)
while True:
    version, stamp = words[version_at], words[stamp_at]
    if stamp and stamp - version != offset:
        break
print("mixed")
"""


def test_a_binding_without_the_second_look_would_mix(path: Path):
    """Control: version and stamp read once, without the second look, do not fit together."""
    writer = MailboxWriter.create(path)
    ref = writer.open(KEY, Version(0, 0))
    binder = Reader(NAIVE_BINDER, path, ref.stamp)
    epoch, until = 0, time.monotonic() + 40
    while binder.process.poll() is None:
        assert time.monotonic() < until, "no mixed pair was seen"
        for _ in range(100):
            epoch += 1
            assert writer.advance(0, Version(0, epoch)).stamp == ref.stamp + epoch
    assert binder.seen() == ["mixed"]
    writer.detach()


def test_check_never_passes_a_revoked_stamp_in_another_process(path: Path, lease):
    """After advance() returned, a request to another process to check the old stamp says no."""
    code = """
import sys
from retire.mailbox import MailboxView
view = MailboxView.attach(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(view.check(0, int(line)), flush=True)
"""
    writer = MailboxWriter.create(path)
    lease(writer)
    ref = writer.open(KEY, Version(1, 0))
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as gate:
        assert gate.stdin is not None
        assert gate.stdout is not None
        assert gate.stdout.readline() == "ready\n"

        def ask(stamp: int) -> str:
            gate.stdin.write(f"{stamp}\n")
            gate.stdin.flush()
            return gate.stdout.readline().strip()

        for epoch in range(1, 2000):
            old, ref = ref, writer.advance(0, Version(1, epoch))
            assert ask(old.stamp) == "False"
            assert ask(ref.stamp) == "True"
        gate.stdin.close()
    assert MailboxView.attach(path).check(0, ref.stamp)
    writer.detach()

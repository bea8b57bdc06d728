"""The mailbox file, byte by byte. Owns offsets and the pure encoding of a slot; never does IO.

Every word is 64 bits, native byte order, aligned to 8. Regions start at multiples of 64 KiB, so
that each can be mapped by itself on every page size. The file is sparse: a page costs memory once
it is touched.

==================== =============================================================================
bytes                content
==================== =============================================================================
0 .. 65535           header; only the first page is used
  0                  magic ``RETIREMB``
  8                  layout version
  16                 capacity: number of slots
  24, 32             boot id of this file: 128 random bits, drawn when the file is created
  40, 48             boot id of the machine: CLOCK_MONOTONIC has no meaning in another boot
  56                 pid of the last writer (information only; the lock is ``flock``)
  64                 next serial, alone in its cache line
  128                publish deadline, CLOCK_MONOTONIC ns, alone in its cache line; 0: closed
  192                changes: stored after a stamp has changed. A reader that finds it as it was
                     need not look again at stamps checked since (it grants no authority)
65536 .. 131071      progress lines: 1024 ranks of 64 bytes, written by workers (``progress.py``)
131072 ..            slots: one 64-byte line each
  +0   w0 stamp      0: closed. THE word: a gate publishes only while it equals the gate's stamp
  +8   w1 version    ``Version.packed()``
  +16  w2 flags      PAUSED=1, ARMED=2, CANCELLED=4
  +24  w3 stop index layer at which the ranks of an armed slot stop
  +32  w4 tenure     serial of this assignment of the slot to a scope; 0: the slot is free
  +40  w5 generation ownership instance of the scope's KV allocations
  +48  w6 seal       CRC-32 of the slot's name record, xor the low half of the tenure
  +56  w7 changed    CLOCK_MONOTONIC ns when the stamp last changed, by issue or by closing
131072 + 64 capacity names: 320 bytes a slot
  +0                 number of bytes of the tenant name (1..63), then the name
  +64                number of bytes of the scope name (1..255), then the name
next 64 KiB boundary overlaps: one word a slot, written by API processes (``overlaps.py``)
==================== =============================================================================

**Stamp.** A serial that names one (tenure, version) of one slot. Serials come from one counter that
is stored *before* the serial is used, so no serial is issued twice in the life of a file, crash or
not; a new file starts at the wall clock in ns, above what any earlier file has reached. Hence one
aligned load decides authority: no pair of words must agree, nothing can be torn (CPython moves a
``Q`` item with one 8-byte load or store), and a recycled slot cannot alias an old tag.

**Order.** Stamps change through 0: *store 0; store the other words; store the new stamp*. A crash
between any two stores leaves the slot closed, and a new stamp is known to nobody before its version
stands beside it. The other words only inform: on x86-64 (stores are seen in order) re-reading the
stamp makes a copy of them consistent; on ARM they may lag, which costs a late fence, never a late
token, since the gate never looks at them.

**A check** loads the deadline, then the stamp, then the clock. In this order a check that passes on
an old stamp has read the clock before the *old* deadline. Any other order has a hole: load the old
stamp, stall while the lease ends, the commit is applied and the lease renewed, then load the *new*
deadline. What a passed check permits must be handed over before the next suspension point.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import TYPE_CHECKING, Final

from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from retire.protocol.versions import Version

MAGIC: Final = int.from_bytes(b"RETIREMB", "little")
LAYOUT_VERSION: Final = 2
CAPACITY_DEFAULT: Final = 65_536
CAPACITY_MAX: Final = 1 << 20
WORD_BYTES: Final = 8
WORD_MAX: Final = 2**64 - 1

# Word indices in the header.
H_MAGIC: Final = 0
H_LAYOUT: Final = 1
H_CAPACITY: Final = 2
H_BOOT: Final = 3  # two words
H_HOST_BOOT: Final = 5  # two words
H_WRITER_PID: Final = 7
H_NEXT_SERIAL: Final = 8
H_DEADLINE: Final = 16
H_CHANGES: Final = 24
HEADER_BYTES: Final = 200

PROGRESS_OFFSET: Final = 1 << 16
PROGRESS_BYTES: Final = 1 << 16
SLOTS_OFFSET: Final = 1 << 17
SLOT_BYTES: Final = 64
SLOT_WORDS: Final = SLOT_BYTES // WORD_BYTES
SLOTS_WORD: Final = SLOTS_OFFSET // WORD_BYTES

# Word indices in a slot.
W_STAMP: Final = 0
W_VERSION: Final = 1
W_FLAGS: Final = 2
W_STOP: Final = 3
W_TENURE: Final = 4
W_GENERATION: Final = 5
W_SEAL: Final = 6
W_CHANGED: Final = 7

NAME_BYTES: Final = 320
NAME_SCOPE_AT: Final = 64
REGION_BYTES: Final = 1 << 16  # what a region's first byte is aligned to
SLOTS_PER_PAGE: Final = 64  # 64 slots fill one 4 KiB page of slots and five of names


class SlotFlags(IntFlag):
    """w2. Flags inform the engine; none of them opens or closes a gate."""

    NONE = 0
    PAUSED = 1
    ARMED = 2
    CANCELLED = 4


FLAGS_ALL: Final = int(SlotFlags.PAUSED | SlotFlags.ARMED | SlotFlags.CANCELLED)


class GateState(Enum):
    """What a gate may do with a frame."""

    OPEN = "open"
    STALE = "stale"  # the stamp was replaced: superseded, cancelled or freed
    LEASE_EXPIRED = "lease_expired"  # hold: nothing is published until the lease is renewed


@dataclass(frozen=True, slots=True)
class SlotRef:
    """What a gate holds: publish iff the slot's word equals ``stamp``. Stamp 0 never publishes."""

    index: int
    tenure: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Current:
    """What a slot says now, read consistently."""

    ref: SlotRef
    version: Version
    flags: int
    generation: int
    stop_index: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot in use, as its writer sees it. ``ref.stamp`` is 0 while the slot is closed."""

    key: ScopeKey
    version: Version
    ref: SlotRef
    flags: int
    generation: int


def names_offset(capacity: int) -> int:
    """Byte offset of the names region."""
    return SLOTS_OFFSET + capacity * SLOT_BYTES


def overlaps_offset(capacity: int) -> int:
    """Byte offset of the overlaps region."""
    end = names_offset(capacity) + capacity * NAME_BYTES
    return -(-end // REGION_BYTES) * REGION_BYTES


def file_bytes(capacity: int) -> int:
    """Apparent size of the file."""
    return overlaps_offset(capacity) + capacity * WORD_BYTES


def slot_word(index: int, word: int) -> int:
    """Index of a slot's word in the file taken as 64-bit words."""
    return SLOTS_WORD + index * SLOT_WORDS + word


def name_offset(capacity: int, index: int) -> int:
    """Byte offset of a slot's name record."""
    return names_offset(capacity) + index * NAME_BYTES


def encode_name(key: ScopeKey) -> bytes:
    """The 320-byte name record of a slot."""
    tenant, scope = key.tenant.encode(), key.scope.encode()
    head = bytes((len(tenant),)) + tenant
    return head.ljust(NAME_SCOPE_AT, b"\0") + (bytes((len(scope),)) + scope).ljust(256, b"\0")


def decode_name(record: bytes) -> ScopeKey:
    """The inverse; raises UnicodeDecodeError or InvalidField when the record is damaged."""
    tenant = record[1 : 1 + record[0]]
    at = NAME_SCOPE_AT + 1
    return ScopeKey(tenant.decode(), record[at : at + record[NAME_SCOPE_AT]].decode())


def name_record(words: memoryview[int], capacity: int, index: int) -> bytes:
    """A slot's name record, out of the whole file."""
    at = name_offset(capacity, index) // WORD_BYTES
    return words[at : at + NAME_BYTES // WORD_BYTES].tobytes()


def seal(record: bytes, tenure: int) -> int:
    """w6: shows at recovery that the name record belongs to this tenure."""
    return zlib.crc32(record) ^ (tenure & 0xFFFF_FFFF)

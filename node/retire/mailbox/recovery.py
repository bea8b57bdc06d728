"""What a restarted writer takes over from the file. Validates every slot; repairs by closing.

Works on views handed in; must never open a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retire.mailbox import layout
from retire.mailbox.layout import slot_word
from retire.protocol.errors import InvalidField

if TYPE_CHECKING:
    from retire.protocol.versions import ScopeKey


@dataclass(frozen=True, slots=True)
class Recovered:
    """Slots in use by scope, slots to hand out again, and where to go on."""

    index: dict[ScopeKey, int]
    freed: list[int]
    fresh: int  # slots from here on were never used
    next_serial: int


def recover(words: memoryview[int], raw: memoryview[int], capacity: int) -> Recovered:
    """Take over every valid slot with its stamp; wipe a slot whose words or name are damaged."""
    index: dict[ScopeKey, int] = {}
    freed: list[int] = []
    fresh = 0
    next_serial = words[layout.H_NEXT_SERIAL]
    tenures = words[
        layout.SLOTS_WORD + layout.W_TENURE : layout.slot_word(capacity, 0) : layout.SLOT_WORDS
    ]
    for slot, tenure in enumerate(tenures):
        if not tenure:
            continue
        freed.extend(range(fresh, slot))
        fresh = slot + 1
        key = _valid_key(words, raw, capacity, slot)
        if key is None or key in index or tenure >= next_serial:
            _wipe(words, slot)
            freed.append(slot)
        else:
            index[key] = slot
    return Recovered(index, freed, fresh, next_serial)


def _valid_key(
    words: memoryview[int], raw: memoryview[int], capacity: int, slot: int
) -> ScopeKey | None:
    """The scope of a sound slot. A stamp at or past the counter would be issued again: not sound."""
    at = layout.name_offset(capacity, slot)
    record = bytes(raw[at : at + layout.NAME_BYTES])
    tenure, stamp = words[slot_word(slot, layout.W_TENURE)], words[slot_word(slot, layout.W_STAMP)]
    if words[slot_word(slot, layout.W_SEAL)] != layout.seal(record, tenure):
        return None
    if (
        words[slot_word(slot, layout.W_FLAGS)] & ~layout.FLAGS_ALL
        or stamp >= words[layout.H_NEXT_SERIAL]
    ):
        return None
    try:
        return layout.read_key(raw, capacity, slot)
    except (InvalidField, UnicodeDecodeError):
        return None


def _wipe(words: memoryview[int], slot: int) -> None:
    words[slot_word(slot, layout.W_STAMP)] = 0
    words[slot_word(slot, layout.W_TENURE)] = 0

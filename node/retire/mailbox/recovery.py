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
    """Slots in use by scope, slots to hand out again, and the first slot that was never used."""

    index: dict[ScopeKey, int]
    freed: list[int]
    fresh: int


def recover(words: memoryview[int], tenures: memoryview[int]) -> Recovered:
    """Take over every sound slot with its stamp; wipe a slot whose words or name are damaged.

    ``words`` is the whole file, writable. ``tenures`` is w4 of every slot from a copy read without
    the mapping: looking at a hole through a mapping would fill it with a page.
    """
    index: dict[ScopeKey, int] = {}
    freed: list[int] = []
    fresh = 0
    for slot, tenure in enumerate(tenures):
        if not tenure:
            continue
        freed.extend(range(fresh, slot))
        fresh = slot + 1
        key = _sound_key(words, len(tenures), slot)
        if key is None or key in index:
            _wipe(words, slot)
            freed.append(slot)
        else:
            index[key] = slot
    return Recovered(index, freed, fresh)


def _sound_key(words: memoryview[int], capacity: int, slot: int) -> ScopeKey | None:
    """The scope of a sound slot. A serial at or past the counter would be issued again: unsound."""
    at = slot_word(slot, 0)
    stamp, _, flags, _, tenure, _, seal = words[at : at + layout.W_SEAL + 1]
    record = layout.name_record(words, capacity, slot)
    if seal != layout.seal(record, tenure) or flags & ~layout.FLAGS_ALL:
        return None
    if max(stamp, tenure) >= words[layout.H_NEXT_SERIAL]:
        return None
    try:
        return layout.decode_name(record)
    except (InvalidField, UnicodeDecodeError):
        return None


def _wipe(words: memoryview[int], slot: int) -> None:
    words[slot_word(slot, layout.W_STAMP)] = 0
    words[slot_word(slot, layout.W_TENURE)] = 0

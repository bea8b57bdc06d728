"""The engine's part of the recorded history: who allocated, adopted, wrote, pinned and freed what.

Off unless ``RETIRE_HISTORY`` is set; ``protocol.invariants`` judges it. Ownership in a history is
by (scope, version) while vLLM counts references by request, so counts are kept here and only the
first and the last holder of a block are recorded. Must never import vLLM.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retire.protocol import history as records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retire.engine.tag import Tag
    from retire.protocol.certificates import Certificate
    from retire.protocol.versions import ScopeKey, Version

_Owner = tuple["ScopeKey", "Version"]


@dataclass(slots=True)
class Chronicle:
    """Records of one engine boot. Every method does nothing while ``write`` is None."""

    node: str
    write: Callable[[records.Record], None] | None = None
    digests: Callable[[tuple[int, ...]], tuple[str, ...]] | None = None  # of blocks' pages
    _held: dict[_Owner, Counter[int]] = field(default_factory=dict)
    _tables: dict[str, tuple[Tag, set[int]]] = field(default_factory=dict)  # by live request
    _pins: dict[_Owner, Counter[int]] = field(default_factory=dict)
    _kept: dict[int, set[_Owner]] = field(default_factory=dict)  # given up, but still pinned
    _closed: dict[ScopeKey, Version] = field(default_factory=dict)

    @property
    def on(self) -> bool:
        """Whether anything is recorded; callers skip the work of collecting otherwise."""
        return self.write is not None

    def _emit(self, kind: type, **fields: object) -> None:
        assert self.write is not None
        self.write(kind(at_ns=time.monotonic_ns(), **fields))

    def submitted(self, tag: Tag, request_id: str) -> None:
        """Work was admitted."""
        if self.on:
            self._emit(
                records.Submitted,
                key=tag.key,
                version=tag.version,
                request_id=request_id,
                generation=tag.authority.generation,
            )

    def finished(self, tag: Tag, request_id: str) -> None:
        """Work ended by itself or by its client."""
        if self.on:
            self._emit(records.Finished, key=tag.key, version=tag.version, request_id=request_id)

    def closed(self, key: ScopeKey, version: Version) -> None:
        """No writer of the scope below ``version`` is left."""
        if self.on:
            self._closed[key] = version
            self._emit(records.WritersClosed, node=self.node, key=key, version=version)

    def certified(self, certificate: Certificate) -> None:
        """ALIGN signed a prefix."""
        if self.on:
            blocks = _real(certificate)
            self._emit(
                records.CertificateIssued,
                node=self.node,
                key=certificate.key,
                to_version=certificate.to_version,
                generation=certificate.generation,
                tokens=certificate.tokens,
                blocks=blocks,
                expires_ns=certificate.expires_ns,
                digests=self._digested(blocks),
            )

    def adopted(self, tag: Tag, request_id: str, certificate: Certificate) -> None:
        """A successor's table aliases certified blocks."""
        if not self.on:
            return
        blocks = _real(certificate)
        self._hold(tag, request_id, blocks)
        self._emit(
            records.Adopted,
            node=self.node,
            key=tag.key,
            version=tag.version,
            request_id=request_id,
            generation=certificate.generation,
            tokens=certificate.tokens,
            blocks=blocks,
            digests=self._digested(blocks),
        )

    def scheduled(self, tag: Tag, request_id: str, writes: set[int]) -> None:
        """A step will write these blocks; those that are new to the version were allocated."""
        if self.on:
            new = self._hold(tag, request_id, writes)
            if new:
                self._blocks(records.Allocated, tag.key, tag.version, new)

    def wrote(self, tag: Tag, blocks: set[int]) -> None:
        """A step has written these blocks."""
        if self.on and blocks:
            self._blocks(records.Wrote, tag.key, tag.version, blocks)

    def freed(self, request_id: str) -> None:
        """A request gave its blocks up; recorded for those that its version no longer holds."""
        tag, blocks = self._tables.pop(request_id, (None, ()))
        if tag is None:
            return
        owner = (tag.key, tag.version)
        gone = _drop(self._held, owner, blocks)
        pinned = {block for block in gone if any(block in pins for pins in self._pins.values())}
        for block in pinned:
            self._kept.setdefault(block, set()).add(owner)
        if gone - pinned:
            self._close_when_last(*owner)
            self._blocks(records.Freed, *owner, gone - pinned)

    def pinned(
        self, key: ScopeKey, version: Version, blocks: Iterable[int], left: int | None
    ) -> None:
        """Blocks are kept for a successor."""
        if self.on:
            self._take_from_cache((key, version), set(blocks))
            new = _add(self._pins, (key, version), blocks)
            if new:
                self._blocks(records.PinTaken, key, version, new, quota_left=left)

    def unpinned(self, key: ScopeKey, version: Version, blocks: Iterable[int]) -> None:
        """A lease ended."""
        if self.on:
            gone = _drop(self._pins, (key, version), blocks)
            if gone:
                self._blocks(records.PinReleased, key, version, gone)
            self._free_kept(gone)

    def restored(self, key: ScopeKey, version: Version, blocks: Iterable[int]) -> None:
        """Pinned blocks were written anew from a copy; the copying is over."""
        if self.on:
            self._blocks(records.Wrote, key, version, blocks)
            if key in self._closed:
                self.closed(key, self._closed[key])

    def _digested(self, blocks: tuple[int, ...]) -> tuple[str, ...] | None:
        return self.digests(blocks) if self.digests is not None else None

    def _take_from_cache(self, owner: _Owner, blocks: set[int]) -> None:
        """Blocks that nobody held any more, their content intact, have an owner again."""
        held = {block for counter in self._held.values() for block in counter}
        found = blocks - held - self._kept.keys()
        for block in found:
            self._kept[block] = {owner}
        if found:
            self._blocks(records.Allocated, *owner, found)
            if owner[0] in self._closed:  # taking them back from the cache writes nothing
                self.closed(owner[0], self._closed[owner[0]])

    def _free_kept(self, unpinned: set[int]) -> None:
        """What had been given up while it was pinned is freed with its last pin."""
        for block in unpinned & self._kept.keys():
            if not any(block in pins for pins in self._pins.values()):
                for owner in self._kept.pop(block):
                    if block not in self._held.get(owner, ()):  # else it runs on it by now
                        self._free_idle(owner, block)

    def _free_idle(self, owner: _Owner, block: int) -> None:
        """Kept blocks belong to requests that have ended."""
        self._close_when_last(*owner)
        self._blocks(records.Freed, *owner, (block,))

    def _close_when_last(self, key: ScopeKey, version: Version) -> None:
        """With no live table left up to ``version``, no writer is open, whatever the registry
        has decided meanwhile: a request may end by itself or by its client right after a commit
        that this engine has not heard of. Work that starts later opens it again.
        """
        if not any(tag.key == key and tag.version <= version for tag, _ in self._tables.values()):
            self.closed(key, version.next_epoch())

    def _hold(self, tag: Tag, request_id: str, blocks: Iterable[int]) -> set[int]:
        _, mine = self._tables.setdefault(request_id, (tag, set()))
        new = set(blocks) - mine
        mine |= new
        return _add(self._held, (tag.key, tag.version), new)

    def _blocks(
        self, kind: type, key: ScopeKey, version: Version, blocks: Iterable[int], **more: object
    ) -> None:
        ids = tuple(sorted(blocks))
        self._emit(kind, node=self.node, key=key, version=version, blocks=ids, **more)


def _real(certificate: Certificate) -> tuple[int, ...]:
    return tuple(sorted({block for group in certificate.blocks for block in group if block}))


def _add(counts: dict[_Owner, Counter[int]], owner: _Owner, blocks: Iterable[int]) -> set[int]:
    """Count one more holder of each block; returns those that had none."""
    counter = counts.setdefault(owner, Counter())
    new = {block for block in set(blocks) if not counter[block]}
    counter.update(set(blocks))
    return new


def _drop(counts: dict[_Owner, Counter[int]], owner: _Owner, blocks: Iterable[int]) -> set[int]:
    """Count one holder less of each block; returns those that have none now."""
    counter = counts.get(owner, Counter())
    counter.subtract(set(blocks))
    gone = {block for block in set(blocks) if counter[block] <= 0}
    for block in gone:
        del counter[block]
    if not counter:
        counts.pop(owner, None)
    return gone

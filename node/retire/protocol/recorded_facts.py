"""Rules about what only a running system records: receipts, generations and page digests.

The model makes none of these records, so they are kept out of the facts it carries along every
path. Imports nothing outside ``retire.protocol``.
"""

from __future__ import annotations

from retire.protocol.history import (
    Acknowledged,
    Adopted,
    CertificateIssued,
    CommitMade,
    Published,
    ReceiptGiven,
    Record,
    Submitted,
    Wrote,
)
from retire.protocol.versions import ScopeKey, Version

_At = tuple[ScopeKey, Version]


class RecordedFacts:
    """Judges one record at a time; ``observe`` returns the names of the rules broken."""

    def __init__(self) -> None:
        self._acknowledged: dict[ScopeKey, Version] = {}
        self._certified: dict[_At, set[int]] = {}  # tokens of each certificate of a version
        self._digests: dict[tuple[str, ScopeKey, int], tuple[Version, str]] = {}  # by node, block
        self._generations: dict[_At, int] = {}
        self._published: dict[ScopeKey, dict[str, int]] = {}  # request -> its newest token's index

    def observe(self, record: Record) -> list[str]:
        """Take in one record."""
        match record:
            case CommitMade(generation=int(generation)):
                self._generations[record.key, record.to_version] = generation
            case Acknowledged(_, key, version):
                self._acknowledged[key] = max(version, self._acknowledged.get(key, version))
            case Published():
                requests = self._published.setdefault(record.key, {})
                newest = requests.get(record.request_id, record.index)
                requests[record.request_id] = max(record.index, newest)
                return self._acted(record)
            case Submitted():
                return self._acted(record)
            case CertificateIssued():
                self._issued(record)
            case Adopted():
                return self._adopted(record)
            case Wrote():  # a restore from a copy; whether it may write is another rule's
                for block in record.blocks if self._digests else ():
                    self._digests.pop((record.node, record.key, block), None)
            case ReceiptGiven():
                return self._receipt(record)
            case _:
                pass
        return []

    def _acted(self, r: Published | Submitted) -> list[str]:
        given = self._generations.get((r.key, r.version))
        differs = r.generation is not None and given is not None and r.generation != given
        return ["C2.generation_differs"] if differs else []

    def _issued(self, r: CertificateIssued) -> None:
        self._certified.setdefault((r.key, r.to_version), set()).add(r.tokens)
        for block, digest in zip(r.blocks, r.digests or (), strict=False):
            self._digests[r.node, r.key, block] = (r.to_version, digest)

    def _adopted(self, r: Adopted) -> list[str]:
        for block, digest in zip(r.blocks, r.digests or (), strict=False):
            certified = self._digests.get((r.node, r.key, block))
            if certified is not None and certified != (r.version, digest):
                return ["C3.page_changed"]
        return []

    def _receipt(self, r: ReceiptGiven) -> list[str]:
        receipt, broken = r.receipt, list[str]()
        acknowledged = self._acknowledged.get(r.key)
        if acknowledged is None or acknowledged < receipt.to_version:
            broken.append("C8.receipt_early")
        published = self._published.get(r.key, {})
        for request in receipt.requests:
            said = request.last_published_index
            if published.get(request.request_id, -1) > (-1 if said is None else said):
                broken.append("C8.index_understated")
                break
        certified = self._certified.get((r.key, receipt.to_version), set())
        if receipt.certified_tokens and receipt.certified_tokens not in certified:
            broken.append("C8.certified_differs")
        return broken
